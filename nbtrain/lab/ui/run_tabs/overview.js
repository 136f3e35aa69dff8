// The tab Overview: current values and curves, basic info, conditions, faults with their cost, and events.

import { Chart, ChartGroup } from "../charts/chart.js";
import { snapSpecs } from "../charts/chart_spec.js";
import { Clamped } from "../elements/clamp.js";
import { LifeBar } from "./life.js";
import { DataTable, pairRow } from "../elements/table.js";
import { age, choices, copyButton, drawEach, element, stamp } from "../elements/dom.js";

// Heights of a snapshot's charts in pixels, the large one first.
const CHART_HEIGHTS = [226, 104, 104];
const EVENTS_ON_A_PAGE = 15;
// A longer text of the basic info is shown in three lines.
const LONG_TEXT = 160;
// Minimum width of a tile, in pixels; a narrow panel has two tiles per row.
const TILE_WIDTH = 130, NARROW_WIDTH = 220;
// Rows of a snapshot that the job page has too.
const OF_JOB = ["backend", "command", "job"];

/** Return how many tiles a row has, so that the rows are as equal in length as possible. */
export function tileColumns(count, width) {
  const most = Math.max(width < NARROW_WIDTH ? 1 : 2, Math.floor(width / TILE_WIDTH));
  return Math.max(1, Math.ceil(count / Math.ceil(count / most)));
}

