// The tab Plan: first whether the run fits, its time and its disk space, then the plan's findings and tables.

import { refused } from "../host/server.js";
import { pairs } from "../elements/table.js";
import { element, newestJob } from "../elements/dom.js";

export class Plan {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded nbt-plan");
    this.note = element("p", "nbt-empty", "Reading the plan...");
    this.node.append(this.note);
  }

  opened() {
    // After a failed read, the plan is requested again.
    this.asked = this.read;
  }

  /** Read the plan once for each new job, because a resume may change the plan. */
  draw(snap) {
    const job = newestJob(snap);
    if (this.job !== job) Object.assign(this, { job, asked: false, read: false });
    if (this.asked) return;
    if (this.run.server) this.ask(job);
    else this.say("Showing the plan needs nbtrain's server extension. In the notebook, run nb.plan(...).");
  }

  async ask(job) {
    const { run } = this;
    this.asked = true;
    this.note.textContent = "Reading the plan...";
    try {
      const value = await run.server.call(`run/${run.name}/plan`);
      if (this.job !== job) return;
      this.read = true;
      this.show(value);
    } catch (error) {
      if (this.job === job) this.say(refused(error, "the plan"));
    }
  }

  say(words) {
    this.note.textContent = words;
    this.node.replaceChildren(this.note);
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
}
