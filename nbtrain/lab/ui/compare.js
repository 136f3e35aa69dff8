// Runs side by side: one chart per scalar with the curves of all runs, and tables of settings and results.

import { Chart, ChartGroup } from "./chart.js";
import { metricSpec, toldApart } from "./chart_spec.js";
import { refused } from "./server.js";
import { addStyle } from "./style.js";
import { DataTable } from "./table.js";
import { checkbox, element } from "./words.js";

const COMPARED_HEIGHT = 190;
const COMPARED_POINTS = 400;
const COMPARED_MS = 5000;
// For long runs, an answer has only the part of the event files that was read so far.
const UNREAD_MS = 800;
const COMPARED_SMOOTHING = 0.6;
const NUM_COLORS = 8;
// The most useful curves come first; all others follow.
const FIRST_COMPARED = [
  "loss",
  "validation_loss",
  "reward_margin",
  "reward_accuracy",
  "tokens_per_second",
  "grad_norm",
];
const COMPARED_AXES = { step: "by step", tokens: "by tokens", time: "by time since the start" };

/**
 * Show the runs `names` side by side in `root`; returns a function that ends it.
 *
 * server   Server of server.js, or null: then only `value` is drawn
 * host     the actions that this page offers (host.js)
 * value    {tables, curves: {name: answer of the route metrics}} at the time when the cell ran
 */
export function mountCompare(root, { server, names, host = {}, value = null }) {
  const compare = new Compare(root, { server, names, host });
  compare.begin(value);
  return () => compare.end();
}

class Compare {
  constructor(root, { server, names, host }) {
    Object.assign(this, { root, server, names, host });
    addStyle();
    root.classList.add("nbt-root", "nbtrain-compare");
    this.curves = new Map();
    this.group = new ChartGroup();
    this.charts = new Map();
    this.smoothing = COMPARED_SMOOTHING;
    this.note = element("div", "nbt-empty");
    this.note.setAttribute("aria-live", "polite");
    this.figures = new DataTable("results of the runs", { sortable: false });
    this.settings = new DataTable("settings that differ", { sortable: false });
    this.settingsNote = element("p", "nbt-empty", "");
    this.grid = element("div", "nbt-usage");
    const page = element("div", "nbt-padded");
    page.append(
      this.head(),
      this.tools(),
      this.note,
      this.grid,
      element("h4", "", "Results"),
      this.figures.node,
      element("h4", "", "Settings that differ"),
      this.settingsNote,
      this.settings.node,
    );
    root.replaceChildren(page);
    this.resized = new ResizeObserver(() => this.charts.forEach((chart) => chart.draw()));
    this.resized.observe(root);
  }

  head() {
    const node = element("div", "nbt-tools");
    this.names.forEach((name, at) => {
      const open = element(this.host.openRun ? "button" : "span", "", name);
      open.style.borderLeft = `4px solid var(--nbt-c${at % NUM_COLORS})`;
      open.style.paddingLeft = "6px";
      if (this.host.openRun) {
        open.type = "button";
        open.title = `Open ${name}`;
        open.addEventListener("click", () => this.host.openRun(name));
      }
      node.append(open);
    });
    return node;
  }

  tools() {
    const node = element("div", "nbt-tools");
    this.axis = element("select");
    this.axis.setAttribute("aria-label", "axis of the charts");
    for (const [key, words] of Object.entries(COMPARED_AXES)) {
      const option = element("option", "", words);
      option.value = key;
      this.axis.append(option);
    }
    this.axis.addEventListener("change", () => this.group.zoom(null) || this.paint());
    const smooth = checkbox("smoothed", () => {
      this.smoothing = smooth.input.checked ? COMPARED_SMOOTHING : 0;
      this.paint();
    });
    smooth.input.checked = true;
    const log = checkbox("log axis", () => {
      this.logAxis = log.input.checked;
      this.charts.forEach((chart) => (chart.log = this.logAxis));
      this.paint();
    });
    this.all = checkbox("all curves", () => this.paint());
    node.append(this.axis, smooth, log, this.all);
    return node;
  }

  begin(value) {
    if (value) {
      this.showTables(value.tables);
      Object.entries(value.curves).forEach(([name, answer]) => this.curves.set(name, answer));
      this.paint();
    }
    if (this.server) this.read();
    else this.note.textContent =
      "These values are from when the cell ran: this page cannot reach a Jupyter server that has these runs.";
  }

