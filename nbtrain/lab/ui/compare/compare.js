// Runs side by side: one chart per scalar with the curves of all runs, and tables of settings and results.
//
// The user can hide, remove and add runs, and choose a baseline with which the results are compared. A run that cannot
// be read keeps its chip, with the reason below; the other runs are compared without it.

import { Chart, ChartGroup } from "../charts/chart.js";
import { lineLook, metricSpec, toldApart } from "../charts/chart_spec.js";
import { CompareChips, MOST_COMPARED } from "./compare_chips.js";
import { PublishedFigures } from "./compare_published.js";
import { comparedResults, comparedSettings, TABLE_FORMATS, tablesText } from "./compare_tables.js";
import { refused } from "../host/server.js";
import { addStyle } from "../elements/style.js";
import { DataTable } from "../elements/table.js";
import { button, checkbox, choices, copyText, element, known, menu } from "../elements/dom.js";

const COMPARED_HEIGHT = 190;
const COMPARED_POINTS = 400;
const COMPARED_MS = 5000;
// The metrics of long runs are read in parts, and a response has only what was read so far.
const UNREAD_MS = 800;
const COMPARED_SMOOTHING = 0.6;
const COPIED_MS = 1500;
// The most useful curves come first; all others follow.
const FIRST_COMPARED = [
  "loss",
  "validation_loss",
  "reward_margin",
  "reward_accuracy",
  "tokens_per_second",
  "grad_norm",
];
const COMPARED_AXES = {
  step: "By step",
  tokens: "By tokens",
  flops: "By model FLOPs",
  time: "By time since the start",
  cost: "By cost",
};
const AXIS_NAMES = { flops: "FLOPs", cost: "cost" };

/**
 * Show the runs `names` side by side in `root`. Returns a function that ends the view.
 *
 * server   Server of server.js; null draws only `value`
 * host     the actions that this page offers (host.js)
 * published  {file, text} of published figures that were passed to the cell; if missing, those that this browser keeps
 * value    {tables, curves: {name: response of the route metrics}} from the time when the cell ran
 * changed  called with the names when the user adds or removes a run
 */
export function mountCompare(root, { server, names, host = {}, value = null, published, changed = () => {} }) {
  const compare = new Compare(root, { server, names, host, published, changed });
  compare.begin(value);
  return () => compare.end();
}

class Compare {
  constructor(root, { server, names, host, published, changed }) {
    Object.assign(this, { root, server, host, changed, names: [...names] });
    addStyle();
    root.classList.add("nbt-root", "nbtrain-compare");
    this.curves = new Map();
    this.tables = null;
    this.failures = new Map();
    this.hidden = new Set();
    this.group = new ChartGroup();
    this.charts = new Map();
    this.smoothing = COMPARED_SMOOTHING;
    this.turn = 0;
    this.published = new PublishedFigures({ compare: this, given: published });
    this.note = element("div", "nbt-empty");
    this.note.setAttribute("aria-live", "polite");
    this.chips = new CompareChips(this);
    this.figures = new DataTable("results of the runs", { sortable: false });
    this.settings = new DataTable("settings of the runs", { sortable: false });
    this.settingsNote = element("p", "nbt-empty", "");
    this.grid = element("div", "nbt-usage");
    const page = element("div", "nbt-padded");
    page.append(this.chips.node, this.tools(), this.note, this.grid, this.resultsHead(), this.figures.node,
      this.settingsHead(), this.settingsNote, this.settings.node);
    root.replaceChildren(page);
    this.resized = new ResizeObserver(() => this.charts.forEach((chart) => chart.draw()));
    this.resized.observe(root);
  }

  /** The runs whose curves and columns are shown, in the order of their chips. */
  get shown() {
    return this.names.filter((name) => !this.hidden.has(name) && !this.failures.has(name));
  }

  /** Groups of shown runs that differ only in their seeds. */
  get allGroups() {
    return this.tables ? seedGroups(this.tables, this.shown) : [];
  }

  /** The groups of runs that are drawn as one line. */
  get groups() {
    return this.seeds.input.checked ? this.allGroups : [];
  }

  /** Return the colour and dashes of a run's lines. A run that is drawn in a group has those of the group. */
  lookOf(name) {
    const group = this.groups.find((names) => names.includes(name));
    return lineLook(this.names.indexOf(group ? group[0] : name));
  }

  // --- controls ---

