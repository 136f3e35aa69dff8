// The tab Metrics: every curve of the run, by step, tokens or time.

import { Chart, ChartGroup } from "./chart.js";
import { snapSpecs } from "./chart_spec.js";
import { element } from "./words.js";

const METRIC_HEIGHT = 150;

export class Metrics {
  constructor(run) {
    this.run = run;
    this.group = new ChartGroup();
    this.charts = [];
    this.node = element("div", "nbt-padded");
    this.grid = element("div", "nbt-usage");
    this.node.append(this.grid);
  }

  draw(snap) {
    const specs = snapSpecs(snap);
    while (this.charts.length < specs.length) {
      this.charts.push(new Chart(METRIC_HEIGHT, { group: this.group, name: `${this.run.name}-metrics` }));
      this.grid.append(this.charts[this.charts.length - 1].node);
    }
    specs.forEach((spec, at) => this.charts[at].show(spec));
  }

  resize() {
    this.charts.forEach((chart) => chart.draw());
  }
}