  async read() {
    if (this.ended) return;
    const { server, names } = this;
    let active = false, unread = false;
    if (this.root.isConnected && !document.hidden) {
      try {
        const tables = await server.call(`compare?${new URLSearchParams({ runs: names.join(",") })}`);
        this.showTables(tables);
        active = tables.active;
        for (const name of names) await this.readCurves(name);
        if (this.ended) return;
        const least = Math.min(...[...this.curves.values()].map(({ reading }) => reading));
        unread = least < 1;
        this.note.textContent = unread ? `Reading the event files: ${Math.floor(100 * least)} %` : "";
        this.paint();
      } catch (error) {
        this.note.textContent = refused(error, "the comparison");
        active = true;
      }
    } else active = true;
    const wait = unread ? UNREAD_MS : COMPARED_MS;
    if (!this.ended && (active || unread)) this.timer = setTimeout(() => this.read(), wait);
  }

  async readCurves(name) {
    const known = this.curves.get(name);
    const answer = await this.server.metrics(name, { points: COMPARED_POINTS }, known && known.tags);
    this.curves.set(name, answer);
  }

  showTables({ figures, settings }) {
    const rows = (table) => table.rows.map((cells) => ({ kind: "", cells }));
    this.figures.show(figures.heads, rows(figures));
    this.settings.show(settings.heads, rows(settings));
    this.settings.node.hidden = !settings.rows.length;
    this.settingsNote.textContent = settings.rows.length ? "" : "The runs have the same settings.";
  }

  paint() {
    const specs = comparedSpecs(this.names, this.curves, {
      axis: this.axis.value,
      smoothing: this.smoothing,
      all: this.all.input.checked,
    });
    const charts = specs.map(([key, spec]) => {
      if (!this.charts.has(key)) {
        const chart = new Chart(COMPARED_HEIGHT, { group: this.group, name: `compare-${key}` });
        chart.log = Boolean(this.logAxis);
        this.charts.set(key, chart);
      }
      return [this.charts.get(key), spec];
    });
    const before = [...this.grid.children], now = charts.map(([chart]) => chart.node);
    if (before.length !== now.length || before.some((node, at) => node !== now[at]))
      this.grid.replaceChildren(...now);
    charts.forEach(([chart, spec]) => chart.show(spec));
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.resized.disconnect();
  }
}

/** [[name of a scalar, spec for chart.js], ...]: one line for each run that has it. */
export function comparedSpecs(names, curves, { axis, smoothing, all }) {
  const tags = new Map();
  for (const answer of curves.values()) for (const row of answer.tags) tags.set(row.tag, row);
  const charts = [...curves.values()].flatMap((answer) => answer.charts);
  // An output that a cell saved has only the curves that the page opens with (widgets/compare.py).
  const known = [...new Set(charts.flatMap((chart) => chart.names))].filter((name) => tags.has(name));
  const first = FIRST_COMPARED.filter((name) => known.includes(name));
  // All curves of a run count from its first point, because validation curves begin later.
  const began = new Map([...curves].map(([name, { series }]) =>
    [name, Math.min(...Object.values(series).flatMap(({ time }) => time.slice(0, 1)))]));
  const wanted = all ? [...first, ...known.filter((name) => !first.includes(name))] : first;
  return wanted.map((tag) => {
    const series = {}, having = names.filter((name) => curves.get(name)?.series[tag]?.value.length);
    for (const name of having) {
      const part = curves.get(name).series[tag], begin = began.get(name);
      series[name] = { ...part, time: part.time.map((time) => time - begin) };
    }
    // The title of a task is its name, which is shown unchanged.
    const row = tags.get(tag), at = tag.startsWith("task/") ? 0 : 1;
    const title = row.title.slice(0, at).toUpperCase() + row.title.slice(at);
    const answer = { tags: [row], series, marks: [] };
    const spec = metricSpec({ title, of: tag, names: having }, answer, { axis, begin: 0, smoothing });
    const lines = spec.lines.map((line) => ({ ...line, color: `c${names.indexOf(line.name) % NUM_COLORS}` }));
    return [tag, { ...spec, lines: toldApart(lines), named: true, namedAbove: true, begin: undefined }];
  });
}
