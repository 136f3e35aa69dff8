// The ranks of a job as a strip of cells, coloured by state, computing time or memory (monitor/job/rank_strip.py). A
// click on a cell shows the rank's logs, curves and last message.

import { Chart, ChartGroup } from "../charts/chart.js";
import { usageSpec } from "../charts/chart_spec.js";
import { Clamped } from "../elements/clamp.js";
import { refused } from "../host/server.js";
import { button, choices, element } from "../elements/dom.js";

// With at most this many ranks, each cell also shows its value.
const MOST_LARGE = 16;
const RANK_CHART_HEIGHT = 120;
// Signs for the states, so that they can be recognized without colours.
const SIGNS = { bad: "!", good: "\u2713", wait: "\u2026", calm: "\u2013" };

export class Strip {
  /** `rowOf(rank)` returns a rank's row in the table of ranks, and `logsOf(row)` the elements that open its logs. */
  constructor(run, rowOf, logsOf) {
    Object.assign(this, { run, rowOf, logsOf });
    this.node = element("section", "nbt-strip");
    this.measure = element("select");
    this.measure.setAttribute("aria-label", "color the cells by");
    this.measure.addEventListener("change", () => this.paint());
    this.summary = element("span", "nbt-strip-summary");
    const tools = element("div", "nbt-tools");
    tools.append(element("h4", "", "Ranks"), this.measure, this.summary);
    this.cells = element("div", "nbt-strip-cells");
    this.cells.setAttribute("role", "group");
    this.cells.setAttribute("aria-label", "ranks");
    this.cells.addEventListener("keydown", (event) => this.key(event));
    this.note = element("p", "nbt-empty");
    this.detail = element("div", "nbt-strip-detail");
    this.detail.setAttribute("role", "region");
    this.detail.setAttribute("aria-label", "the chosen rank");
    this.detail.hidden = true;
    this.title = element("b");
    this.node.append(tools, this.cells, this.note, this.detail);
    this.chosen = null;
    this.buttons = new Map();
  }

  show(strip) {
    this.strip = strip;
    choices(this.measure, strip.measures.map(([key, title]) => [key, `By ${title}`]));
    this.note.hidden = !strip.left_out;
    this.note.textContent = `${strip.left_out} more ranks are in the table below.`;
    this.paint();
    // The curves may have new points, or another job is shown now.
    if (this.chosen !== null) this.readCharts();
  }

  /** Draw the cells. Their buttons are kept, so that the focus stays where it is. */
  paint() {
    if (!this.strip) return;
    const { cells, measures } = this.strip, key = this.measure.value;
    this.summary.textContent = (measures.find(([each]) => each === key) || ["", "", ""])[2];
    this.cells.classList.toggle("nbt-strip-large", cells.length <= MOST_LARGE);
    const ranks = cells.map(({ rank }) => rank).join();
    if (ranks !== this.ranks) this.layOut(cells);
    this.ranks = ranks;
    for (const cell of cells) this.fill(this.buttons.get(cell.rank), cell, key);
    if (this.chosen !== null) this.drawDetail();
  }

  layOut(cells) {
    this.buttons = new Map();
    const groups = new Map();
    for (const { rank, group } of cells) {
      if (!groups.has(group)) {
        const node = element("div", "nbt-strip-group");
        node.title = group;
        groups.set(group, node);
      }
      const node = button("", "", () => this.choose(rank), "nbt-cell");
      node.tabIndex = -1;
      node.dataset.rank = rank;
      this.buttons.set(rank, node);
      groups.get(group).append(node);
    }
    this.cells.replaceChildren(...groups.values());
    const first = this.buttons.get(this.chosen) || this.buttons.values().next().value;
    if (first) first.tabIndex = 0;
  }

  fill(node, { rank, group, tone, words, texts, levels, message }, key) {
    const level = key === "state" ? null : levels[key], text = texts[key] || "";
    const state = JSON.stringify([tone, words, text, level, key, message]);
    if (node.state === state) return;
    node.state = state;
    const sign = key === "state" && SIGNS[tone] ? SIGNS[tone] : "";
    const large = this.strip.cells.length <= MOST_LARGE;
    node.replaceChildren(element("b", "", large ? `rank ${rank}` : sign || String(rank)));
    if (large) node.append(element("small", "", [sign, text].filter(Boolean).join(" ")));
    node.className = `nbt-cell ${key === "state" ? `nbt-tone-${tone}` : level === undefined ? "nbt-cell-unknown" : "nbt-cell-level"}`;
    // The median is in the middle of the scale. With more colour, the number would have too little contrast.
    if (level !== null && level !== undefined) node.style.setProperty("--level", `${Math.round(28 + 22 * level)}%`);
    node.title = [words, group, message].filter(Boolean).join("\n");
    node.setAttribute("aria-label", [words, message].filter(Boolean).join(". "));
    node.setAttribute("aria-pressed", String(rank === this.chosen));
  }

