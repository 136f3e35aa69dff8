// The tab Logs: the log of a rank, of the supervisor or of a machine, which is followed while it grows; a search in all
// logs; links to lines; and, if the job has failed, the last traceback above the log.

import { levelOf } from "./log_levels.js";
import { refused } from "../host/server.js";
import { button, checkbox, choices, copyButton, element, plain } from "../elements/dom.js";

// Maximum number of lines that the page keeps. The whole file can be downloaded.
const MOST_LINES = 5000;
const SEARCH_LIMIT = 200;
// The server's status for a text that is not a regular expression.
const NOT_A_PATTERN = 422;
const MARK = "\u0001", UNMARK = "\u0002";

/** Return a line as a terminal shows it: a progress bar that was redrawn has only its last state. */
const lastDrawn = (line) => plain(line.replace(/\r+$/, "").split("\r").pop());

const logValue = (rank, attempt) => JSON.stringify([rank, attempt]);
const whoseLog = (rank) => (/^\d+$/.test(rank) ? `rank ${rank}` : rank);
const whoseWords = (rank) => (/^\d+$/.test(rank) ? `Rank ${rank}` : `The ${rank}`);
const logWords = ([rank, attempt]) => `${whoseLog(rank)}${attempt === null ? "" : `, attempt ${attempt}`}`;

/** Return the parts of a line, [[text, whether it is marked], ...]; `hit` is the line's search hit, or undefined. */
export function markedParts(line, hit) {
  const at = hit && hit.spans ? line.indexOf(plain(hit.text)) : -1;
  if (at < 0) return [[line, false]];
  const letters = [...hit.text];
  // The marks move along with the text when escape sequences are removed.
  for (const [begin, end] of [...hit.spans].reverse()) {
    letters.splice(end, 0, UNMARK);
    letters.splice(begin, 0, MARK);
  }
  const [before, ...rest] = plain(letters.join("")).split(MARK);
  const parts = [[line.slice(0, at) + before, false]];
  for (const part of rest) {
    const [inside, after] = part.split(UNMARK);
    parts.push([inside, true], [after, false]);
  }
  parts.push([line.slice(at + plain(hit.text).length), false]);
  return parts.filter(([text]) => text);
}