  tools() {
    const node = element("div", "nbt-tools");
    this.axis = element("select");
    this.axis.setAttribute("aria-label", "axis of the charts");
    choices(this.axis, Object.entries(COMPARED_AXES));
    this.axis.addEventListener("change", () => this.group.zoom(null) || this.paint());
    const log = checkbox("Log axis", () => {
      this.logAxis = log.input.checked;
      this.charts.forEach((chart) => (chart.log = this.logAxis));
      this.paint();
    });
    this.all = checkbox("All curves", () => this.paint());
    this.seeds = checkbox("Seeds as a band", () => this.paint());
    this.seeds.title = "Draw runs that differ only in their seed as their mean, with a band from the lowest to the highest value";
    node.append(this.axis, this.smoothingSlider(), log, this.all, this.seeds);
    return node;
  }

  smoothingSlider() {
    const label = element("label", "nbt-field", "Smoothing "), input = element("input");
    const words = element("output", "", COMPARED_SMOOTHING.toFixed(2));
    Object.assign(input, { type: "range", min: 0, max: 0.99, step: 0.01, value: COMPARED_SMOOTHING });
    input.addEventListener("input", () => {
      this.smoothing = Number(input.value);
      words.textContent = this.smoothing.toFixed(2);
      this.paint();
    });
    label.append(input, words);
    return label;
  }

  resultsHead() {
    const node = element("div", "nbt-tools"), title = element("h4", "", "Results");
    const label = element("label", "nbt-field", "Baseline ");
    this.baseline = element("select");
    this.baseline.addEventListener("change", () => this.paintTables());
    label.append(this.baseline);
    this.onlyDifferent = checkbox("Only differences", () => this.paintTables());
    this.copy = menu("Copy", "Copy the results and the settings as a table", ...TABLE_FORMATS.map((format) =>
      button(`As ${format}`, "", () => this.copied(format))));
    if (this.host.linkTo)
      this.copy.list.append(button("Link", "Copy a link that opens this comparison in JupyterLab", async () => {
        await copyText(this.host.linkTo(this.names));
        this.copyDone("Copied the link");
      }));
    node.append(title, label, this.onlyDifferent, this.copy, this.published.node);
    return node;
  }

  settingsHead() {
    const node = element("div", "nbt-tools");
    this.onlyDiffering = checkbox("Only differences", () => this.paintTables());
    this.onlyDiffering.input.checked = true;
    node.append(element("h4", "", "Settings"), this.onlyDiffering);
    return node;
  }

  async copied(format) {
    await copyText(tablesText(format, [this.results, this.compared].filter(({ rows }) => rows.length)));
    this.copyDone(`Copied as ${format}`);
  }

  copyDone(words) {
    const summary = this.copy.querySelector("summary");
    summary.textContent = words;
    setTimeout(() => (summary.textContent = "Copy"), COPIED_MS);
  }

  // --- the choice of runs ---

  hide(name, hidden) {
    if (hidden) this.hidden.add(name);
    else this.hidden.delete(name);
    this.paint();
  }

  remove(name) {
    this.names = this.names.filter((other) => other !== name);
    [this.hidden, this.curves, this.failures].forEach((kept) => kept.delete(name));
    this.changedNames();
  }

  add(name) {
    if (this.names.includes(name) || this.names.length >= MOST_COMPARED) return;
    this.names.push(name);
    this.changedNames();
  }

  changedNames() {
    this.changed([...this.names]);
    this.paint();
    if (this.server) this.read();
  }

  // --- data ---

  begin(value) {
    if (value) {
      this.took(value.tables);
      Object.entries(value.curves).forEach(([name, answer]) => this.curves.set(name, answer));
    }
    this.paint();
    if (this.server) this.read();
    else this.note.textContent =
      "These values are from the time when the cell ran. This page cannot reach a Jupyter server that has these runs.";
  }

  /** Store new tables. The first tables of a sweep turn on the band for seeds; the user can turn it off. */
  took(tables) {
    if (!this.tables && tables.sweep) this.seeds.input.checked = true;
    this.tables = tables;
  }

  async read() {
    const turn = (this.turn += 1);
    clearTimeout(this.timer);
    let again = true, unread = false;
    if (this.root.isConnected && !document.hidden && this.names.length) {
      try {
        const active = await this.readRuns(turn);
        if (this.ended || turn !== this.turn) return;
        const least = Math.min(1, ...[...this.curves.values()].map(({ reading }) => reading));
        unread = least < 1;
        again = active || unread;
        this.note.textContent = unread ? `Reading the metrics: ${Math.floor(100 * least)} %` : "";
      } catch (error) {
        if (this.ended || turn !== this.turn) return;
        this.note.textContent = refused(error, "the comparison");
      }
      this.paint();
    }
    const wait = unread ? UNREAD_MS : COMPARED_MS;
    if (!this.ended && again && this.names.length) this.timer = setTimeout(() => this.read(), wait);
  }

