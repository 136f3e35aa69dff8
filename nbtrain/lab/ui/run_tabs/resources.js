// The tab Resources: charts of usage over time with requests and limits, and a table of latest, mean and maximum values.

import { Chart, ChartGroup } from "../charts/chart.js";
import { usageSpec } from "../charts/chart_spec.js";
import { DataTable } from "../elements/table.js";
import { element } from "../elements/dom.js";

const USAGE_HEIGHT = 132;

export class Resources {
  constructor(run) {
    this.run = run;
    this.charts = [];
    this.group = new ChartGroup();
    this.node = element("div", "nbt-padded");
    this.empty = element("p", "nbt-empty", "Reading the run's files...");
    this.warnings = element("div", "nbt-wrong");
    this.warnings.setAttribute("role", "status");
    this.grid = element("div", "nbt-usage");
    this.figures = new DataTable("latest, mean and maximum values", { choose: true, pageSize: 30 });
    const details = element("details", "nbt-details");
    details.append(element("summary", "", "Latest, mean and maximum values"), this.figures.node);
    this.node.append(this.empty, this.warnings, this.grid, details);
  }

  draw(snap, kept) {
    if (!kept) return;
    const { charts, figures, warnings = [] } = kept;
    this.empty.hidden = charts.length > 0;
    this.empty.textContent = "No measurements yet.";
    this.warnings.hidden = !warnings.length;
    if (this.warnings.textContent !== warnings.join("")) this.warnings.replaceChildren(...warnings.map((words) => element("p", "", words)));
    while (this.charts.length < charts.length) {
      const name = `${this.run.name}-resources-${this.charts.length}`;
      this.charts.push(new Chart(USAGE_HEIGHT, { group: this.group, name }));
    }
    this.charts.splice(charts.length).forEach((chart) => chart.dispose());
    if (this.grid.childElementCount !== charts.length)
      this.grid.replaceChildren(...this.charts.map((chart) => chart.node));
    charts.forEach((chart, at) => this.charts[at].show(usageSpec(chart)));
    this.figures.show(figures.heads, figures.rows);
  }

  resize() {
    this.charts.forEach((chart) => chart.draw());
  }
}
