// The tab Logs: the log of a rank, of the supervisor or of a machine, followed while it grows; a search in all
// logs; above them the last traceback if the job has failed.

import { refused } from "./server.js";
import { button, checkbox, choices, copyButton, element, plain } from "./words.js";

// Most lines that the page keeps; the whole file can be downloaded.
const MOST_LINES = 5000;
const SEARCH_LIMIT = 200;
// How many bytes before a search hit are shown with it.
const BEFORE_BYTES = 20000;
const LINE_END = 10;

/** A line as a terminal shows it: of a progress bar that was redrawn, only the last state. */
const lastDrawn = (line) => plain(line.replace(/\r+$/, "").split("\r").pop());

const logValue = (rank, attempt) => JSON.stringify([rank, attempt]);
const logWords = ([rank, attempt]) =>
  `${/^\d+$/.test(rank) ? `rank ${rank}` : rank}${attempt === null ? "" : `, attempt ${attempt}`}`;

/** The index of a hit's line among `lines`, a part of its file; other lines may contain its text too. */
function lineOf(hit, part, lines) {
  const before = new TextEncoder().encode(part.text).subarray(0, Math.max(0, hit.offset - part.start_bytes));
  const least = before.reduce((count, byte) => count + (byte === LINE_END), 0);
  // Invalid UTF-8 was replaced by longer characters, so the line is at this index or later.
  const found = lines.findIndex((line, at) => at >= least && line.includes(hit.text));
  return found < 0 ? least : found;
}