export class Overview {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-overview");
    this.tiles = element("div", "nbt-tiles");
    const charts = element("div", "nbt-charts"), group = new ChartGroup();
    const names = ["loss", "learning-rate", "throughput"];
    const named = (at) => ({ group, name: `${run.name}-${names[at]}` });
    this.charts = CHART_HEIGHTS.map((height, at) => new Chart(height, named(at)));
    charts.append(...this.charts.map((chart) => chart.node));
    this.basics = element("table", "nbt-pairs");
    this.basics.setAttribute("aria-label", "basic info");
    const line = `nb.open_run("${run.name}")`;
    this.copied = {};
    this.copyJob = copyButton("Copy job ID", "Copy the ID of the job", () => this.copied.job);
    this.copyCommand = copyButton("Copy command", "Copy the command of the job", () => this.copied.command);
    const copies = element("div", "nbt-tools");
    copies.append(this.copyJob, this.copyCommand, copyButton("Copy notebook code", line, () => line));
    this.conditions = new DataTable("conditions");
    const ago = (time) => `${age(Date.now() / 1000 - time)} ago`;
    this.events = new DataTable("events", { pageSize: EVENTS_ON_A_PAGE, time: ago });
    this.events.order = { column: 0, direction: -1 };
    this.events.filter = (row) => this.wanted(row);
    this.kind = element("select");
    this.kind.setAttribute("aria-label", "show events by type");
    this.object = element("select");
    this.object.setAttribute("aria-label", "show events by object");
    this.find = element("input");
    Object.assign(this.find, { type: "search", placeholder: "Filter events" });
    this.find.setAttribute("aria-label", "filter events");
    for (const control of [this.kind, this.object, this.find])
      control.addEventListener("input", () => {
        this.events.page = 0;
        this.events.draw();
      });
    this.events.tool(this.kind, this.object, this.find);
    this.life = new LifeBar();
    this.lifeTitle = element("h4", "", "Life of the job");
    this.lifeTitle.hidden = this.life.node.hidden = true;
    this.faults = new DataTable("faults");
    this.faultsTitle = element("h4", "", "Faults and their cost");
    this.faultsTitle.hidden = this.faults.node.hidden = true;
    const happened = element("div", "nbt-padded"), facts = element("div", "nbt-padded nbt-facts");
    const titled = (title, node) => [element("h4", "", title), node];
    happened.append(this.lifeTitle, this.life.node, ...titled("Events", this.events.node));
    facts.append(...titled("Basic info", this.basics), copies, ...titled("Conditions", this.conditions.node));
    facts.append(this.faultsTitle, this.faults.node);
    // Curves and events on the left, facts on the right; in a narrow panel, the facts come below.
    const columns = element("div", "nbt-columns"), first = element("div", "nbt-first-column");
    first.append(charts, happened);
    columns.append(first, facts);
    this.reading = element("p", "nbt-empty nbt-reading");
    this.node.append(this.tiles, this.reading, columns);
  }

  wanted(row) {
    const kind = this.kind.value, text = this.find.value.trim().toLowerCase();
    const cells = row.cells.join(" ").toLowerCase();
    const fits = !kind || (kind === "warning" ? row.kind === "warning" : row.cells.includes(kind.slice(2)));
    const object = this.object.value, mine = !object || row.cells[this.objectAt] === object;
    return fits && mine && cells.includes(text);
  }

  draw(snap, kept) {
    const shown = snap.shown;
    drawEach(this.tiles, shown.tiles, ([label, value, unit]) => {
      const node = element("div", "nbt-tile"), strong = element("strong", "", value);
      node.title = `${label}: ${value} ${unit || ""}`.trim();
      if (unit) strong.append(element("small", "", unit));
      node.append(element("span", "", label), strong);
      return node;
    });
    this.layTiles();
    const part = snap.reading ?? 1;
    this.reading.hidden = part >= 1;
    this.reading.textContent = `The curves are incomplete: ${Math.floor(100 * part)} % of the metrics have been read.`;
    snapSpecs(snap).forEach((spec, at) => this.charts[at].show(spec));
    this.drawBasics(snap, kept);
    this.lifeTitle.hidden = this.life.node.hidden = !(kept && kept.life);
    if (kept && kept.life) this.life.show(kept.life);
    this.faultsTitle.hidden = this.faults.node.hidden = !(kept && kept.faults.rows.length);
    if (kept) {
      this.conditions.show(kept.conditions.heads, kept.conditions.rows);
      this.faults.show(kept.faults.heads, kept.faults.rows);
      const rows = kept.events.rows, warnings = rows.filter(({ kind }) => kind === "warning").length;
      const reasons = [...new Set(rows.map(({ cells }) => cells[1]))].sort();
      const options = [["", `All events (${rows.length})`], ["warning", `Warnings (${warnings})`]];
      choices(this.kind, [...options, ...reasons.map((reason) => [`r:${reason}`, reason])]);
      this.chooseObjects(rows, kept.events.heads.indexOf("object") - 1);
      this.events.show(["age", ...kept.events.heads.slice(1)], rows);
    } else {
      const rows = snap.events.map((one) => ({
        kind: one.kind === "alert" ? "warning" : "",
        time: one.time,
        cells: [one.kind, one.writer, one.message],
      }));
      choices(this.kind, [["", `Newest events (${rows.length})`]]);
      this.chooseObjects(rows, 1);
      this.events.show(["age", "kind", "from", "message"], rows);
    }
    this.events.tick();
  }

  /** Fill the menu of objects of the events, such as the job, a rank or a machine. `at` is the index of the cell with
   *  the object. */
  chooseObjects(rows, at) {
    this.objectAt = at;
    const names = [...new Set(rows.map(({ cells }) => cells[at]))].sort((one, two) =>
      one.localeCompare(two, "en", { numeric: true }));
    choices(this.object, [["", "All objects"], ...names.map((name) => [name, name])]);
    this.object.hidden = names.length < 2 && !this.object.value;
  }

  layTiles() {
    const columns = tileColumns(this.tiles.childElementCount, this.tiles.clientWidth);
    this.tiles.style.setProperty("--columns", columns);
  }

  drawBasics(snap, kept) {
    const trained = snap.shown.job;
    // Texts from Python have times in UTC; here, times are shown in the user's time zone.
    const own = ([label, text]) => [label, label in kept.times ? stamp(kept.times[label]) : text];
    const more = trained.filter(([label]) => !OF_JOB.includes(label));
    // For an active job, the head of the page shows the elapsed time, updated every second.
    const basics = kept ? kept.basics.filter(([label]) => label !== "elapsed" || !snap.active) : [];
    const rows = kept ? [...basics.map(own), ...more] : trained;
    drawEach(this.basics, rows, ([label, text]) =>
      pairRow(label, text.length > LONG_TEXT ? Clamped.of(text) : text));
    const command = rows.find(([label]) => label === "command");
    this.copied = { job: snap.job ? snap.job.job_id : "", command: command ? command[1] : "" };
    this.copyJob.hidden = !this.copied.job;
    this.copyCommand.hidden = !this.copied.command;
  }

  resize() {
    this.layTiles();
    this.charts.forEach((chart) => chart.draw());
  }
}
