// The tab Replicas: machines or pods with their ranks, and the menu to each log.

import { DataTable } from "./table.js";
import { button, element } from "./words.js";

const REPLICAS_ON_A_PAGE = 20;

export class Replicas {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded");
    const pageSize = REPLICAS_ON_A_PAGE, act = (row) => this.logs(row);
    this.table = new DataTable("replicas", { pageSize, choose: true, act });
    this.ranks = new DataTable("ranks", { pageSize });
    this.node.append(this.table.node, element("h4", "", "Ranks"), this.ranks.node);
  }

  logs(row) {
    if (!row.log) return [];
    const [rank, attempt] = row.log;
    return [button("Log", "open its log", () => this.run.openLog(rank, attempt))];
  }

  draw(snap, kept) {
    const { heads, rows } = snap.shown.ranks;
    this.ranks.show(heads, rows.map(({ bad, cells }) => ({ kind: bad ? "bad" : "", cells })));
    if (kept) this.table.show(kept.replicas.heads, kept.replicas.rows);
  }
}