export class Logs {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-logs");
    this.choice = element("select");
    this.choice.setAttribute("aria-label", "which log");
    this.choice.addEventListener("change", () => {
      this.chosen = true;
      this.forget();
      run.redraw();
    });
    this.find = element("input");
    Object.assign(this.find, { type: "search", placeholder: "Search all logs" });
    this.find.setAttribute("aria-label", "search all logs");
    this.find.addEventListener("keydown", (event) => event.key === "Enter" && this.search());
    this.find.addEventListener("input", () => this.find.value === this.searched || this.closeHits());
    this.follow = checkbox("follow", () => {
      if (!this.follow.input.checked) return;
      if (this.hit) this.forget();
      this.toEnd();
      run.redraw();
    });
    this.follow.input.checked = true;
    this.wrap = checkbox("wrap", () => {
      this.pre.classList.toggle("nbt-wraps", this.wrap.input.checked);
      this.keepEnd();
    });
    const tools = element("div", "nbt-tools");
    tools.append(
      this.choice,
      this.find,
      button("Search", "Search the logs of all ranks, attempts and machines", () => this.search()),
      this.follow,
      this.wrap,
      copyButton("Copy", "Copy the lines that are shown", () => this.pre.textContent),
      (this.save = button("Download", "Save the whole file", () => this.download())),
    );
    this.note = element("p", "nbt-empty");
    this.note.hidden = true;
    this.traceback = element("details", "nbt-traceback");
    this.traceback.hidden = true;
    this.hits = element("div", "nbt-hits");
    this.hits.hidden = true;
    this.pre = element("pre");
    this.pre.tabIndex = 0;
    this.pre.setAttribute("aria-label", "log");
    this.atEnd = true;
    // Scroll events of a frame come before its resize events. After a change of size, the distance to the end
    // does not show whether the user scrolled; the observer below is called next.
    this.pre.addEventListener("scroll", () => this.size === this.sizeNow && this.noteEnd());
    // A log that became lower or narrower, for example below a traceback, still shows the newest line.
    new ResizeObserver(() => {
      this.size = this.sizeNow;
      this.keepEnd();
    }).observe(this.pre);
    this.node.append(tools, this.note, this.traceback, this.hits, this.pre);
    this.forget();
  }

  /** Open the log of a rank, or of the supervisor or a machine by its name. */
  open(rank, attempt) {
    this.chosen = true;
    this.wish = logValue(rank, attempt);
  }

  opened() {
    this.tracebackOf = null;
    this.fresh = true;
  }

  /** The tab opens on the log of the rank that failed first, unless the user has chosen a log. */
  openFailed(snap) {
    const row = snap.ranks.find(({ rank }) => rank === snap.failed_rank);
    if (this.fresh && !this.chosen && !this.wish && !this.run.job && row)
      this.wish = logValue(String(row.rank), row.attempt);
    this.fresh = false;
  }

  forget() {
    this.shown = "";
    this.offset = null;
    this.hit = null;
    this.rest = "";
    this.lines = [];
    this.atEnd = true;
    this.reading = null;
    this.pre.replaceChildren();
  }

  draw(snap, kept) {
    const { run } = this;
    // A resume creates a new job with a new log.
    this.job = run.job || (kept ? kept.job_id : (snap.job && snap.job.job_id) || "");
    this.openFailed(snap);
    this.drawChoice(kept
      ? kept.logs.map(([rank, attempt, words]) => [logValue(rank, attempt), words])
      : snap.ranks.slice(0, 64).map(({ rank }) => [logValue(String(rank), null), `rank ${rank}`]));
    this.save.hidden = this.find.disabled = !run.server;
    if (!run.server) return this.withoutServer(snap);
    this.readTraceback(snap);
    this.read();
  }

  /** Fill the menu of logs: `logs` are [[value, words], ...], for each rank the newest attempt first. */
  drawChoice(logs) {
    if (!logs.length) logs.push([logValue("0", null), "rank 0"]);
    // A job with many ranks and attempts has more logs than the menu lists.
    if (this.wish) this.asideOf = { job: this.job, value: this.wish };
    const { job, value: aside } = this.asideOf || {};
    if (aside && job === this.job && !logs.some(([value]) => value === aside))
      logs.push([aside, logWords(JSON.parse(aside))]);
    const newest = new Map(logs.map(([value]) => [JSON.parse(value)[0], value]).reverse());
    const { value } = this.choice, [rank, attempt] = value ? JSON.parse(value) : [];
    // After a restart, the rank writes a new log.
    const follows = this.follow.input.checked && this.newest && this.newest.get(rank) === value;
    choices(this.choice, logs);
    if ((follows || attempt === null) && newest.has(rank)) this.choice.value = newest.get(rank);
    this.newest = newest;
    if (!this.wish) return;
    this.choice.value = this.wish;
    const { hit } = this;
    this.wish = null;
    this.forget();
    this.hit = hit;
  }

  /** Without a server, show the newest lines of the snapshot. */
  withoutServer(snap) {
    const command = `nbtrain logs ${snap.name}${this.run.job ? ` --job ${this.run.job}` : ""}`;
    // The snapshot's lines do not continue the part of the file that was read before.
    if (this.offset !== null) this.forget();
    this.say(`The newest lines of ${snap.log.source || "the job"}. To see the whole log: ${command}`);
    this.lines = snap.log.lines;
    this.paint(!this.lines.length);
  }

  get asked() {
    const [rank, attempt] = JSON.parse(this.choice.value);
    const words = new URLSearchParams({ rank });
    if (attempt !== null) words.set("attempt", attempt);
    if (this.job) words.set("job", this.job);
    return { rank, attempt, words };
  }

  /** Append the new lines of the log. */
  async read() {
    if (this.reading) return;
    const { rank, words } = this.asked, { run } = this, mine = `${words}`;
    if (this.shown !== mine) {
      const { hit } = this;
      this.forget();
      Object.assign(this, { shown: mine, hit });
    } else if (this.hit) return;
    const from = this.hit ? Math.max(0, this.hit.offset - BEFORE_BYTES) : this.offset;
    if (from !== null) words.set("offset", from);
    const reading = (this.reading = {});
    try {
      const part = await run.server.call(`run/${run.name}/log?${words}`);
      // After forget(), another read has started, maybe of the same log.
      if (this.reading !== reading) return;
      this.say("");
      this.add(part, rank);
    } catch (error) {
      if (this.reading === reading) this.say(refused(error, `the log of ${rank}`));
    } finally {
      if (this.reading === reading) this.reading = null;
    }
  }

  add(part, rank) {
    if (this.offset !== null && part.text === "" && this.lines.length) return;
    this.offset = part.end_bytes;
    const lines = [...this.lines, ...(this.rest + part.text).split("\n")];
    this.rest = lines.pop();
    if (this.hit) {
      const at = lineOf(this.hit, part, [...lines, this.rest]), first = Math.max(0, at - MOST_LINES / 2);
      this.lines = lines.slice(first, first + MOST_LINES);
      if (first + MOST_LINES < lines.length) this.rest = "";
      this.hitLine = at - first;
    } else this.lines = lines.slice(-MOST_LINES);
    const empty = !this.lines.length && !this.rest;
    if (empty) this.say(this.whyEmpty(rank));
    this.paint(empty);
  }

  /** The message for an empty log. */
  whyEmpty(rank) {
    const row = this.run.view.snap.ranks.find((one) => String(one.rank) === rank);
    const first = this.choice.options[0].textContent;
    const who = /^\d+$/.test(rank) ? `Rank ${rank}` : `The ${rank}`, phase = row ? ` (${row.phase})` : "";
    const others = row && row.rank ? ` It logs only warnings and errors; see ${first} for the steps.` : "";
    return `${who} has logged nothing${phase}.${others}`;
  }

  paint(empty) {
    const { pre } = this, ended = this.atEnd;
    const text = [...this.lines, this.rest].map(lastDrawn).join("\n");
    pre.hidden = empty;
    if (pre.textContent === text) return;
    pre.textContent = text;
    if (this.hit) this.toHit();
    else if (this.follow.input.checked && ended) this.toEnd();
  }

  get sizeNow() {
    return `${this.pre.clientWidth} x ${this.pre.clientHeight}`;
  }

  noteEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.pre;
    this.atEnd = scrollHeight - scrollTop - clientHeight < 24;
  }

  keepEnd() {
    if (this.follow.input.checked && this.atEnd && !this.hit) this.toEnd();
  }

  toEnd() {
    this.atEnd = true;
    this.pre.scrollTop = this.pre.scrollHeight;
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  async download() {
    const link = element("a");
    link.href = this.run.server.url(`run/${this.run.name}/log/raw?${this.asked.words}`);
    link.download = "";
    link.click();
  }

  // --- the last traceback ---

  async readTraceback(snap) {
    const { run } = this, state = `${this.job} ${snap.state}`;
    if (this.tracebackOf === state) return;
    this.tracebackOf = state;
    if (!run.job && snap.state !== "FAILED") {
      this.traceback.hidden = true;
      return;
    }
    try {
      const words = run.job ? `?job=${run.job}` : "";
      const found = await run.server.call(`run/${run.name}/log/traceback${words}`);
      this.traceback.hidden = !found.text;
      if (!found.text) return;
      const text = element("pre", "", plain(found.text));
      const copy = copyButton("Copy", "Copy the traceback", () => found.text);
      this.traceback.replaceChildren(element("summary", "", found.title), copy, text);
      this.traceback.open = true;
    } catch {
      // The log contains the traceback too.
      this.traceback.hidden = true;
    }
  }

  // --- search ---

  closeHits() {
    this.hits.hidden = true;
  }

  async search() {
    const { run } = this, text = this.find.value;
    if (!text || !run.server) return;
    this.searched = text;
    this.hits.hidden = false;
    // Make room for the hits and their log.
    this.traceback.open = false;
    this.hits.replaceChildren(element("p", "nbt-empty", `Searching for "${text}"...`));
    try {
      const words = new URLSearchParams({ q: text, case: 0, limit: SEARCH_LIMIT });
      if (run.job) words.set("job", run.job);
      const { hits, more } = await run.server.call(`run/${run.name}/log/search?${words}`);
      if (this.find.value === text) this.showHits(text, hits, more);
    } catch (error) {
      this.hits.replaceChildren(element("p", "nbt-empty", refused(error, "the search")));
    }
  }

  showHits(text, hits, more) {
    const lines = hits.length === 1 ? "line" : "lines";
    const count = `${hits.length}${more ? " and more" : ""} ${lines} with "${text}"`;
    const head = element("div", "nbt-tools"), list = element("ol");
    const close = button("Close", "", () => {
      this.find.value = "";
      this.closeHits();
    });
    head.append(element("b", "", count), close);
    for (const hit of hits) {
      const who = /^\d+$/.test(hit.rank) ? `rank ${hit.rank}` : hit.rank;
      const place = who + (hit.attempt ? `, attempt ${hit.attempt}` : "");
      const row = element("li"), go = button("", "Open this place", () => this.goTo(hit), "nbt-hit");
      go.append(element("span", "nbt-place", `${place}:${hit.line}`), element("code", "", plain(hit.text)));
      row.append(go);
      list.append(row);
    }
    this.hits.replaceChildren(head, list);
  }

  /** Show the log around a hit. */
  goTo(hit) {
    const { run } = this, newest = run.view.snap.job && run.view.snap.job.job_id;
    if (hit.job !== (run.job || newest)) run.chooseJob(hit.job);
    this.follow.input.checked = false;
    const [rank] = this.choice.value === "" ? [""] : JSON.parse(this.choice.value);
    if (rank !== hit.rank || hit.attempt !== null) this.open(hit.rank, hit.attempt);
    this.forget();
    this.hit = hit;
    run.redraw();
  }

  /** Select the hit's text in its line, or the whole line. */
  toHit() {
    const drawn = [...this.lines, this.rest].map(lastDrawn), wanted = lastDrawn(this.hit.text);
    const line = drawn[this.hitLine];
    if (line === undefined) return;
    const inside = line.indexOf(wanted);
    const target = inside < 0 ? line : wanted;
    const at = drawn.slice(0, this.hitLine).join("\n").length + (this.hitLine && 1) + Math.max(0, inside);
    const range = document.createRange(), text = this.pre.firstChild;
    range.setStart(text, at);
    range.setEnd(text, at + target.length);
    const top = range.getBoundingClientRect().top - this.pre.getBoundingClientRect().top;
    this.pre.scrollTop += top - this.pre.clientHeight / 3;
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }
}
