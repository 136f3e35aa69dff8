// The launch form: its values, the requests that check them, and the actions of its buttons. Field texts, problems and
// plans come from lab/form/answers.py, through the server's routes form, form/assess, form/layouts and submit, or
// through the kernel that opened the form.

import { FormAsks } from "./form_requests.js";
import {
  draftOf, forgetDraft, joinViews, keepDraft, keepLastSettings, lastSettings, orphanOf, otherViews,
} from "./form_drafts.js";
import { FormHeld } from "./form_values.js";
import { makeHost } from "../host/host.js";
import { mountRun } from "../run/run.js";
import { choices, element } from "../elements/dom.js";

const AGAIN_MS = 4000;
// If the kernel has not acknowledged a change after this time, the form checks whether the kernel still runs. An idle
// kernel acknowledges a change much sooner.
const HEARD_MS = 2500;

// The setting that a clone changes most often.
const FIRST_OF_CLONE = "lr_schedule.lr";

const POSTPONED = "Not submitted yet: the kernel is running a cell. When the cell finishes, the kernel submits "
  + "the values that the form had when you pressed Submit.";

const changesCounted = (number) => `${number} ${number === 1 ? "change" : "changes"}`;

/**
 * Show a launch form in `root`; returns a function that removes it.
 *
 * server   Server of server.js, or null
 * host     the actions that this page offers (host.js)
 * start    {yaml, overrides, mode, clone, place}: the values that the form opens with
 * model    the anywidget model of lab/widgets/launcher.py, or null
 * id       key under which the browser saves typed values; "" saves nothing
 * isGone   for a form whose widget was lost: returns true if the kernel has ended, false if it is only unreachable
 * below    whether a submitted run is shown below the form
 */
export function mountForm(root, options) {
  const form = new Form(root, options);
  form.begin();
  return () => form.end();
}

class Form extends FormHeld {
  constructor(root, options) {
    super();
    const { server = null, host = makeHost(), start = {}, model = null, id = "" } = options;
    const { isGone = null, below = false } = options;
    Object.assign(this, { root, server, host, start, model, id, below });
    this.ofKernel = Boolean(model || isGone);
    this.lost = Boolean(isGone);
    this.submitting = false;
    this.isGone = isGone || (() => true);
    /** The number of the last change that the kernel is known to have received. */
    this.heard = 0;
    this.ended = false;
    this.asked = 0;
    this.reads = 0;
    this.timer = null;
    this.request = null;
    this.endRun = null;
    this.startKey = JSON.stringify([start.yaml, start.overrides, start.clone || ""]);
    this.state = { yaml: start.yaml || "", given: true, typed: {}, mode: start.mode || "full", seq: 0 };
    this.asks = new FormAsks(server, model, start.place);
    this.asks.postponed = () => this.answer.say(POSTPONED, "warning");
    this.build();
  }

  refill() {
    this.pages.refill();
    if (this.name.value !== this.text("name")) this.name.value = this.text("name");
    this.mode.value = this.state.mode;
  }

