// The tab Config: the run's settings as a tree, the differences from its parent run, and the resolved YAML.

import { ConfigTree } from "./config_tree.js";
import { refused } from "../host/server.js";
import { DataTable } from "../elements/table.js";
import { copyButton, element, newestJob } from "../elements/dom.js";

const READING_CONFIG = "Reading the configuration...";

export class Config {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-padded");
    this.note = element("p", "nbt-empty", READING_CONFIG);
    this.differences = new DataTable("differences from the parent run");
    this.yaml = element("pre", "nbt-yaml");
    this.yaml.tabIndex = 0;
    const tools = element("div", "nbt-tools");
    tools.append(copyButton("Copy YAML", "Copy the resolved configuration", () => this.yaml.textContent));
    const cloneWith = (key, text) => run.host.openForm({ clone: run.name, overrides: [`${key}=${text}`] });
    this.tree = new ConfigTree(run.host && run.host.openForm ? cloneWith : null);
    const whole = element("details", "nbt-details");
    whole.append(element("summary", "", "Resolved YAML"), tools, this.yaml);
    this.whole = whole;
    this.node.append(this.note, this.differences.node, this.tree.node, whole);
    this.differences.node.hidden = this.tree.node.hidden = true;
  }

  opened() {
    // After a failed read, the file is requested again.
    this.asked = this.read;
  }

  /** Draw the configuration of the shown job. The newest job uses the run's config.yaml, which a resume rewrites. An
   *  older job has its own copy. */
  draw(snap, kept) {
    const { run } = this, newest = newestJob(snap), older = Boolean(run.job) && run.job !== newest;
    const job = older ? run.job : newest;
    if (this.job !== job) {
      Object.assign(this, { job, asked: false, read: false });
      this.note.textContent = READING_CONFIG;
      this.differences.node.hidden = this.tree.node.hidden = true;
    }
    if (run.server && !older && !this.asked) this.ask(job);
    if (this.read || !kept || kept.job_id !== job) return;
    if (!run.server || older) this.note.textContent = "";
    // Without the tree, only the YAML can be shown.
    this.whole.open = true;
    if (this.yaml.textContent !== kept.yaml) this.yaml.textContent = kept.yaml;
  }

  async ask(job) {
    const { run } = this;
    this.asked = true;
    try {
      const value = await run.server.call(`run/${run.name}/config`);
      if (this.job === job) this.show(value);
    } catch (error) {
      if (this.job === job) this.note.textContent = refused(error, "the differences from the parent run");
    }
  }

  show({ yaml, parent, differences, rows = [] }) {
    this.read = true;
    this.whole.open = this.whole.open && !rows.length;
    this.tree.node.hidden = !rows.length;
    if (rows.length) this.tree.show(rows, parent);
    this.yaml.textContent = yaml;
    this.note.textContent = !parent
      ? "This run has no parent run."
      : differences.length ? `Differences from its parent run ${parent}:` : `Same settings as its parent run ${parent}.`;
    this.differences.node.hidden = !differences.length;
    const cells = differences.map((texts) => ({ kind: "", cells: texts.map(String) }));
    this.differences.show(["setting", "this run", parent || "parent run"], cells);
  }
}