  /** Read the tables and the curves of each run. Resolves to whether a run is active. */
  async readRuns(turn) {
    const tables = await this.published.tables(this.names);
    if (turn !== this.turn) return false;
    this.took(tables);
    this.failures = new Map(Object.entries(tables.refused));
    const unreadable = [];
    for (const name of tables.names) {
      try {
        const known = this.curves.get(name);
        const answer = await this.server.metrics(name, { points: COMPARED_POINTS }, known && known.tags);
        if (turn !== this.turn) return false;
        this.curves.set(name, answer);
      } catch (error) {
        // If the server does not respond, the error concerns all runs, and is reported for the whole page.
        if (!error.status) throw error;
        unreadable.push([name, error.message]);
      }
    }
    this.unreadable = new Map(unreadable);
    return tables.active;
  }

  // --- drawing ---

  paint() {
    this.chips.draw();
    this.paintCharts();
    this.paintTables();
  }

  paintCharts() {
    const { shown } = this, scales = (this.tables && this.tables.scales) || {};
    const able = Object.entries(COMPARED_AXES).filter(([key]) => {
      if (key === "flops") return shown.some((name) => scales[name] && scales[name].flops_per_token);
      return key !== "cost" || shown.some((name) => scales[name] && scales[name].money_per_second);
    });
    choices(this.axis, able);
    const { groups } = this;
    this.seeds.hidden = !this.allGroups.length;
    const specs = comparedSpecs(shown, this.curves, {
      axis: this.axis.value,
      smoothing: this.smoothing,
      all: this.all.input.checked,
      looks: (name) => this.lookOf(name),
      scales,
      groups,
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

  paintTables() {
    const { shown, tables } = this;
    const columns = [...shown, ...((tables && tables.published) || [])];
    choices(this.baseline, [["", "none"], ...columns.map((name) => [name, name])]);
    if (!tables) return;
    const baseline = this.baseline.value;
    this.results = comparedResults(tables, shown, { baseline, different: this.onlyDifferent.input.checked });
    this.compared = comparedSettings(tables, shown, { different: this.onlyDiffering.input.checked });
    this.figures.show(this.results.heads, this.results.rows);
    this.settings.show(this.compared.heads, this.compared.rows);
    this.figures.node.hidden = !shown.length;
    this.settings.node.hidden = !this.compared.rows.length || !shown.length;
    this.settingsNote.hidden = !this.settings.node.hidden || !shown.length;
    this.settingsNote.textContent = shown.length > 1 ? "The runs have the same settings." : "Only one run is shown.";
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.resized.disconnect();
  }
}

/** Return a curve with values for the chosen axis: FLOPs computed from tokens, or cost from the time of the devices. */
function scaled(part, axis, scale) {
  if (axis === "flops") return { ...part, flops: part.tokens.map((tokens) => tokens * scale.flops_per_token) };
  if (axis === "cost") return { ...part, cost: part.time.map((time) => time * scale.money_per_second) };
  return part;
}

function hasAxis(axis, scale) {
  if (axis === "flops") return known(scale.flops_per_token);
  return axis !== "cost" || known(scale.money_per_second);
}

/**
 * Return [[name of a scalar, spec for chart.js], ...]. Each chart has one line for each run that has the scalar.
 *
 * looks(name)   {color, dash} of a run's lines
 * scales        {name: {flops_per_token, money_per_second, currency}}
 * groups        runs that are drawn as one line with a band: [[name, ...], ...]
 */
export function comparedSpecs(names, curves, options) {
  const { axis, smoothing, all, looks = (name) => lineLook(names.indexOf(name)), scales = {} } = options;
  const { groups = [] } = options;
  const shown = names.filter((name) => curves.has(name)).map((name) => curves.get(name)), tags = new Map();
  for (const answer of shown) for (const row of answer.tags) tags.set(row.tag, row);
  const charts = shown.flatMap((answer) => answer.charts);
  // An output that a cell saved has only the curves that the page opens with (widgets/compare.py).
  const named = [...new Set(charts.flatMap((chart) => chart.names))].filter((name) => tags.has(name));
  const first = FIRST_COMPARED.filter((name) => named.includes(name));
  // All curves of a run count from its first point, because validation curves begin later.
  const began = new Map([...curves].map(([name, { series }]) =>
    [name, Math.min(...Object.values(series).flatMap(({ time }) => time.slice(0, 1)))]));
  const wanted = all ? [...first, ...named.filter((name) => !first.includes(name))] : first;
  return wanted.map((tag) => {
    const series = {}, scale = (name) => scales[name] || {};
    const having = names.filter((name) =>
      curves.get(name)?.series[tag]?.value.length && hasAxis(axis, scale(name)));
    for (const name of having) {
      const part = curves.get(name).series[tag], begin = began.get(name);
      series[name] = scaled({ ...part, time: part.time.map((time) => time - begin) }, axis, scale(name));
    }
    // The title of a task is its name, whose first letter stays as it is.
    const row = tags.get(tag), at = tag.startsWith("task/") ? 0 : 1;
    const title = row.title.slice(0, at).toUpperCase() + row.title.slice(at);
    const answer = { tags: [row], series, marks: [] };
    const spec = metricSpec({ title, of: tag, names: having }, answer, { axis, begin: 0, smoothing });
    const currencies = new Set(having.map((name) => scale(name).currency).filter(Boolean));
    const xName = axis === "cost" ? `cost, ${[...currencies].join(" or ")}` : AXIS_NAMES[axis] || spec.xName;
    // Curves that would cover each other get different dashes.
    const lines = toldApart(spec.lines.map((line) => ({ ...line, ...looks(line.name) })));
    const shape = { xName, namedAbove: true, endNames: true, begin: undefined, where: undefined };
    return [tag, { ...spec, ...shape, lines: seedBands(lines, groups) }];
  });
}

/**
 * Draw the lines of runs that differ only in their seed as one line: the mean over the runs, with a band from the lowest
 * to the highest value. The line has a point where the run with the most points has one and at least two runs have a
 * value. The other runs are interpolated there, because runs are rarely logged at the same time or cost.
 * `groups` is [[name, ...], ...].
 */
export function seedBands(lines, groups) {
  const drawn = [...lines];
  for (const names of groups) {
    const own = drawn.filter((line) => names.includes(line.name));
    if (own.length < 2) continue;
    const places = own.reduce((one, two) => (two.x.length > one.x.length ? two : one)).x;
    const points = places
      .map((at) => [at, own.map((line) => valueBetween(line, at)).filter(Number.isFinite)])
      .filter(([, values]) => values.length > 1);
    const mean = {
      ...own[0],
      label: `${own.length} seeds of ${commonBegin(own.map(({ label }) => label))}`,
      note: "mean and range",
      dash: "",
      bad: undefined,
      x: points.map(([at]) => at),
      y: points.map(([, values]) => values.reduce((sum, value) => sum + value, 0) / values.length),
      low: points.map(([, values]) => Math.min(...values)),
      high: points.map(([, values]) => Math.max(...values)),
    };
    drawn.splice(drawn.indexOf(own[0]), 1, mean);
    for (const line of own.slice(1)) drawn.splice(drawn.indexOf(line), 1);
  }
  return drawn;
}

/** Return the common beginning of names without the seed: "gpt-125m" for gpt-125m-seed-1 and gpt-125m-seed-2. */
function commonBegin(names) {
  const differs = [...names[0]].findIndex((letter, at) => names.some((name) => name[at] !== letter));
  const begin = names[0].slice(0, differs < 0 ? undefined : differs).replace(/[-_.]*(seed)?[-_.]*\d*$/, "");
  return begin || names[0];
}

/** Return the value of a line at `wanted`, interpolated between its points; NaN outside the range of the line. */
function valueBetween({ x, y }, wanted) {
  const after = x.findIndex((at) => at >= wanted);
  if (after < 0 || (after === 0 && x[0] > wanted)) return NaN;
  if (x[after] === wanted || after === 0) return y[after];
  const share = (wanted - x[after - 1]) / (x[after] - x[after - 1]);
  return y[after - 1] + share * (y[after] - y[after - 1]);
}

// Whether a key is the seed of a section, such as model.seed.
const isSeed = (key) => key.split(".").pop() === "seed";

/** Return groups of the runs `shown` whose settings differ only in their seeds: [[name, ...], ...]. */
export function seedGroups({ settings }, shown) {
  const groups = new Map(), rows = settings.rows.filter(([key]) => !isSeed(key));
  const seeds = settings.rows.filter(([key]) => isSeed(key));
  for (const name of shown) {
    const column = settings.heads.indexOf(name);
    if (column < 1) continue;
    const others = JSON.stringify(rows.map((row) => row[column]));
    groups.set(others, [...(groups.get(others) || []), name]);
  }
  // Runs with the same seed are repetitions, which say nothing about the spread over seeds.
  const isSampled = (names) => {
    const columns = names.map((name) => settings.heads.indexOf(name));
    return new Set(columns.map((column) => JSON.stringify(seeds.map((row) => row[column])))).size > 1;
  };
  return [...groups.values()].filter(isSampled);
}
