// The list of runs, with filters, sorting, tags, notes, an archive, actions, and a selection of runs to compare.
//
// Rows come from the REST route <base_url>nbtrain/runs. All views of a page share one poll (runs_feed.js). Only one
// page of a long list is in the document. Its rows are kept between polls, so that the focus and an open editor stay.
// A hidden list sends no requests. Without the server extension, the list shows the `rows` trait of the widget's model.

import { hostElsewhere, makeHost } from "../host/host.js";
import { forEachRun, runsCounted } from "./runs_bulk.js";
import { RunColumns, columnValue, isSortable } from "./runs_columns.js";
import { runsFeed } from "./runs_feed.js";
import { RUNS_ON_A_PAGE, RunsFrame } from "./runs_frame.js";
import { runEditor, runQuestion } from "./runs_menu.js";
import { STATE_GROUPS, filteredRuns, sortedRuns, tagChoices } from "./runs_order.js";
import { RunRow } from "./runs_row.js";
import { RunSparklines } from "./runs_sparklines.js";
import { SweepRow, isFoldedAtFirst, sweepEntries } from "./runs_sweeps.js";
import { askedWords, button, choices, download, element, failedWords } from "../elements/dom.js";

const RUNS_POLL_MS = 2000;
const RUNS_IDLE_MS = 6000;
// Time for which a requested action is shown as pending. A supervisor forwards a request to its ranks sooner.
const RUNS_STOP_MS = 15000;
const RUNS_OF_KERNEL =
  "Stop requested: the kernel stops the job when its running cell finishes.";
const NO_RUNS = "No runs yet.";
const LARGEST_FIRST = ["created", "step"];
// The values of added columns are requested less often than the states of the runs.
const COLUMNS_MS = 15000;

// {id of a table: its views in this page that need rows from the kernel}. While one view needs them, the kernel sends
// the rows to all views of the table.
const needing = new Map();

/**
 * Show the runs in `root`. Returns a function that ends the view; its method `look()` polls the server at once.
 *
 * server   Server of server.js, or null
 * host     the actions that this page offers (host.js)
 * compact  for a sidebar: each run on a few short lines
 * model    the anywidget model, or null: `rows` without a server, `root_id`, `names` to show only these runs,
 *          `archived` to include archived runs
 */
export function mountRuns(root, { server, host = makeHost(), compact = false, model = null }) {
  const list = new RunsList(root, { server, host, compact, model });
  list.begin();
  return Object.assign(() => list.end(), { look: () => list.look() });
}

class RunsList extends RunsFrame {
  constructor(root, { server, host, compact, model }) {
    super();
    Object.assign(this, { root, host, compact, model, asked: server, server: null });
    this.runs = null;
    this.rows = new Map();
    this.chosen = new Set();
    this.sweeps = new Map();
    this.folds = new Map();
    this.busy = new Map();
    this.failures = {};
    this.extra = null;
    this.page = 0;
    this.only = model && model.get("names").length ? model.get("names") : null;
    this.orders = [this.only ? { key: "given", direction: 1 } : { key: "created", direction: -1 }];
    this.columnsAt = 0;
    this.columns = new RunColumns({ changed: () => this.otherColumns(), opened: () => this.readColumns() });
    this.sparklines = new RunSparklines(this);
    this.visible = false;
    this.feed = null;
    this.build();
  }

  // --- what is shown ---

  /** Sort by a column. With `further`, the column orders only runs that are equal in the columns chosen before. */
  sort(key, further = false) {
    const direction = LARGEST_FIRST.includes(key) ? -1 : 1;
    const known = this.orders.find((order) => order.key === key), alone = this.orders.length === 1;
    if (known && (further || alone)) known.direction = -known.direction;
    else if (further) this.orders.push({ key, direction });
    else this.orders = [{ key, direction }];
    this.filtered();
  }

  /** Draw the table again, because the user chose other columns. */
  otherColumns() {
    this.removeRows([...this.rows.keys()]);
    this.close();
    this.rebuildHead();
    this.draw();
    this.readColumns();
  }