  // --- keys ---

  key(event) {
    const all = [...this.buttons.values()], at = all.indexOf(document.activeElement);
    const to = at < 0 ? undefined : {
      ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1,
      ArrowDown: this.beside(all, at, 1), ArrowUp: this.beside(all, at, -1),
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.focus(all[Math.max(0, Math.min(all.length - 1, to))]);
  }

  focus(node) {
    for (const each of this.buttons.values()) each.tabIndex = each === node ? 0 : -1;
    node.focus();
  }

  /** Return the index of the nearest cell in the row above (`by` = -1) or below (1). */
  beside(all, at, by) {
    const { left, top } = all[at].getBoundingClientRect();
    const places = all.map((node) => node.getBoundingClientRect());
    const rows = [...new Set(places.map((place) => Math.round(place.top)))].sort((one, two) => one - two);
    const row = rows[rows.findIndex((each) => Math.abs(each - top) < 2) + by];
    if (row === undefined) return at;
    const there = all.map((_, index) => index).filter((index) => Math.round(places[index].top) === row);
    return there.reduce((best, index) =>
      Math.abs(places[index].left - left) < Math.abs(places[best].left - left) ? index : best);
  }

  // --- the chosen rank ---

  choose(rank) {
    this.chosen = this.chosen === rank ? null : rank;
    for (const [each, node] of this.buttons) node.setAttribute("aria-pressed", String(each === this.chosen));
    if (this.buttons.has(rank)) this.focus(this.buttons.get(rank));
    this.detail.hidden = this.chosen === null;
    this.forgetCharts();
    this.detail.state = "";
    if (this.chosen === null) return;
    this.drawDetail();
    this.readCharts();
  }

  drawDetail() {
    const cell = this.strip.cells.find(({ rank }) => rank === this.chosen);
    this.detail.hidden = !cell;
    if (!cell) return;
    this.title.textContent = `${cell.words} \u00b7 ${cell.group}`;
    // The buttons stay while only the step advances, so that the focus and an open menu stay too.
    const row = this.rowOf(this.chosen), state = JSON.stringify([this.chosen, cell.message, row.logs]);
    if (this.detail.state === state) return;
    this.detail.state = state;
    const head = element("div", "nbt-tools");
    head.append(this.title, ...this.logsOf(row));
    head.append(button("Close", "", () => this.choose(this.chosen)));
    const message = cell.message ? [Clamped.of(cell.message)] : [];
    this.detail.classList.toggle("nbt-strip-failed", cell.tone === "bad");
    this.curves = this.curves || element("div", "nbt-usage");
    this.detail.replaceChildren(head, ...message, this.curves);
  }

  forgetCharts() {
    (this.charts || []).forEach((chart) => chart.dispose());
    this.charts = [];
    this.curves = element("div", "nbt-usage");
    this.group = new ChartGroup();
    this.reading = null;
  }

  /** Read the resources of the chosen rank over time. */
  async readCharts() {
    const { run } = this, rank = this.chosen, reading = `${rank} ${run.job}`;
    if (!run.server || this.reading === reading) return;
    this.reading = reading;
    try {
      const words = new URLSearchParams({ rank, ...(run.job ? { job: run.job } : {}) });
      const { charts } = await run.server.call(`run/${run.name}/job/rank?${words}`);
      // Another rank or job was chosen meanwhile.
      if (this.reading !== reading) return;
      const { group } = this;
      while (this.charts.length > charts.length) this.charts.pop().dispose();
      while (this.charts.length < charts.length) {
        const name = `${run.name}-rank-${rank}-${this.charts.length}`;
        this.charts.push(new Chart(RANK_CHART_HEIGHT, { group, name }));
      }
      if (this.curves.childElementCount !== this.charts.length)
        this.curves.replaceChildren(...this.charts.map((chart) => chart.node));
      charts.forEach((chart, at) => this.charts[at].show(usageSpec(chart)));
      if (!charts.length) this.curves.textContent = "There are no measurements for this rank alone.";
    } catch (error) {
      if (this.reading === reading) this.curves.textContent = refused(error, `the curves of rank ${rank}`);
    } finally {
      if (this.reading === reading) this.reading = null;
    }
  }

  resize() {
    (this.charts || []).forEach((chart) => chart.draw());
  }
}