export class Logs {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-logs");
    this.choice = element("select");
    this.choice.setAttribute("aria-label", "log to show");
    this.choice.addEventListener("change", () => {
      this.chosen = true;
      this.forget();
      run.redraw();
    });
    this.find = element("input");
    Object.assign(this.find, { type: "search", placeholder: "Search all logs" });
    this.find.setAttribute("aria-label", "search all logs");
    this.find.title = "Press Enter to search, then Enter for the next matching line or Shift+Enter for the previous one";
    this.find.addEventListener("keydown", (event) => event.key === "Enter" && this.entered(event.shiftKey));
    this.find.addEventListener("input", () => this.find.value === this.searched || this.closeHits());
    this.regex = checkbox("Regex", () => this.closeHits());
    this.regex.title = "Search for a Python regular expression, such as loss (nan|inf)";
    this.wrong = element("p", "nbt-wrong");
    this.wrong.id = `nbt-wrong-${Math.random().toString(36).slice(2)}`;
    this.wrong.setAttribute("role", "alert");
    this.wrong.hidden = true;
    this.follow = checkbox("Follow", () => {
      if (!this.follow.input.checked) return;
      if (this.around !== null) this.forget();
      this.toEnd();
      run.redraw();
    });
    this.follow.input.checked = true;
    this.wrap = checkbox("Wrap lines", () => {
      this.pre.classList.toggle("nbt-wraps", this.wrap.input.checked);
      this.keepEnd();
    });
    this.goLine = element("input", "nbt-go-line");
    Object.assign(this.goLine, { type: "text", inputMode: "numeric", placeholder: "Line" });
    this.goLine.setAttribute("aria-label", "go to line");
    this.goLine.title = "Enter a line number and press Enter to show the line";
    this.goLine.addEventListener("keydown", (event) => {
      const line = Number(this.goLine.value.replace(/[,\s]/g, ""));
      if (event.key === "Enter" && Number.isSafeInteger(line) && line > 0 && this.choice.value) this.goTo({ ...this.asked, job: this.job, line });
    });
    this.link = copyButton("Copy link", "Copy a link to the selected line", () => this.linkToLine());
    const tools = element("div", "nbt-tools");
    tools.append(
      this.choice,
      this.find,
      this.regex,
      button("Search", "Search the logs of all ranks, attempts and machines", () => this.search()),
      this.follow,
      this.wrap,
      this.goLine,
      this.link,
      copyButton("Copy", "Copy the lines that are shown", () => this.text),
      (this.save = button("Download", "Download the whole log file", () => this.download())),
    );
    this.note = element("p", "nbt-empty");
    this.note.hidden = true;
    this.traceback = element("details", "nbt-traceback");
    this.traceback.hidden = true;
    this.hits = element("div", "nbt-hits");
    this.hits.hidden = true;
    /** The search whose hits are awaited or shown, {text, regex, job}; null without one. */
    this.wanted = null;
    this.isSearching = false;
    /** The lines that the last search found. */
    this.found = [];
    this.pre = element("pre", "nbt-numbered");
    this.pre.tabIndex = 0;
    this.pre.setAttribute("aria-label", "log");
    this.pre.addEventListener("click", (event) => this.clicked(event));
    this.atEnd = true;
    // In each frame, scroll events come before resize events. After a change of size, the distance to the end does not
    // show whether the user scrolled; the observer below handles that case.
    this.pre.addEventListener("scroll", () => this.size === this.sizeNow && this.noteEnd());
    // If the log becomes lower or narrower, for example because of a traceback above it, it still shows the newest line.
    new ResizeObserver(() => {
      this.size = this.sizeNow;
      this.keepEnd();
    }).observe(this.pre);
    this.node.append(tools, this.wrong, this.note, this.traceback, this.hits, this.pre);
    this.forget();
  }

  /** Open the log of a rank, or of the supervisor or a machine by its name; `line` is the number of a line. */
  open(rank, attempt, line = null) {
    this.chosen = true;
    this.wish = logValue(rank, attempt);
    this.wishLine = line;
  }

  opened() {
    this.tracebackOf = null;
    this.fresh = true;
  }

  /** Show the log of the rank that failed first when the tab opens, unless the user has chosen a log. */
  openFailed(snap) {
    const row = snap.ranks.find(({ rank }) => rank === snap.failed_rank);
    if (this.fresh && !this.chosen && !this.wish && !this.run.job && row)
      this.wish = logValue(String(row.rank), row.attempt);
    this.fresh = false;
  }

  /** Discard everything that was read. With `line`, the part around that line is read next instead of the end. */
  forget(line = null) {
    this.shown = "";
    this.offset = null;
    this.around = this.current = line;
    this.rest = "";
    this.lines = [];
    /** Whether the lines are the output of a pod, which each response replaces. */
    this.isOutput = false;
    /** The number of the first of `lines`; null if it is not known. */
    this.first = null;
    /** Number of lines that were dropped at the beginning since the first read. */
    this.dropped = 0;
    /** The drawn lines, {raw, text, node, inTraceback}. The first of them has index `rowsFrom` among all lines read. */
    this.rows = [];
    this.rowsFrom = 0;
    this.atEnd = true;
    this.reading = null;
    this.pre.replaceChildren();
    this.drawLink();
  }

  draw(snap, kept) {
    const { run } = this;
    // A resume creates a new job with a new log. Until the job page is read, the menu lists the newest log of each rank
    // by its attempt, as the job page does later, so that the log is not read twice.
    this.job = run.job || (kept ? kept.job_id : (snap.job && snap.job.job_id) || "");
    this.openFailed(snap);
    this.drawChoice(kept
      ? kept.logs.map(([rank, attempt, words]) => [logValue(rank, attempt), words])
      : snap.ranks.slice(0, 64).map(({ rank, attempt }) =>
        [logValue(String(rank), run.job ? null : attempt), `rank ${rank}`]));
    this.save.hidden = this.find.disabled = this.goLine.disabled = !run.server;
    if (!run.server) return this.withoutServer(snap);
    this.readTraceback(snap);
    this.read();
  }

  /** Fill the menu of logs; `logs` is [[value, words], ...], with the newest attempt of each rank first. */
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
    this.wish = null;
    if (this.wishLine) this.follow.input.checked = false;
    this.forget(this.wishLine || null);
  }

  /** Without a server, show the newest lines of the snapshot. */
  withoutServer(snap) {
    const command = `nbtrain logs ${snap.name}${this.run.job ? ` --job ${this.run.job}` : ""}`;
    // The snapshot's lines do not continue the part of the file that was read before.
    if (this.offset !== null) this.forget();
    this.say(`These are the newest lines of ${snap.log.source || "the job"}. To see the whole log, run: ${command}`);
    if (this.lines.join("\n") !== snap.log.lines.join("\n")) this.forget();
    this.lines = snap.log.lines;
    this.paint();
  }

  get asked() {
    const [rank, attempt] = JSON.parse(this.choice.value);
    const words = new URLSearchParams({ rank });
    if (attempt !== null) words.set("attempt", attempt);
    if (this.job) words.set("job", this.job);
    return { rank, attempt, words };
  }

  /** Append the new lines of the log, or read the part around a line. */
  async read() {
    if (this.reading) return;
    const { rank, words } = this.asked, { run } = this, mine = `${words}`;
    if (this.shown !== mine) {
      this.forget(this.around);
      this.shown = mine;
    } else if (this.around !== null) return;
    if (this.around !== null) words.set("line", this.around);
    else if (this.offset !== null) words.set("offset", this.offset);
    const reading = (this.reading = {});
    try {
      const part = await run.server.call(`run/${run.name}/log?${words}`);
      // After forget(), another read has started, maybe of the same log.
      if (this.reading !== reading) return;
      this.say("");
      // The rank has started to write its log.
      if (this.isOutput && !part.whole) {
        this.forget();
        this.shown = mine;
      }
      if (part.whole) this.showOutput(part, rank);
      else this.add(part, rank);
    } catch (error) {
      if (this.reading !== reading) return;
      this.say(refused(error, `the log of ${whoseLog(rank)}`));
      // The part around a line is read only once. If the server did not respond, it is read again after the next snapshot.
      if (this.around !== null && !(error.status < 500)) this.shown = "";
    } finally {
      if (this.reading === reading) this.reading = null;
    }
  }

  /** Show the output of a pod whose rank has not written a log. The output is not in a file, so each response has all of
   *  it. */
  showOutput(part, rank) {
    this.isOutput = true;
    this.offset = null;
    this.lines = part.text.split("\n");
    this.rest = this.lines.pop();
    this.say(`${whoseWords(rank)} has not written a log yet. This is the output of its pod.`);
    this.paint();
  }

  add(part, rank) {
    // The part continues the last line, if that line is incomplete.
    if (part.first_line) this.number(part.first_line - this.lines.length);
    if (this.offset !== null && part.text === "" && this.lines.length) return;
    this.offset = part.end_bytes;
    const lines = [...this.lines, ...(this.rest + part.text).split("\n")];
    this.rest = lines.pop();
    let from = Math.max(0, lines.length - MOST_LINES);
    if (this.around !== null && part.first_line) {
      // The last line of the part may be incomplete, and a line beyond the end of the log is its last one.
      const last = lines.length - (this.rest ? 0 : 1);
      const at = Math.min(this.around - part.first_line, last);
      this.current = part.first_line + at;
      from = Math.max(0, at - MOST_LINES / 2);
      if (from + MOST_LINES < lines.length) this.rest = "";
    }
    this.lines = lines.slice(from, from + MOST_LINES);
    this.dropped += from;
    if (this.first !== null) this.first += from;
    if (!this.lines.length && !this.rest) this.say(this.whyEmpty(rank));
    this.paint();
  }

  /** Return the message for an empty log. */
  whyEmpty(rank) {
    const row = this.run.view.snap.ranks.find((each) => String(each.rank) === rank);
    const first = this.choice.options[0].textContent;
    const who = whoseWords(rank), phase = row ? ` (${row.phase}${row.activity ? `, ${row.activity}` : ""})` : "";
    const others = row && row.rank ? ` This rank logs only warnings and errors; the training steps are in the log of ${first}.` : "";
    return `${who} has not logged anything yet${phase}.${others}`;
  }

  // --- the lines ---

  /** The lines that are shown, as text. */
  get text() {
    return this.rows.map(({ text }) => text).join("\n");
  }

  /** Set the number of the first line. */
  number(first) {
    if (this.first === first) return;
    this.first = first;
    this.rows.forEach((row, at) => this.numberRow(row, at));
  }

  numberRow(row, at) {
    const line = this.first === null ? null : this.first + at;
    row.line = line;
    row.node.dataset.line = line === null ? "" : line.toLocaleString("en");
    row.node.classList.toggle("nbt-current", line !== null && line === this.current);
  }

  /** Draw the lines that are new or have changed. Drawing all 5,000 lines at each step would take a tenth of a core. */
  paint() {
    const { pre, rows } = this, ended = this.atEnd;
    const lines = this.rest ? [...this.lines, this.rest] : this.lines;
    pre.hidden = !lines.length;
    for (; this.rowsFrom < this.dropped && rows.length; this.rowsFrom += 1) rows.shift().node.remove();
    this.rowsFrom = this.dropped;
    while (rows.length > lines.length) rows.pop().node.remove();
    const hits = this.hitsHere(), added = [];
    let changed = false;
    lines.forEach((raw, at) => {
      let row = rows[at];
      if (row && row.raw === raw) return;
      if (!row) {
        rows.push((row = { node: element("span", "nbt-line") }));
        added.push(row.node);
      }
      changed = true;
      row.raw = raw;
      row.text = lastDrawn(raw);
      const { level, inTraceback } = levelOf(row.text, Boolean(at && rows[at - 1].inTraceback));
      row.inTraceback = inTraceback;
      row.node.className = level ? `nbt-line nbt-level-${level}` : "nbt-line";
      this.numberRow(row, at);
      this.fillRow(row, hits);
    });
    if (!changed) return;
    pre.append(...added);
    const last = rows[rows.length - 1];
    if (last && last.line !== null) pre.style.setProperty("--digits", `${String(last.node.dataset.line).length}ch`);
    if (this.around !== null) this.toCurrent();
    else if (this.follow.input.checked && ended) this.toEnd();
  }

  /** Fill a row with the text of its line, with the matches of the search marked. */
  fillRow({ node, text, line }, hits) {
    const parts = markedParts(text, hits.get(line));
    node.replaceChildren(...parts.map(([part, marked]) => (marked ? element("mark", "", part) : part)), "\n");
  }

  /** Return the search hits in the log that is shown: {line number: hit}. */
  hitsHere() {
    if (!this.found.length) return new Map();
    const { rank, attempt } = this.asked;
    const here = (hit) => hit.job === this.job && hit.rank === rank && [hit.attempt, null].includes(attempt);
    return new Map(this.found.filter(here).map((hit) => [hit.line, hit]));
  }

  /** Mark the matches again, after a search. */
  markAgain() {
    const hits = this.hitsHere();
    this.rows.forEach((row) => this.fillRow(row, hits));
  }

  clicked(event) {
    const row = this.rows.find(({ node }) => node.contains(event.target));
    // A click that ends a text selection does not select the line.
    if (!row || row.line === null || !window.getSelection().isCollapsed) return;
    this.current = row.line;
    this.rows.forEach((each, at) => this.numberRow(each, at));
    this.drawLink();
  }

  /** Update the field with the number of the selected line, and the button that copies a link to it. */
  drawLink() {
    const line = this.current, { linkTo } = this.run.host || {};
    this.goLine.value = line === null ? "" : String(line);
    this.link.hidden = !linkTo;
    this.link.disabled = line === null;
    this.link.title = line === null ? "To copy a link, first click a line or enter its number" : `Copy a link to line ${line}`;
  }

  linkToLine() {
    const { rank, attempt } = this.asked, { host, name } = this.run;
    return host.linkTo([name], { tab: "logs", job: this.job, rank, attempt, line: this.current });
  }

  get sizeNow() {
    return `${this.pre.clientWidth} x ${this.pre.clientHeight}`;
  }

  noteEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.pre;
    this.atEnd = scrollHeight - scrollTop - clientHeight < 24;
  }

  keepEnd() {
    if (this.follow.input.checked && this.atEnd && this.around === null) this.toEnd();
  }

  toEnd() {
    this.atEnd = true;
    this.pre.scrollTop = this.pre.scrollHeight;
  }

  toCurrent() {
    this.rows.forEach((row, at) => this.numberRow(row, at));
    this.drawLink();
    const row = this.rows.find(({ line }) => line === this.current);
    if (!row) return;
    const top = row.node.getBoundingClientRect().top - this.pre.getBoundingClientRect().top;
    this.pre.scrollTop += top - this.pre.clientHeight / 3;
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
    if (!run.job && !snap.failed) {
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
    this.searched = this.wanted = null;
    this.sayWrong("");
    if (!this.found.length) return;
    this.found = [];
    this.markAgain();
  }

  /** Show next to the search field that its text is not a regular expression. */
  sayWrong(text) {
    this.wrong.textContent = text;
    this.wrong.hidden = !text;
    if (text) {
      this.find.setAttribute("aria-invalid", "true");
      this.find.setAttribute("aria-describedby", this.wrong.id);
    } else ["aria-invalid", "aria-describedby"].forEach((name) => this.find.removeAttribute(name));
  }

  /** Handle Enter in the search field: search for a new text, or go to the next or previous hit. */
  entered(back) {
    if (this.find.value === this.searched && this.found.length) this.step(back ? -1 : 1);
    else this.search();
  }

  /** Search for the text in the field. One search runs at a time. When it ends, the newest requested search runs. */
  async search() {
    const { run } = this, text = this.find.value, regex = this.regex.input.checked, { job } = run;
    if (!text || !run.server) return;
    const { wanted } = this, isRunning = this.isSearching && wanted;
    if (isRunning && wanted.text === text && wanted.regex === regex && wanted.job === job) return;
    this.closeHits();
    this.searched = text;
    this.hits.hidden = false;
    // Make room for the hits and their log.
    this.traceback.open = false;
    this.hits.replaceChildren(element("p", "nbt-empty", `Searching for "${text}"...`));
    this.wanted = { text, regex, job };
    if (this.isSearching) return;
    this.isSearching = true;
    for (let last = null; this.wanted && this.wanted !== last; ) {
      last = this.wanted;
      await this.searchFor(last);
    }
    this.isSearching = false;
  }

  async searchFor(wanted) {
    const { run } = this, { text, regex, job } = wanted;
    try {
      const words = new URLSearchParams({ q: text, case: 0, limit: SEARCH_LIMIT, regex: Number(regex) });
      if (job) words.set("job", job);
      const answer = await run.server.call(`run/${run.name}/log/search?${words}`);
      if (this.wanted === wanted) this.showHits(text, answer);
    } catch (error) {
      if (this.wanted !== wanted) return;
      const isPattern = regex && error.status === NOT_A_PATTERN;
      this.hits.hidden = isPattern;
      if (isPattern) this.sayWrong(error.message);
      else this.hits.replaceChildren(element("p", "nbt-empty", refused(error, "the search results")));
    }
  }

  showHits(text, { hits, more, complete = true }) {
    this.found = hits;
    this.at = -1;
    const lines = hits.length === 1 && !more ? "line" : "lines";
    const count = `${more ? `The first ${hits.length}` : hits.length} ${lines} with "${text}"`;
    const ended = complete ? "" : ". The search took too long and was stopped.";
    const head = element("div", "nbt-tools"), list = element("ol");
    const close = button("Close", "", () => {
      this.find.value = "";
      this.closeHits();
    });
    this.place = element("span", "nbt-place");
    const back = button("\u2039 Previous", "Show the previous line (Shift+Enter in the search field)", () => this.step(-1));
    const on = button("Next \u203a", "Show the next line (Enter in the search field)", () => this.step(1));
    back.disabled = on.disabled = !hits.length;
    head.append(element("b", "", count + ended), back, on, this.place, close);
    this.hitButtons = hits.map((hit, at) => {
      const place = whoseLog(hit.rank) + (hit.attempt ? `, attempt ${hit.attempt}` : "");
      const row = element("li"), go = button("", "Show this line in its log", () => this.step(at - this.at), "nbt-hit");
      const code = element("code");
      code.append(...markedParts(plain(hit.text), hit).map(([part, marked]) => (marked ? element("mark", "", part) : part)));
      go.append(element("span", "nbt-place", `${place}:${hit.line.toLocaleString("en")}`), code);
      row.append(go);
      list.append(row);
      return go;
    });
    this.hits.replaceChildren(head, list);
    this.markAgain();
  }

  /** Show the hit `by` positions further. The first hit follows the last one. */
  step(by) {
    const count = this.found.length;
    if (!count) return;
    this.at = this.at < 0 && by < 0 ? count - 1 : (this.at + by + count) % count;
    this.place.textContent = `${this.at + 1} of ${count}`;
    this.hitButtons.forEach((node, at) => {
      if (at === this.at) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
    });
    this.hitButtons[this.at].scrollIntoView({ block: "nearest" });
    this.goTo(this.found[this.at]);
  }

  /** Show the log around a line. */
  goTo({ job, rank, attempt, line }) {
    const { run } = this, shown = this.asked;
    this.follow.input.checked = false;
    const sameLog = job === this.job && rank === shown.rank && [attempt, null].includes(shown.attempt);
    if (sameLog && this.rows.some((row) => row.line === line)) {
      this.current = line;
      return this.toCurrent();
    }
    if (job !== this.job) run.chooseJob(job);
    this.open(rank, attempt, line);
    // The new part is drawn after it was read.
    run.redraw();
  }
}