  /** Request the values of the added columns, and the names of all columns that can be added. */
  async readColumns() {
    if (!this.server || this.compact || this.readingColumns) return;
    this.readingColumns = true;
    const keys = this.columns.asked;
    try {
      const found = await this.server.call(`columns?${new URLSearchParams(keys.map((key) => ["key", key]))}`);
      this.more = found.runs;
      this.columns.offer(found.known);
      if (this.given) this.show(this.given);
    } catch (error) {
      if (keys.length) this.say(`Cannot load the added columns: ${error.message}`, "error");
    } finally {
      this.readingColumns = false;
      this.columnsAt = Date.now();
    }
    if (keys.join() !== this.columns.asked.join()) this.readColumns();
  }

  filterTag(tag) {
    this.tag.value = tag;
    this.filtered();
  }

  /** Return whether the runs of a sweep are folded. Unless the user folded or unfolded it, a sweep is folded if it has
   *  many runs and the list also has other runs. A growing sweep stays unfolded while one of its runs has an open
   *  editor or question. */
  isFolded(name, runs) {
    const alone = runs.length === this.found.length, key = `${name} ${alone}`;
    const isOpen = this.extra && runs.some((run) => run.name === this.extra.name);
    if (isOpen && !this.folds.has(key)) this.folds.set(key, false);
    return this.folds.get(key) ?? (isFoldedAtFirst(runs) && !alone);
  }

  foldSweep(name, runs, folded) {
    this.folds.set(`${name} ${runs.length === this.found.length}`, folded);
    this.draw();
  }

  filtered() {
    this.page = 0;
    this.draw();
  }

  choose(names, wanted) {
    names.forEach((name) => (wanted ? this.chosen.add(name) : this.chosen.delete(name)));
    this.draw();
  }

  show(runs) {
    const before = new Map((this.runs || []).map((run) => [run.name, run]));
    const wanted = this.only && new Set(this.only), said = [];
    const isMeant = (run) => {
      if (this.archived || wanted) return (!wanted || wanted.has(run.name)) && (!this.archived || run.archived);
      return !run.archived || run.active || Boolean(this.model && this.model.get("archived"));
    };
    this.runs = runs.filter(isMeant).map((run) => {
      const more = this.more && this.more[run.name], failed_action = this.failures[run.name];
      return more || failed_action ? { ...run, more, failed_action } : run;
    });
    if (this.only) {
      const place = new Map(this.only.map((name, at) => [name, at]));
      this.runs.forEach((run) => (run.given = place.get(run.name)));
    }
    const names = new Set(this.runs.map((run) => run.name));
    for (const name of this.chosen) if (!names.has(name)) this.chosen.delete(name);
    for (const run of this.runs) {
      const old = before.get(run.name);
      if (!old || old.state === run.state) continue;
      this.busy.delete(run.name);
      if (this.answered === run.name) this.say("");
      said.push(`${run.name}: ${run.state}. ${run.cause || run.meaning || ""}`);
    }
    this.sayFailed(before);
    if (said.length) this.live.textContent = said.slice(0, 3).join(" ");
    choices(this.tag, tagChoices(this.runs));
    const states = [...new Set(this.runs.map((run) => run.state))].sort();
    choices(this.state, [...STATE_GROUPS, ...states.map((state) => [state, state])]);
    this.draw();
  }

  /** Report actions that failed after the server accepted them; `before` has the runs as they were last shown. */
  sayFailed(before) {
    const isNew = ({ name, failed_action }) => {
      const old = before.get(name);
      return failed_action && !(old && old.failed_action && old.failed_action.at === failed_action.at);
    };
    const found = this.runs.filter(isNew);
    if (!found.length) return;
    for (const { name } of found) this.busy.delete(name);
    this.answered = "";
    const texts = found.map(({ name, failed_action: { action, message } }) => `${name}: ${failedWords(action, message)}`);
    this.say(texts.slice(0, 3).join(" "), "error");
  }

