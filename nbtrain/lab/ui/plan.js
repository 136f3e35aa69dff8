// The tab Plan: whether it fits, its time and disk first; then the tables of the plan and its findings.

import { refused } from "./server.js";
import { pairs } from "./table.js";
import { element } from "./words.js";

export class Plan {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded nbt-plan");
    this.note = element("p", "nbt-empty", "Reading the plan...");
    this.node.append(this.note);
  }

  async opened() {
    const { run } = this;
    if (this.read) return;
    if (!run.server) {
      this.note.textContent = "The plan needs the server half of nbtrain; in the notebook: nb.plan(...).";
      return;
    }
    this.note.textContent = "Reading the plan...";
    try {
      this.show(await run.server.call(`run/${run.name}/plan`));
      this.read = true;
    } catch (error) {
      this.note.textContent = refused(error, "the plan");
    }
  }

  show({ headline, kind = "", tables = [], findings = [] }) {
    const tiles = element("div", "nbt-tiles");
    for (const [label, value] of Object.entries(headline || {})) {
      const tile = element("div", "nbt-tile"), words = element("strong", "", value);
      if (label === "fits") words.className = `nbt-kind-${kind}`;
      tile.append(element("span", "", label), words);
      tiles.append(tile);
    }
    const grid = element("div", "nbt-plan-tables");
    for (const { title, rows } of tables) {
      const part = element("section");
      part.append(element("h4", "", title), pairs(rows, title));
      grid.append(part);
    }
    const parts = [tiles, grid];
    if (findings.length) {
      const list = element("ul");
      findings.forEach(({ label, message, fix }) => {
        const row = element("li");
        row.append(element("b", "", `${label}: `), `${message} ${fix}`);
        list.append(row);
      });
      parts.splice(1, 0, element("h4", "", "Findings"), list);
    }
    this.node.replaceChildren(...parts);
  }

  draw() {}
}
