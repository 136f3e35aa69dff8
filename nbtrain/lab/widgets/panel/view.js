// The panel itself: elements made once, and filled from each snapshot.

import { Chart } from "./charts.js";
import { CSS, STYLE_ID } from "./style.js";
import { clock, element, plain } from "./words.js";

// Pixels of a snapshot's charts, the large one first.
const CHART_HEIGHTS = [214, 84, 84];

export class Panel {
  constructor(root, stop, fetchLog) {
    this.root = root;
    this.fetchLog = fetchLog;
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
    for (const [key, title] of [["log", "Log"], ["events", "Events"], ["ranks", "Ranks"], ["job", "Job"]]) {
      const tab = element("button", "", title);
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.select(key));
      this.tabs[key] = tab;
      tabs.append(tab);
    }
    this.logChoice = element("select");
    this.logChoice.setAttribute("aria-label", "whose log");
    this.logChoice.addEventListener("change", () => this.drawPage());
    tabs.append(this.logChoice);
    const rows = [head, this.note, this.message, this.bar, this.steps, this.tiles, charts, tabs, this.page];
    root.replaceChildren(...rows);
    this.tab = "log";
    this.select("log");
    this.resized = new ResizeObserver(() => this.charts.forEach((chart) => chart.draw()));
    this.resized.observe(root);
  }

  dispose() {
    this.resized.disconnect();
  }

  select(key) {
    this.tab = key;
    for (const [name, tab] of Object.entries(this.tabs))
      tab.setAttribute("aria-selected", String(name === key));
    this.logChoice.hidden = key !== "log";
    this.page.replaceChildren();
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

  drawPage() {
    const snap = this.snap, shown = snap.shown;
    this.tabs.events.textContent = shown.alerts;
    if (this.tab === "log") this.drawLog(snap);
    else if (this.tab === "events")
      this.table(["time", "kind", "from", "message"], [...snap.events].reverse().map((event) => ({
        kind: event.kind,
        cells: [clock(event.time), event.kind, event.writer, event.message],
      })));
    else if (this.tab === "ranks")
      this.table(
        shown.ranks.heads,
        shown.ranks.rows.map(({ bad, cells }) => ({ kind: bad ? "stale" : "", cells })),
      );
    else this.table(["", ""], shown.job.map((cells) => ({ kind: "", cells })));
  }

  table(heads, rows) {
    const table = element("table");
    const head = element("tr");
    heads.forEach((title) => head.append(element("th", "", title)));
    if (heads.some(Boolean)) table.append(head);
    for (const { kind, cells } of rows) {
      const row = element("tr");
      row.dataset.kind = kind;
      cells.forEach((cell, at) => row.append(element("td", at === cells.length - 1 ? "nbt-wide" : "", cell)));
      table.append(row);
    }
    this.page.replaceChildren(table);
  }

  drawLog(snap) {
    const choices = ["", ...snap.ranks.slice(0, 64).map((rank) => String(rank.rank)), "supervisor"];
    if (this.logChoice.options.length !== choices.length) {
      this.logChoice.replaceChildren(
        ...choices.map((value) => {
          const title = { "": "newest lines", supervisor: value }[value] || `rank ${value}`;
          const option = element("option", "", title);
          option.value = value;
          return option;
        }),
      );
    }
    const wanted = this.fetchLog ? this.logChoice.value : "";
    this.logChoice.disabled = !this.fetchLog;
    if (wanted === "") this.showLog(snap.log.lines.length ? snap.log.lines : ["(nothing was logged yet)"]);
    else
      this.fetchLog(wanted).then(
        (part) => {
          const shown = this.logChoice.value === wanted && this.tab === "log";
          if (shown) this.showLog(part.text.split("\n").slice(-400));
        },
        (error) => this.say(`The log of ${wanted} could not be read: ${error.message}`, "error"),
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