  draw() {
    if (!this.runs) return;
    const filter = { text: this.text.value, state: this.state.value, tag: this.tag.value };
    const found = (this.found = sortedRuns(filteredRuns(this.runs, filter), this.orders));
    // A table of given names shows the runs in the order of the names.
    const grouped = this.only ? found.map((run) => ({ run })) : sweepEntries(found, (...sweep) => this.isFolded(...sweep));
    const pages = Math.max(1, Math.ceil(grouped.length / RUNS_ON_A_PAGE));
    this.page = Math.min(this.page, pages - 1);
    const begin = this.page * RUNS_ON_A_PAGE, inSight = grouped.slice(begin, begin + RUNS_ON_A_PAGE);
    this.shown = inSight.filter(({ run }) => run).map(({ run }) => run.name);
    const active = found.filter((run) => run.active).length;
    const of = found.length < this.runs.length ? ` of ${this.runs.length.toLocaleString("en")}` : "";
    const runs = this.runs.length === 1 ? "run" : "runs";
    const working = active ? `, ${active} active` : "";
    this.count.textContent = `${found.length.toLocaleString("en")}${of} ${runs}${working}`;
    this.drawRows(inSight);
    this.drawHead();
    this.drawBar();
    this.drawCompareAll();
    this.drawPager(begin, grouped.length);
    this.empty.hidden = found.length > 0;
    if (!found.length) this.drawEmpty();
  }

  drawEmpty() {
    const none = this.archived ? "No archived runs." : NO_RUNS;
    const words = this.runs.length ? "No runs match the filter." : none;
    if (this.empty.dataset.words === words) return;
    this.empty.dataset.words = words;
    this.empty.textContent = words;
    if (words !== NO_RUNS || this.only) return;
    if (this.host.openForm)
      this.empty.append(" ", button("New run", "Open the launch form", () => this.host.openForm()));
    else this.empty.append(' To submit one, run nb.submit("gpt-tiny") in a cell.');
  }

  drawRows(entries) {
    const now = Date.now() / 1000, wanted = new Set(this.shown);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.removeRows([...this.rows.keys()].filter((name) => !wanted.has(name)));
    const nodes = [], sweeps = new Set(entries.map(({ sweep }) => sweep));
    for (const [name, row] of this.sweeps) if (!sweeps.has(name)) row.node.remove();
    for (const entry of entries) {
      const { run, sweep } = entry;
      if (sweep) {
        if (!this.sweeps.has(sweep)) this.sweeps.set(sweep, new SweepRow(this, sweep));
        this.sweeps.get(sweep).draw(entry, this.compact ? 1 : this.columns.shown.length + 1);
        nodes.push(this.sweeps.get(sweep).node);
        continue;
      }
      if (!this.rows.has(run.name)) this.rows.set(run.name, new RunRow(this, run.name));
      const row = this.rows.get(run.name);
      row.draw(run, this.chosen.has(run.name), this.busy.get(run.name) || "", now);
      nodes.push(row.node);
      if (this.extra && this.extra.name === run.name) nodes.push(this.extra.node);
    }
    if (this.extra && !wanted.has(this.extra.name)) this.close();
    nodes.forEach((node, at) => {
      if (this.body.children[at] !== node) this.body.insertBefore(node, this.body.children[at] || null);
    });
    // Moving a row takes the focus from it.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus();
  }

  removeRows(names) {
    for (const name of names) {
      this.rows.get(name).node.remove();
      this.rows.delete(name);
      this.sparklines.forget(name);
    }
  }

