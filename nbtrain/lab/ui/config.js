// The tab Config: the run's resolved YAML, and the difference to its parent run.

import { refused } from "./server.js";
import { DataTable } from "./table.js";
import { copyButton, element } from "./words.js";

export class Config {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded");
    this.note = element("p", "nbt-empty", "Reading the configuration...");
    this.differences = new DataTable("differences to the parent run");
    this.yaml = element("pre", "nbt-yaml");
    this.yaml.tabIndex = 0;
    const tools = element("div", "nbt-tools");
    tools.append(copyButton("Copy YAML", "Copy the resolved configuration", () => this.yaml.textContent));
    this.node.append(this.note, this.differences.node, tools, this.yaml);
    this.differences.node.hidden = true;
  }

  async opened() {
    const { run } = this;
    if (this.read || !run.server) return;
    try {
      const value = await run.server.call(`run/${run.name}/config`);
      this.read = true;
      this.yaml.textContent = value.yaml;
      const { parent, differences } = value;
      this.note.textContent = !parent
        ? "This run has no parent run."
        : differences.length ? `Differences to its parent run ${parent}:` : `As its parent run ${parent}.`;
      this.differences.node.hidden = !differences.length;
      const rows = differences.map((cells) => ({ kind: "", cells: cells.map(String) }));
      this.differences.show(["setting", "here", parent || "there"], rows);
    } catch (error) {
      this.note.textContent = refused(error, "the difference to the parent run");
    }
  }

  draw(snap, kept) {
    if (this.read || !kept) return;
    if (!this.run.server) this.note.textContent = "";
    if (this.yaml.textContent !== kept.yaml) this.yaml.textContent = kept.yaml;
  }
}
