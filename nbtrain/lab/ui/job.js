// The pages of a job: what it is, its conditions, events, replicas and resources over time, from the files
// that its run keeps (monitor/job_shown.py). They are the same during the run, after it and in a new kernel.

import { Chart } from "./charts.js";
import { element, moment } from "./words.js";

const CHART_HEIGHT = 104;
// Room for labels such as "512 MiB/s".
const CHART_LEFT = 66;

/** A table of rows {kind, time, cells}; a time stands before the cells, in the reader's time zone. */
export function table(heads, rows) {
  const node = element("table");
  const head = element("tr");
  heads.forEach((title) => head.append(element("th", "", title)));
  if (heads.some(Boolean)) node.append(head);
  for (const { kind, time, cells } of rows) {
    const row = element("tr");
    row.dataset.kind = kind;
    const words = time ? [moment(time), ...cells] : cells;
    words.forEach((cell, at) => row.append(element("td", at === words.length - 1 ? "nbt-wide" : "", cell)));
    node.append(row);
  }
  return node;
}

export class JobPages {
  constructor() {
    this.value = null;
    this.charts = [];
    this.grid = element("div", "nbt-usage");
    this.warningsOnly = element("input");
    this.warningsOnly.type = "checkbox";
    this.open = { yaml: false, figures: false };
  }

  /** The elements of a page: "events", "resources" or "job"; `trained` are rows about what is trained. */
  page(name, trained) {
    if (name === "events") return this.events();
    return name === "resources" ? this.resources() : this.job(trained);
  }

  events() {
    const { heads, rows } = this.value.events;
    const warnings = rows.filter(({ kind }) => kind === "warning");
    const label = element("label", "nbt-filter");
    label.append(this.warningsOnly, ` warnings only (${warnings.length} of ${rows.length})`);
    return [label, table(heads, [...(this.warningsOnly.checked ? warnings : rows)].reverse())];
  }

  resources() {
    const { charts, figures } = this.value;
    if (!charts.length) return [element("p", "nbt-empty", "Nothing was measured yet.")];
    while (this.charts.length < charts.length) this.charts.push(new Chart(CHART_HEIGHT, CHART_LEFT));
    this.charts.length = charts.length;
    this.grid.replaceChildren(...this.charts.map((chart) => chart.node));
    charts.forEach((chart, at) => this.charts[at].show(chart, chart.curves));
    const numbers = table(figures.heads, figures.rows);
    return [this.grid, this.details("figures", "Newest, mean and greatest values", numbers)];
  }

  job(trained) {
    const { basics, conditions, replicas, yaml } = this.value;
    return [
      table(["", ""], [...basics, ...trained].map((cells) => ({ kind: "", cells }))),
      element("h4", "", "Conditions"),
      table(conditions.heads, conditions.rows),
      element("h4", "", "Replicas"),
      table(replicas.heads, replicas.rows),
      this.details("yaml", "Run YAML", element("pre", "", yaml)),
    ];
  }

  details(key, title, content) {
    const node = element("details", "nbt-details");
    node.open = this.open[key];
    node.addEventListener("toggle", () => (this.open[key] = node.open));
    node.append(element("summary", "", title), content);
    return node;
  }

  redraw() {
    this.charts.forEach((chart) => chart.draw());
  }
}