  /** A value was changed in this view: save it, send it to the kernel, and check it. */
  touched(wait = 0) {
    this.state.seq += 1;
    this.keep();
    this.layouts.age();
    this.unchecked();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.assess(), wait);
  }

  /** The newest response no longer matches the form's values, and a cell made from it would contain old values. */
  unchecked() {
    this.submitButton.disabled = this.insert.disabled = true;
  }

  keep() {
    if (this.id) {
      keepDraft(this.id, this.startKey, this.state, this.lost);
      for (const other of otherViews(this.id, this)) other.adopt(this.copy()) && other.lookLater();
    }
    if (this.model && !this.lost) {
      // The values are sent as a message, because JupyterLab sends a change of a trait only after the kernel has
      // acknowledged the previous one: a cell that is run meanwhile would get an old value.
      const status = ({ content }) => content.execution_state === "idle" && this.look();
      this.model.send({ kind: "hold", held: this.copy() }, { iopub: { status } });
      this.lookLater();
    }
    this.sayKernel();
  }

  lookLater() {
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.unheardNow() && this.look(), HEARD_MS);
  }

  // --- requests ---

  ask(path, more = {}) {
    return this.asks.ask(path, { ...this.question, ...more });
  }

  async assess() {
    const mine = (this.asked += 1);
    try {
      const found = await this.ask("form/assess");
      if (mine === this.asked && !this.ended) this.take(found);
    } catch (error) {
      if (mine === this.asked && !this.ended) this.failed(error, () => this.assess());
    }
  }

  /** Report that neither the server nor the kernel responds, or that the request was refused. */
  failed(error, again) {
    this.submitButton.disabled = true;
    if (error.status) return this.say(error.message, "bad");
    const kept = this.id ? " This browser saves what you type." : "";
    const kernel = this.lost && this.isGone() ? " The kernel that created the form has ended too." : "";
    const words = `The form cannot be checked or submitted now. ${error.message}${kernel}${kept}`;
    this.say(words, "bad", [["Try again", again]]);
    this.unheard = true;
    this.sayKernel();
    clearTimeout(this.timer);
    this.timer = setTimeout(again, AGAIN_MS);
  }

  take(found) {
    this.found = found;
    this.pages.follow(found.following);
    if (this.unheard) {
      this.unheard = false;
      this.say(this.asks.words);
      this.sayKernel();
    }
    const marks = {};
    const at = (key) => (marks[key] = marks[key] || {});
    for (const [key, , , by] of found.changes) at(key).changed = by;
    for (const { key, message, also } of found.problems) {
      if (key) (at(key).problems = at(key).problems || []).push(message);
      for (const other of also) at(other).also = key ? `See ${key}: ${message}` : message;
    }
    for (const { key, kind, rule, fix } of found.shortages) {
      const said = `${rule} ${fix}`.trim(), mark = key ? at(key) : {};
      if (kind === "error") (mark.problems = mark.problems || []).push(said);
      else mark.finding = mark.finding || said; // a resource that this machine lacks is not the user's mistake
    }
    for (const { key, message } of found.findings) if (key && !at(key).finding) at(key).finding = message;
    this.pages.mark(marks);
    this.nameHelp.textContent = ((marks.name || {}).problems || []).join(" ");
    this.name.setAttribute("aria-invalid", String(Boolean(this.nameHelp.textContent)));
    this.side.show(found);
    this.line.textContent = found.line;
    this.submitButton.disabled = this.submitting || !found.may_submit;
    this.submitButton.title = found.words || (found.may_submit ? "" : "Fix the problems first.");
    this.insert.disabled = false;
    this.root.dataset.line = found.line;
  }

  /** Request the description of a YAML with the form's values, and show it. Resolves to whether that succeeded. */
  async describe() {
    const mine = (this.asked += 1);
    this.reads += 1;
    try {
      const described = await this.ask("form");
      if (mine === this.asked && !this.ended) this.show(described);
      return true;
    } catch (error) {
      this.isRefused = Boolean(error.status);
      if (mine === this.asked && !this.ended)
        this.failed(error, async () => (await this.describe()) && this.greet());
      return false;
    }
  }

  show(described) {
    this.described = described;
    this.inside.disabled = false;
    this.state.yaml = described.yaml;
    this.pages.show(described);
    if (this.yaml) {
      const names = [...new Set([described.yaml, ...described.yamls])].sort((one, two) =>
        described.yamls.indexOf(one) - described.yamls.indexOf(two));
      choices(this.yaml, names.map((name) => [name, name]));
      this.yaml.value = described.yaml;
    }
    this.refill();
    const { assessment } = described;
    this.proposeName(assessment.taken);
    // If the form proposes another name, the problem with this name no longer applies.
    const problems = assessment.problems.filter(({ key }) => key !== "name" || !this.proposal);
    this.take({ ...assessment, problems });
    if (this.proposal) this.touched();
  }

  /** Give a run whose name is taken the first free name, unless a notebook or the user chose the name. */
  proposeName(taken) {
    const { typed } = this.state;
    this.proposal = null;
    if (!taken || this.start.mode || this.lost || ("name" in typed && typed.name !== this.state.proposed)) return;
    this.proposal = taken;
    this.state.proposed = taken.free;
    this.hold("name", taken.free);
    this.refill();
  }

  /** [sentence, actions] about the proposed name; ["", []] without one. */
  proposed() {
    if (!this.proposal) return ["", []];
    const { name, is_run: isRun, free } = this.proposal, actions = [];
    if (isRun && this.host.openRun) actions.push([`Open ${name}`, () => this.host.openRun(name)]);
    actions.push([`Use the name ${name}`, () => this.use({ name }, `the name ${name}`)]);
    return [`The name ${name} is taken, so this run is called ${free}.`, actions];
  }

  // --- what the user does ---

  /** Open another YAML. The notebook's overrides are applied to it; changes made in the form are not. */
  async open(yaml) {
    const before = this.copy(), left = this.changes;
    Object.assign(this.state, { yaml, typed: {} });
    if (!(await this.redescribe(before))) return;
    const parts = [`Opened ${yaml}${this.givenWords(" with the notebook's overrides ")}.`], actions = [];
    if (this.described.left_out)
      parts.push(`The notebook's overrides do not fit this YAML and were not applied: ${this.described.left_out}`);
    if (left) {
      parts.push(`${changesCounted(left)} to ${before.yaml} ${left === 1 ? "was" : "were"} not carried over.`);
      actions.push(["Apply them here", () => this.use(before.typed, `the changes to ${before.yaml}`)]);
      actions.push(["Undo", () => this.put(before)]);
    }
    if (this.described.given.length) actions.push(["Remove the overrides", () => this.dropGiven()]);
    const [sentence, others] = this.proposed();
    this.say([...parts, sentence].filter(Boolean).join(" "), "", [...actions, ...others]);
  }

  /** Request the description of the new state. If the YAML cannot be read, restore the state `before`. Returns whether
   *  the form shows the new state; false if the user chose another state meanwhile. */
  async redescribe(before) {
    const mine = (this.reads += 1), isOver = () => mine !== this.reads || this.ended;
    // A response that is still on its way is about the previous state.
    this.asked += 1;
    this.unchecked();
    this.say("Reading\u2026");
    try {
      const described = await this.ask("form");
      if (isOver()) return false;
      this.show(described);
      this.touched();
      return true;
    } catch (error) {
      if (isOver()) return false;
      this.state = before;
      if (this.yaml) this.yaml.value = before.yaml;
      this.say(error.message, "bad");
      this.assess();
      return false;
    }
  }

  /** Return the text `before` followed by the notebook's overrides; "" if there are none. */
  givenWords(before) {
    const given = this.described.given.map(([key, , now]) => `${key} = ${now}`);
    return given.length ? `${before}${given.join(", ")}` : "";
  }

  /** Restore an earlier state. */
  async put(state) {
    const now = this.copy();
    this.state = { ...state, typed: { ...state.typed }, seq: this.state.seq };
    if (await this.redescribe(now)) this.say("Changes restored.");
  }

  resetAll() {
    const before = this.copy(), count = this.changes;
    this.state.typed = {};
    this.refill();
    this.touched();
    const stays = this.givenWords(" The notebook's overrides still apply: ");
    const actions = count ? [["Undo", () => this.put(before)]] : [];
    if (this.described.given.length) actions.push(["Remove the overrides too", () => this.dropGiven()]);
    const words = count ? `${changesCounted(count)} undone.` : "No values were changed in the form.";
    this.say(words + (stays && `${stays}.`), "", actions);
    this.answer.say("");
  }

  /** Use the YAML without the notebook's overrides. */
  async dropGiven() {
    const before = this.copy();
    this.state.given = false;
    if (await this.redescribe(before))
      this.say("The notebook's overrides are no longer applied.", "", [["Undo", () => this.put(before)]]);
  }

  /** Set the texts of several fields, for example to apply a layout. */
  use(texts, words) {
    const before = this.copy();
    for (const [key, text] of Object.entries(texts)) this.hold(key, text);
    this.refill();
    this.touched();
    this.say(`Applied: ${words}.`, "", [["Undo", () => this.put(before)]]);
  }

  go(key) {
    if (key === "name") this.name.focus();
    else this.pages.go(key);
  }

  async insertCell() {
    try {
      await this.host.insertCell(this.found.cell);
      this.answer.say("A cell with these values was inserted into the notebook.");
    } catch (error) {
      this.answer.say(`Cannot insert a cell: ${error.message}`);
    }
  }

  async submit() {
    this.submitting = this.submitButton.disabled = true;
    this.answer.say("Submitting\u2026");
    const settings = this.settings();
    try {
      const found = await this.ask("submit", { name: this.text("name") });
      this.keepLast(found, settings);
      const shown = this.showRun(found.name);
      // A form in a separate tab has done its work; in a notebook, the reader's place is kept.
      if (!this.ofKernel && !found.twin_of && this.host.openRun) this.host.openRun(found.name);
      this.answer.took(found, this.asks.source === "server" ? this.server : null, shown);
    } catch (error) {
      this.answer.say(error.message, "error");
    } finally {
      this.submitting = false;
      // If values changed meanwhile, the button is enabled once they are checked.
      this.submitButton.disabled = this.insert.disabled || !(this.found && this.found.may_submit);
    }
  }

  /** The form's values without the run's name; the overrides that it was opened with become typed values. */
  settings() {
    const { yaml, mode } = this.state, { specs } = this.pages;
    const given = this.described.given.map(([key]) => [key, specs.get(key).value]);
    const { name: _, ...typed } = { ...Object.fromEntries(given), ...this.state.typed };
    return { yaml, typed, mode };
  }

  /** Save the settings of a submitted run: a form that is opened next without a run begins with them. */
  keepLast(found, settings) {
    if (this.ofKernel || this.start.clone || found.twin_of) return;
    keepLastSettings({ name: found.name, ...settings });
  }

  /** Show the run below the form, in a notebook. Returns whether it is shown. */
  showRun(name) {
    if (this.endRun) this.endRun();
    this.endRun = null;
    if (!this.below || this.asks.source !== "server") return false;
    const place = element("div");
    this.result.replaceChildren(place);
    this.endRun = mountRun(place, { server: this.server, name, host: this.host });
    return true;
  }

  // --- the kernel ---

  sayKernel() {
    if (!this.ofKernel) return;
    let words = "The notebook's next cell gets these values as form.config.";
    if (this.lost && !this.isGone())
      words = "The kernel is busy with a cell; your changes are applied when the cell finishes.";
    else if (this.lost)
      words = "The kernel that created this form has ended, so later cells do not get these values. Run the "
        + `form's cell again to restore them${this.unheard ? "" : ", or insert them as a cell"}.`;
    else if (this.unheardNow())
      words = "The kernel is busy with a cell; it receives the last change when the cell finishes.";
    this.kernel.textContent = words;
    this.kernel.classList.toggle("nbf-warning", words.startsWith("The kernel"));
  }

  /** The kernel was restarted or shut down, and the model's comm is closed. */
  lose() {
    if (this.lost) return;
    this.lost = true;
    this.unsure = false;
    this.asks.lose();
    if (this.id) keepDraft(this.id, this.startKey, this.state, true);
    this.sayKernel();
  }

  unheardNow() {
    return Boolean(this.model) && !this.lost && this.heard < this.state.seq;
  }

  /** Check by the model's comm and by the kernel's list of comms whether the model's kernel still runs. */
  async look() {
    const manager = this.model && this.model.widget_manager, key = this.model && this.model.get("key");
    if (!manager || !key) return;
    try {
      const found = await manager.get_model(key);
      if (!found.comm_live) return this.lose();
      // The kernel may have been restarted elsewhere. A busy kernel answers after its cell.
      const { kernel } = manager, { seq } = this.state;
      if (kernel && kernel.requestCommInfo) {
        const { content } = await kernel.requestCommInfo({ target_name: "jupyter.widget" });
        if (content.comms && !(key in content.comms)) return this.lose();
      }
      this.unsure = false;
      // The kernel answers in order, so it has received everything sent before.
      this.heard = Math.max(this.heard, seq);
      this.sayKernel();
    } catch {
      if (!this.ended) this.lose();
    }
  }

  begin() {
    const kept = this.id ? draftOf(this.id) : null;
    if (this.id) this.leaveViews = joinViews(this.id, this);
    if (this.model) {
      this.onHeld = () => {
        if (this.adopt(this.model.get("held"))) this.heard = this.state.seq;
      };
      this.onLive = () => this.look();
      this.model.on("change:held", this.onHeld);
      this.model.on("comm_live_update", this.onLive);
      // A kernel that was restarted elsewhere does not have the model.
      this.onStatus = (_, status) => {
        if (/starting/.test(status)) this.unsure = true;
        // A request to a kernel that is still starting may be lost.
        if (this.unsure && /starting|idle/.test(status)) this.look();
      };
      this.statuses = (this.model.widget_manager || {}).kernel?.statusChanged;
      if (this.statuses) this.statuses.connect(this.onStatus);
      this.look();
      const held = this.model.get("held");
      if (held && held.seq !== undefined) this.state = { ...this.state, ...held };
    }
    const newer = kept && kept.start === this.startKey && kept.state.seq > this.state.seq;
    this.heard = this.state.seq;
    if (newer) this.state = { ...this.state, ...kept.state };
    const { yaml: ofStart, overrides, clone } = this.start;
    const opensEmpty = !this.ofKernel && !ofStart && !overrides && !clone && !newer;
    this.last = opensEmpty ? lastSettings() : null;
    if (this.last) {
      const { yaml, typed, mode } = this.last;
      Object.assign(this.state, { yaml, typed: { ...typed }, mode: mode || this.state.mode });
    }
    if (this.lost) this.watching = setInterval(() => this.sayKernel(), AGAIN_MS);
    this.say("Reading\u2026");
    this.describe().then((done) => {
      if (this.ended) return;
      if (!done) return this.withoutLast();
      if (newer) this.keep();
      this.greet();
      if (clone && !overrides && !newer) this.pages.begin(FIRST_OF_CLONE);
    });
  }

  /** Open the example if the YAML of the last run can no longer be read. */
  async withoutLast() {
    if (!this.last || !this.isRefused) return;
    keepLastSettings(null);
    this.last = null;
    Object.assign(this.state, { yaml: "", typed: {}, mode: this.start.mode || "full" });
    if (await this.describe()) this.greet();
  }

  /** Show the first message: that the kernel responds instead of the server, or which settings the form opens with, or
   *  that an earlier form has changes that can be restored. */
  greet() {
    this.sayKernel();
    const found = this.id && !Object.keys(this.state.typed).length ? orphanOf(this.startKey, this.id) : null;
    if (found) {
      const [id, { state }] = found, count = Object.keys(state.typed).length;
      const forget = () => {
        forgetDraft(id);
        this.say("");
      };
      const take = () => {
        forgetDraft(id);
        this.put({ ...this.state, ...state });
      };
      const words = `An earlier form of this run had ${changesCounted(count)} when its kernel ended.`;
      return this.say(words, "", [["Restore them", take], ["Discard them", forget]]);
    }
    const left = this.described.left_out;
    if (left) return this.say(`Some of the notebook's overrides were not applied: ${left}`, "bad");
    const [sentence, actions] = this.proposed(), { last } = this, words = [this.asks.words];
    if (last) {
      const example = this.described.yamls[0];
      words.push(`The form opens with the settings of ${last.name}, the last run submitted from this browser.`);
      if (example && (example !== last.yaml || this.changes)) actions.push([`Open ${example}`, () => this.open(example)]);
    }
    this.say([...words, sentence].filter(Boolean).join(" "), "", actions);
  }

  /** Adopt values that were changed by the kernel (form.set in a cell) or in another view of this form. Returns false,
   *  without adopting them, if they are not newer. */
  adopt(held) {
    if (!held || !(held.seq > this.state.seq)) return false;
    const same = held.yaml === this.state.yaml && held.given === this.state.given;
    this.state = { ...this.state, ...held, typed: { ...held.typed } };
    if (same && this.described) {
      this.refill();
      this.unchecked();
      this.assess();
    } else this.describe();
    return true;
  }

  end() {
    this.ended = true;
    if (this.leaveViews) this.leaveViews();
    clearTimeout(this.timer);
    clearTimeout(this.looking);
    clearInterval(this.watching);
    if (this.model) {
      this.model.off("change:held", this.onHeld);
      this.model.off("comm_live_update", this.onLive);
      if (this.statuses) this.statuses.disconnect(this.onStatus);
    }
    this.asks.dispose();
    this.answer.leave();
    if (this.endRun) this.endRun();
  }
}