  /** Move between runs with the arrow keys. */
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr.nbt-run");
    if (!step || !row) return;
    const next = this.shown[this.shown.indexOf(row.dataset.run) + step];
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    const same = event.target.type === "checkbox" ? "input" : "button.nbt-open";
    const target = this.rows.get(next).node.querySelector(same);
    if (target) target.focus();
  }

  // --- actions ---

  can(key) {
    if (key === "clone") return Boolean(this.host.openForm);
    return Boolean(this.server) || (key === "stop" && Boolean(this.model));
  }

  /** Return the actions that the server offers for a run, with their labels. */
  async actionsOf(run) {
    if (!this.server) return [];
    return (await this.server.call(`run/${encodeURIComponent(run.name)}`)).actions || [];
  }

  open(name, node) {
    const row = element("tr"), cell = element("td");
    cell.colSpan = this.compact ? 2 : this.columns.shown.length + 2;
    cell.append(node);
    row.append(cell);
    this.close();
    this.extra = { name, node: row };
    this.draw();
    node.first.focus();
  }

  close() {
    if (!this.extra) return;
    const { name, node } = this.extra, row = this.rows.get(name);
    const within = node.contains(document.activeElement);
    this.extra = null;
    node.remove();
    if (within && row) row.more.focus();
  }

  confirm(run, question, verb) {
    return new Promise((answer) => {
      this.open(run.name, runQuestion(question, verb, (value) => {
        this.close();
        answer(value);
      }));
    });
  }

  edit(run) {
    const save = (changes) => this.patch([run.name], changes);
    this.open(run.name, runEditor(run, save, () => this.close()));
  }

  async patch(names, changes) {
    for (const name of names) await this.server.call(`run/${encodeURIComponent(name)}`, "PATCH", changes);
    await this.look();
  }

  async archive(names, archived) {
    try {
      await this.patch(names, { archived });
      const which = names.length === 1 ? names[0] : runsCounted(names.length);
      this.say(archived ? `Archived ${which}.` : `Restored ${which} from the archive.`);
      this.choose(names, false);
    } catch (error) {
      this.say(error.message, "error");
    }
  }

  // --- several runs at once ---

  /** Show a question or an editor about the chosen runs below their bar. */
  openBulk(node) {
    this.bulkPlace.replaceChildren(node);
    node.first.focus();
  }

  closeBulk() {
    const within = this.bulkPlace.contains(document.activeElement);
    this.bulkPlace.replaceChildren();
    const first = this.bar.querySelector("button");
    if (within && first) first.focus();
  }

  ask(question, verb, act) {
    this.openBulk(runQuestion(question, verb, (value) => {
      this.closeBulk();
      if (value) act();
    }));
  }

  async bulk(names, done, act) {
    const { words, failures } = await forEachRun(names, done, act, (text) => this.say(text));
    this.answered = "";
    // Refresh the rows first, so that they agree with the message.
    await this.look();
    this.say(words, failures.length ? "error" : "");
  }

  /** Show a request as pending until the list shows its result. */
  pending(name, key) {
    this.busy.set(name, key);
    this.draw();
    setTimeout(() => this.busy.get(name) === key && this.busy.delete(name) && this.draw(), RUNS_STOP_MS);
  }

  /** Send one request about one run; rejects if the server refuses it. */
  async request(name, key, body = {}) {
    const path = `run/${encodeURIComponent(name)}`;
    if (key === "tag") return this.server.call(path, "PATCH", body);
    // A save does not change the run's state.
    if (key !== "save") this.pending(name, key);
    try {
      if (key === "delete") return await this.server.call(`${path}?confirm=${encodeURIComponent(name)}`, "DELETE");
      if (key === "kill") return await this.server.call(`${path}/stop`, "POST", { now: true });
      return await this.server.call(`${path}/${key}`, "POST", body);
    } catch (error) {
      this.busy.delete(name);
      this.draw();
      throw error;
    }
  }

  /** Save the runs that match the filter, with the shown columns, as CSV. */
  saveCsv() {
    const columns = this.columns.shown.filter(([key]) => isSortable(key)), quoted = (value) => {
      const text = String(value ?? "");
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const value = (run, key) => key === "created" ? new Date(1000 * run.created).toISOString() : columnValue(run, key);
    const rows = this.found.map((run) => columns.map(([key]) => value(run, key)));
    const lines = [columns.map(([, head]) => head), ...rows].map((cells) => cells.map(quoted).join(","));
    download("runs.csv", `${lines.join("\n")}\n`, "text/csv");
  }

  async act(run, action) {
    const { key } = action, { name } = run;
    if (key === "clone") return this.host.openForm({ clone: name });
    if (action.ask && !(await this.confirm(run, action.ask, action.words))) return;
    try {
      if (this.server) await this.request(name, key);
      else {
        this.pending(name, key);
        this.model.send({ kind: "stop", name });
      }
      // The kernel receives the request when it is idle.
      const said = this.server ? askedWords(key, run.queued) : RUNS_OF_KERNEL;
      if (key === "delete") await this.look();
      this.say(`${name}: ${key === "delete" ? "deleted." : said}`);
      // The message stays until the list shows the result.
      this.answered = key === "delete" ? "" : name;
    } catch (error) {
      this.say(`${name}: ${failedWords(key, error.message)}`, "error");
    }
    this.look();
  }

  // --- data ---

  need(rows) {
    const id = this.model.get("table_id"), views = needing.get(id) || new Set();
    needing.set(id, views);
    if (rows) views.add(this);
    else views.delete(this);
    this.model.send({ kind: views.size ? "push" : "rest" });
  }

  setServed(value) {
    if (Boolean(this.server) === value && this.polled) return;
    this.polled = true;
    this.server = value ? this.asked : null;
    this.rows.forEach((row) => (row.drawn = null));
    // The kernel sends rows only while the server does not respond.
    if (this.model) this.need(!value);
    this.draw();
  }

  took(value) {
    if (this.ended || !this.asked || !this.visible) return;
    const meant = this.model ? this.model.get("root_id") : "";
    if (meant && value.run_root_id !== meant) {
      this.asked = null;
      // The host's actions would open that server's run of the same name.
      this.host = hostElsewhere(this.host);
      this.removeRows([...this.rows.keys()]);
      this.barState = null;
      this.setServed(false);
      this.draw();
      this.say("This Jupyter server uses another output directory, so the runs come from the kernel.");
      return;
    }
    if (!this.server && this.polled) this.say("");
    this.setServed(true);
    this.given = value.runs;
    this.failures = value.failed_actions || {};
    this.show(value.runs);
    this.sparklines.plan();
    if (this.columns.asked.length && Date.now() - this.columnsAt > COLUMNS_MS) this.readColumns();
  }

  failed(error) {
    if (this.ended || !this.asked || !this.visible) return;
    this.setServed(false);
    this.say(this.inWords(error), this.model && error.status === 404 ? "" : "error");
    if (!this.runs && !this.model) this.empty.hidden = true;
  }

  /** Return the time until the next poll, in ms; null while the list is hidden. */
  wait() {
    if (this.ended || !this.asked || !this.visible || !this.root.isConnected) return null;
    return this.server && (this.given || []).some((run) => run.active) ? RUNS_POLL_MS : RUNS_IDLE_MS;
  }

  inWords(error) {
    if (error.status === 404 && this.model)
      return "This Jupyter server lacks nbtrain's server extension, so the runs come from the kernel.";
    if (error.status === 404)
      return (
        "This Jupyter server lacks nbtrain's server extension. Install nbtrain in the environment " +
        "that runs the server, then restart the server."
      );
    if (error.status === 403) return "You are not logged in to this Jupyter server. Reload the page to log in.";
    return `The Jupyter server does not respond (${error.message}). Trying again.`;
  }

  /** Poll now, because something was changed or the list became visible; resolves when the response is shown. */
  async look() {
    if (this.feed && this.wait() !== null) await this.feed.look();
  }

  begin() {
    this.watcher = new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting;
      if (this.feed) this.feed.plan();
    });
    this.watcher.observe(this.root);
    if (this.asked) this.feed = runsFeed(this.asked).join(this);
    this.onRows = () => !this.server && this.show(this.model.get("rows"));
    if (!this.model) return;
    this.onMessage = ({ kind, name, error }) => {
      if (kind === "stop") this.say(`${name}: ${failedWords(kind, error)}`, "error");
    };
    this.model.on("change:rows", this.onRows);
    this.model.on("msg:custom", this.onMessage);
    this.onRows();
    if (!this.asked) {
      this.setServed(false);
      this.say("This page cannot reach a Jupyter server, so the runs come from the kernel.");
    }
  }

  end() {
    this.ended = true;
    if (this.feed) this.feed.leave();
    this.watcher.disconnect();
    this.sparklines.end();
    if (!this.model) return;
    this.model.off("change:rows", this.onRows);
    this.model.off("msg:custom", this.onMessage);
    this.need(false);
  }
}
