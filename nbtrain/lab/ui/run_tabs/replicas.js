// The tab Replicas: the ranks as a strip of cells, a table of machines or pods, a table of ranks, and buttons for logs.

import { Strip } from "./strip.js";
import { DataTable } from "../elements/table.js";
import { button, element, menu } from "../elements/dom.js";

const REPLICAS_ON_A_PAGE = 20;
// Columns that are hidden until the user chooses them.
const LESS_READ = ["role", "address", "image", "attempt"];

export class Replicas {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded");
    const act = (row) => this.logs(row);
    const options = { pageSize: REPLICAS_ON_A_PAGE, choose: true, hide: LESS_READ, act };
    this.replicas = new DataTable("replicas", options);
    this.ranks = new DataTable("ranks", options);
    this.strip = new Strip(run, (rank) => this.rowOf(rank), act);
    this.empty = element("p", "nbt-empty", "Reading the run's files...");
    this.replicas.tool(element("h4", "", "Replicas"));
    this.ranks.tool(element("h4", "", "All ranks"));
    this.node.append(this.empty, this.strip.node, this.replicas.node, this.ranks.node);
  }

  /** Return a button that opens the log of a row, or a menu if the row has several logs. */
  logs({ logs = [] }) {
    const open = ([rank, attempt], words) =>
      button(words, "Open this log", () => this.run.openLog(rank, attempt));
    if (logs.length < 2) return logs.map((log) => open(log, "Log"));
    return [menu("Logs", "", ...logs.map((log) => open(log, log[2])))];
  }

  /** Return the row of a rank in the table of ranks, {} if the table has no such row. */
  rowOf(rank) {
    return this.ranks.rows.find(({ cells }) => cells[0] === String(rank)) || {};
  }

  draw(snap, kept) {
    this.empty.hidden = Boolean(kept);
    this.replicas.node.hidden = this.strip.node.hidden = !kept;
    if (kept) {
      this.replicas.show(kept.replicas.heads, kept.replicas.rows);
      this.ranks.show(kept.ranks.heads, kept.ranks.rows);
      // The strip has buttons for the logs in the table.
      if (kept !== this.kept) this.strip.show(kept.strip);
      this.kept = kept;
      return;
    }
    const { heads, rows } = snap.shown.ranks;
    this.ranks.show(heads, rows.map(({ bad, cells }) => ({ kind: bad ? "bad" : "", cells })));
  }

  resize() {
    this.strip.resize();
  }
}
