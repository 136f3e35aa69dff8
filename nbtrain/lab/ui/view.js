// The panel itself: elements made once, and filled from each snapshot.

import { Chart } from "./charts.js";
import { JobPages, table } from "./job.js";
import { CSS, STYLE_ID } from "./style.js";
import { element, plain } from "./words.js";

// Pixels of a snapshot's charts, the large one first.
const CHART_HEIGHTS = [214, 84, 84];
const TABS = {
  log: "Log",
  events: "Events",
  ranks: "Ranks",
  resources: "Resources",
  job: "Job",
};
// Pages of the files that a job keeps.
const KEPT = ["events", "resources", "job"];
// Rows of a snapshot that its job's page says in its own words.
const OF_JOB = ["backend", "command", "job"];

/** Give a select its [[value, words], ...]; the choice stays if it still exists. */
function choices(select, options) {
  const known = [...select.options].map((option) => option.value + option.textContent).join("\n");
  if (known === options.map((words) => words.join("")).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, words]) => {
    const option = element("option", "", words);
    option.value = value;
    return option;
  }));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

export class Panel {
  /** `wish` is called when the pages of another job are wanted, or those of this one at once. */
  constructor(root, stop, fetchLog, wish = () => {}) {
    this.root = root;
    this.fetchLog = fetchLog;
    this.wish = wish;
    this.kept = new JobPages();
    if (!document.getElementById(STYLE_ID)) {
      const style = element("style");
      style.id = STYLE_ID;
      style.textContent = CSS;
      document.head.append(style);
    }
    root.classList.add("nbtrain-panel");
    const head = element("div", "nbt-head");
    this.name = element("span", "nbt-name");
    this.state = element("span", "nbt-state");
    this.sub = element("span", "nbt-sub");
    this.stop = element("button", "nbt-stop", "Stop");
    this.stop.title = "Save a checkpoint and end the job; it can be resumed.";
    this.stop.addEventListener("click", stop);
    head.append(element("span", "nbt-light"), this.name, this.state, this.sub, this.stop);
    this.note = element("div", "nbt-note");
    this.message = element("div", "nbt-note");
    this.bar = element("div", "nbt-bar");
    this.fill = element("div", "nbt-fill");
    this.bar.append(this.fill);
    this.bar.setAttribute("role", "progressbar");
    this.steps = element("div", "nbt-steps");
    this.tiles = element("div", "nbt-tiles");
    const charts = element("div", "nbt-charts");
    this.charts = CHART_HEIGHTS.map((height) => new Chart(height));
    charts.append(...this.charts.map((chart) => chart.node));
    const tabs = element("div", "nbt-tabs");
    tabs.setAttribute("role", "tablist");
    this.page = element("div", "nbt-page");
    this.tabs = {};
    for (const [key, title] of Object.entries(TABS)) {
      const tab = element("button", "", title);
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.select(key));
      this.tabs[key] = tab;
      tabs.append(tab);
    }
    const room = element("span", "nbt-room");
    this.logChoice = element("select");
    this.logChoice.setAttribute("aria-label", "whose log");
    this.logChoice.addEventListener("change", () => this.drawPage(true));
    this.jobChoice = element("select");
    this.jobChoice.hidden = true;
    this.jobChoice.setAttribute("aria-label", "which job of the run");
    this.jobChoice.addEventListener("change", () => {
      this.chosenJob = this.jobChoice.selectedIndex > 0 ? this.jobChoice.value : "";
      this.kept.value = null;
      this.page.replaceChildren(element("p", "nbt-empty", "Reading the job..."));
      this.wish();
    });
    this.kept.warningsOnly.addEventListener("change", () => this.drawPage(true));
    this.chosenJob = "";
    tabs.append(room, this.logChoice, this.jobChoice);
    const rows = [head, this.note, this.message, this.bar, this.steps, this.tiles, charts, tabs, this.page];
    root.replaceChildren(...rows);
    this.tab = "log";
    this.select("log");
    this.resized = new ResizeObserver(() => {
      this.charts.forEach((chart) => chart.draw());
      this.kept.redraw();
    });
    this.resized.observe(root);
  }

  dispose() {
    this.resized.disconnect();
  }

  select(key) {
    this.tab = key;
    for (const [name, tab] of Object.entries(this.tabs))
      tab.setAttribute("aria-selected", String(name === key));
    this.root.dataset.page = key;
    this.logChoice.hidden = key !== "log";
    this.drawn = null;
    this.page.replaceChildren();
    if (this.snap) this.drawPage();
    if (KEPT.includes(key)) this.wish();
  }

  /** Whether the page in sight is one of the files that a job keeps. */
  showsKept() {
    return KEPT.includes(this.tab);
  }

  /** Take the pages of the newest job, or of the chosen one. */
  take(value) {
    if (this.chosenJob && value.job_id !== this.chosenJob) return;
    this.kept.value = value;
    choices(this.jobChoice, value.jobs);
    this.jobChoice.hidden = value.jobs.length < 2;
    if (this.snap) this.drawPage();
  }

  say(text, kind = "") {
    this.message.textContent = text;
    this.message.className = `nbt-note ${kind && `nbt-${kind}`}`;
  }

  draw(snap) {
    this.snap = snap;
    const { root } = this, shown = snap.shown;
    root.dataset.state = snap.state;
    root.dataset.step = snap.progress ? snap.progress.step : "";
    root.dataset.run = snap.name;
    this.name.textContent = snap.name;
    this.state.textContent = snap.state;
    this.state.title = snap.meaning;
    this.sub.textContent = shown.about;
    this.stop.hidden = !snap.active;
    if (!snap.active) this.stop.disabled = false;
    this.note.textContent = shown.note;
    this.note.className = `nbt-note ${shown.tone && `nbt-${shown.tone}`}`;
    const percent = (100 * shown.fraction).toFixed(2);
    this.fill.style.width = `${percent}%`;
    this.bar.setAttribute("aria-valuenow", percent);
    this.steps.replaceChildren(...shown.line.map(([label, value]) => {
      const node = element("span", { step: "nbt-step", "time left": "nbt-eta" }[label]);
      node.append(`${label} `, element("b", "", value));
      return node;
    }));
    this.tiles.replaceChildren(...shown.tiles.map(([label, value, unit]) => {
      const node = element("div", "nbt-tile"), strong = element("strong", "", value);
      if (unit) strong.append(element("small", "", unit));
      node.append(element("span", "", label), strong);
      return node;
    }));
    shown.charts.forEach((chart, at) => this.charts[at].show(chart, snap.curves));
    this.drawPage();
  }

  /** Fill the page below the tabs; one that is as it was stays, with what was unfolded or selected in it. */
  drawPage(anew = false) {
    const snap = this.snap, shown = snap.shown, kept = this.kept.value;
    this.tabs.events.textContent = shown.alerts;
    if (this.tab === "log") return this.drawLog(snap);
    if (this.tab === "ranks") {
      const rows = shown.ranks.rows.map(({ bad, cells }) => ({ kind: bad ? "bad" : "", cells }));
      return this.page.replaceChildren(table(shown.ranks.heads, rows));
    }
    if (kept) {
      // Only what is in sight: the log of events stays as it is while resources are measured.
      const { events, charts, basics, conditions, replicas } = kept;
      const parts = { events, resources: charts, job: [basics, conditions, replicas] };
      const state = JSON.stringify(parts[this.tab]);
      if (!anew && this.drawn === state) return;
      const at = this.page.scrollTop;
      const trained = shown.job.filter(([label]) => !OF_JOB.includes(label));
      this.page.replaceChildren(...this.kept.page(this.tab, trained));
      this.page.scrollTop = at;
      this.kept.redraw();
      this.drawn = state;
    } else if (this.tab === "events") {
      const rows = snap.events.map((one) => ({ ...one, cells: [one.kind, one.writer, one.message] }));
      this.page.replaceChildren(table(["time", "kind", "from", "message"], rows.reverse()));
    } else if (this.tab === "job")
      this.page.replaceChildren(table(["", ""], shown.job.map((cells) => ({ kind: "", cells }))));
    else this.page.replaceChildren(element("p", "nbt-empty", "Reading what the run has kept..."));
  }

  drawLog(snap) {
    const kept = this.kept.value, own = !this.chosenJob;
    const logs = kept
      ? kept.logs.map(([rank, attempt, words]) => [JSON.stringify([rank, attempt]), words])
      : snap.ranks.slice(0, 64).map(({ rank }) => [JSON.stringify([String(rank), null]), `rank ${rank}`]);
    choices(this.logChoice, [...(own ? [["", "newest lines"]] : []), ...logs]);
    const wanted = this.fetchLog ? this.logChoice.value : "";
    this.logChoice.disabled = !this.fetchLog;
    if (!own && !this.fetchLog)
      return this.showLog([`Without the server half: nbtrain logs ${snap.name} --job ${this.chosenJob}`]);
    const newest = snap.log.lines.length ? snap.log.lines : ["(nothing was logged yet)"];
    if (wanted === "") return this.showLog(newest);
    const [rank, attempt] = JSON.parse(wanted);
    this.fetchLog(rank, attempt, this.chosenJob).then(
      (part) => {
        const shown = this.logChoice.value === wanted && this.tab === "log";
        if (shown) this.showLog(part.text.split("\n").slice(-400));
      },
      (error) => this.say(`The log of ${rank} could not be read: ${error.message}`, "error"),
    );
  }

  showLog(lines) {
    const text = lines.map(plain).join("\n");
    let pre = this.page.querySelector("pre");
    if (!pre) {
      pre = element("pre");
      this.page.replaceChildren(pre);
    }
    if (pre.textContent === text) return;
    const below = this.page.scrollHeight - this.page.scrollTop - this.page.clientHeight;
    const follows = below < 24 || !pre.textContent;
    pre.textContent = text;
    if (follows) this.page.scrollTop = this.page.scrollHeight;
  }
}
