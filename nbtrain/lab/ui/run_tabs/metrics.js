// The tab Metrics: every curve of the run by step, tokens or time, in charts that zoom together.

import { Chart, ChartGroup } from "../charts/chart.js";
import { metricSpec, snapSpecs } from "../charts/chart_spec.js";
import { MOST_NAMES, refused } from "../host/server.js";
import { button, checkbox, element } from "../elements/dom.js";

const METRIC_HEIGHT = 158;
const METRICS_MS = 3000;
const METRIC_POINTS = 400;
const ZOOM_MS = 250;
const AXES = { step: "By step", tokens: "By tokens", time: "By time" };
const START_SMOOTHING = 0.6;

export class Metrics {
  constructor(run) {
    this.run = run;
    this.group = new ChartGroup();
    this.group.zoomed = () => this.zoomed();
    this.charts = new Map();
    this.readAt = 0;
    this.node = element("div", "nbt-padded");
    this.axis = element("select");
    this.axis.setAttribute("aria-label", "axis of the charts");
    for (const [key, words] of Object.entries(AXES)) {
      const option = element("option", "", words);
      option.value = key;
      this.axis.append(option);
    }
    this.axis.addEventListener("change", () => this.group.zoom(null) || this.paint());
    this.find = element("input");
    Object.assign(this.find, { type: "search", placeholder: "Filter curves" });
    this.find.setAttribute("aria-label", "filter curves");
    this.find.addEventListener("input", () => this.paint());
    this.log = checkbox("Log axis", () => {
      this.charts.forEach((chart) => (chart.log = this.log.input.checked));
      this.paint();
    });
    this.note = element("span", "nbt-empty");
    const tools = element("div", "nbt-tools");
    this.csv = button("CSV", "", () => this.saveCsv());
    const reset = button("Reset zoom", "Show the whole run. You can also double-click a chart.", () =>
      this.group.zoom(null),
    );
    tools.append(this.axis, this.slider(), this.log, this.find, reset, this.csv, this.note);
    this.grid = element("div", "nbt-usage");
    this.node.append(tools, this.grid);
  }

  slider() {
    const node = element("label", "nbt-field", "Smoothing ");
    this.smoothing = element("input");
    const attributes = { type: "range", min: "0", max: "0.99", step: "0.01", value: START_SMOOTHING };
    for (const [name, value] of Object.entries(attributes)) this.smoothing.setAttribute(name, value);
    const said = element("output", "", START_SMOOTHING.toFixed(2));
    this.smoothing.addEventListener("input", () => {
      said.textContent = Number(this.smoothing.value).toFixed(2);
      this.paint();
    });
    node.append(this.smoothing, said);
    return node;
  }

  opened() {
    this.readAt = 0;
  }

  draw(snap) {
    const { server } = this.run, ended = `${snap.state} ${snap.job && snap.job.job_id}`;
    this.axis.disabled = this.csv.disabled = !server;
    if (!server) {
      this.axis.value = "step";
      this.note.textContent = "Only the main curves are shown. The others need nbtrain's server extension.";
      return this.showSpecs(snapSpecs(snap).map((spec, at) => [String(at), spec]));
    }
    const due = snap.active || this.unread ? Date.now() - this.readAt > METRICS_MS : this.endRead !== ended;
    if (due || !this.readAt) this.read(snap.active ? "" : ended);
  }

  /** Fetch the curves of the whole run, or of the zoomed range, which then has more points. */
  async read(ended = "") {
    const { server, name } = this.run;
    if (!server || this.reading) return;
    this.reading = true;
    this.readAt = Date.now();
    try {
      const words = { points: METRIC_POINTS, x: this.axis.value, ...this.range() };
      const value = await server.metrics(name, words, this.tags);
      this.tags = value.tags;
      this.value = value;
      this.endRead = ended;
      this.unread = value.reading !== undefined && value.reading < 1;
      const percent = Math.floor(100 * value.reading);
      this.note.textContent = this.unread ? `Reading the metrics: ${percent} %` : "";
      this.paint();
    } catch (error) {
      this.note.textContent = refused(error, "the curves");
      // The next snapshot triggers another read, also for a run that has ended.
      this.endRead = null;
    } finally {
      this.reading = false;
      if (this.again) this.readZoomed();
    }
  }

  range() {
    const { range } = this.group;
    if (!range || !this.value) return {};
    const begin = this.axis.value === "time" ? this.begin || 0 : 0;
    return { from: range[0] + begin, to: range[1] + begin };
  }

  zoomed() {
    clearTimeout(this.zoomTimer);
    this.zoomTimer = setTimeout(() => this.readZoomed(), ZOOM_MS);
  }

  /** Read now, or after the read in progress. For a run that has ended, no later poll would read the zoomed range. */
  readZoomed() {
    this.again = Boolean(this.reading);
    if (!this.again) this.read(this.endRead);
  }

  paint() {
    if (!this.value) return;
    const wanted = this.find.value.trim().toLowerCase(), axis = this.axis.value;
    const all = this.value.charts.filter(
      ({ title, names }) => !wanted || `${title} ${names.join(" ")}`.toLowerCase().includes(wanted),
    );
    this.shownNames = all.flatMap(({ names }) => names);
    const cut = wanted && this.shownNames.length > MOST_NAMES ? `the first ${MOST_NAMES} of ` : "";
    this.csv.title = `Save all points of ${cut}the curves that are shown`;
    const starts = Object.values(this.value.series).flatMap(({ time }) => (time.length ? [time[0]] : []));
    // While the user has zoomed in, the first point is not the first point of the run.
    if (!this.group.range || !this.begin) this.begin = starts.length ? Math.min(...starts) : 0;
    const options = { axis, begin: this.begin, smoothing: Number(this.smoothing.value) };
    this.showSpecs(all.map((chart) => [chart.title, metricSpec(chart, this.value, options)]));
    const none = this.value.tags.length ? "No curves match the filter." : "No curves yet.";
    if (!all.length) this.note.textContent = none;
    else if (/^No curve/.test(this.note.textContent)) this.note.textContent = "";
  }

  showSpecs(specs) {
    const nodes = specs.map(([key, spec]) => {
      let chart = this.charts.get(key);
      if (!chart) {
        const name = `${this.run.name}-${key.replace(/\W+/g, "-")}`;
        chart = new Chart(METRIC_HEIGHT, { group: this.group, name });
        chart.log = this.log.input.checked;
        this.charts.set(key, chart);
      }
      return [chart, spec];
    });
    const before = [...this.grid.children], now = nodes.map(([chart]) => chart.node);
    if (before.length !== now.length || before.some((node, at) => node !== now[at]))
      this.grid.replaceChildren(...now);
    nodes.forEach(([chart, spec]) => chart.show(spec));
  }

  saveCsv() {
    const { server, name } = this.run, link = element("a");
    const names = this.find.value.trim() ? this.shownNames || [] : null;
    if (names && !names.length) return;
    link.href = server.csvUrl(name, names);
    link.download = "";
    link.click();
  }

  resize() {
    this.charts.forEach((chart) => chart.draw());
  }

  dispose() {
    clearTimeout(this.zoomTimer);
  }
}
