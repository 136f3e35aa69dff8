// One run as a row of the list. A row is kept while its run is visible, and refilled when the run changes.

import { pill } from "../run/run_head.js";
import { tagsOf } from "./runs_order.js";
import { STOPPING, age, button, element, failedWords, known, moment, stamp } from "../elements/dom.js";

/** A run's state from the user's click until the list shows its result. */
const BUSY_WORDS = { stop: "Stopping...", pause: "Pausing...", resume: "Resuming...", kill: "Killing...", delete: "Deleting..." };

export class RunRow {
  /** `list` is the controller of runs.js. */
  constructor(list, name) {
    this.list = list;
    this.name = name;
    this.node = element("tr", "nbt-run");
    this.node.dataset.run = name;
    const pick = element("td", "nbt-pick"), box = element("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `Select ${name}`);
    box.addEventListener("change", () => list.choose([name], box.checked));
    this.box = box;
    const target = element("label");
    target.append(box);
    pick.append(target);
    this.open = list.host.openRun
      ? button(name, `Open ${name}`, () => list.host.openRun(name), "nbt-open")
      : element("b", "nbt-open", name);
    this.tags = element("div", "nbt-tags");
    this.under = element("div", "nbt-about nbt-under");
    this.state = element("span");
    this.track = element("div", "nbt-track");
    this.fill = element("i");
    this.track.append(this.fill);
    this.acts = element(list.compact ? "span" : "td", "nbt-row-acts");
    this.stop = button("Stop", "", () => list.act(this.run, { key: "stop", words: "Stop" }), "nbt-stop");
    this.stop.setAttribute("aria-label", `Stop ${name}`);
    this.clone = button("Clone", "Open the form with this run's settings under a new name",
      () => list.act(this.run, { key: "clone" }), "nbt-clone");
    this.clone.setAttribute("aria-label", `Clone ${name}`);
    this.more = button("\u22ef", `Actions for ${name}`, () => list.menu.open(this.run, this.more), "nbt-row-menu");
    this.more.setAttribute("aria-label", `Actions for ${name}`);
    this.more.setAttribute("aria-haspopup", "true");
    this.acts.append(this.stop, ...(list.compact ? [] : [this.clone]), " ", this.more);
    this.node.append(pick, ...(list.compact ? this.compactCells() : [...this.fullCells(), this.acts]));
  }

  fullCells() {
    this.cells = {};
    this.texts = [];
    return this.list.columns.shown.map(([key, , className, text]) => {
      const cell = element("td", className);
      cell.dataset.column = key;
      this.cells[key] = cell;
      if (text) this.texts.push([cell, text]);
      if (key === "name") cell.append(this.open, this.tags, this.under);
      if (key === "state") cell.append(this.state);
      if (key === "curve") this.list.sparklines.watch(this.name, cell);
      if (key === "backend" || key === "created") {
        const lines = [element("div"), element("div", "nbt-about")];
        this[key] = lines;
        cell.append(...lines);
      }
      if (key === "about") {
        this.notes = element("div", "nbt-about");
        this.cause = element("div", "nbt-about");
        cell.append(this.notes, this.cause);
      }
      if (key === "step") {
        this.steps = element("div");
        cell.append(this.steps, this.track);
      }
      return cell;
    });
  }

  compactCells() {
    const cell = element("td", "nbt-wide"), first = element("div", "nbt-first");
    this.line = element("div", "nbt-line");
    first.append(this.open, this.acts);
    this.under.classList.remove("nbt-under");
    cell.append(first, this.line, this.track, this.under, this.tags);
    return [cell];
  }

  /** Fill the row; `busy` is the key of a requested action that is not finished, or "". */
  draw(run, chosen, busy, now) {
    this.run = run;
    this.box.checked = chosen;
    // Ages change with time, everything else only with the run.
    const ages = [run.created, run.ended ?? run.created].map((time) => age(now - time));
    const state = JSON.stringify([run, busy, ages]);
    if (state === this.drawn) return;
    this.drawn = state;
    this.node.dataset.state = run.state;
    const [words, tone] = BUSY_WORDS[busy] ? [BUSY_WORDS[busy], "wait"] : run.pill || [run.state, ""];
    this.state.replaceChildren(pill(words, tone, run.cause || run.meaning || ""));
    this.node.classList.toggle("nbt-archived", Boolean(run.archived));
    this.drawTags(run);
    const failed = run.failed_action, bad = tone === "bad" || Boolean(failed);
    const cause = failed ? failedWords(failed.action, failed.message) : run.cause || "";
    // The line has space for one text: for a waiting job, the reason is shown instead of the notes.
    const told = Boolean(cause) && (bad || tone === "wait");
    const note = run.notes ? run.notes.trim() : "";
    this.under.textContent = told ? cause : note || (this.list.compact ? "" : cause);
    this.under.title = this.under.textContent;
    this.under.classList.toggle("nbt-error", bad && Boolean(cause));
    const fraction = run.active && run.max_steps ? Math.min(1, (run.step || 0) / run.max_steps) : 0;
    this.track.hidden = !(run.active && run.max_steps);
    this.fill.style.width = `${(100 * fraction).toFixed(1)}%`;
    this.stop.hidden = !run.active || !this.list.can("stop");
    this.clone.hidden = run.active || !this.list.can("clone");
    this.stop.disabled = Boolean(busy) || run.asked === "stop";
    this.stop.title = run.queued ? "Remove the job from the queue."
      : `Stop the job: ${STOPPING}.`;
    if (this.list.compact) return this.drawLine(run, now);
    this.drawCells(run, now);
    if (!this.notes) return;
    this.notes.textContent = this.notes.title = note;
    this.cause.textContent = this.cause.title = cause;
    this.cause.classList.toggle("nbt-error", bad);
  }

  /** Fill the cells of the columns that are shown. */
  drawCells(run, now) {
    const { cells } = this;
    for (const [cell, text] of this.texts) cell.textContent = text(run);
    if (this.steps) this.steps.textContent = run.words.step;
    for (const key of ["loss", "validation_loss"]) if (cells[key]) cells[key].textContent = run.words[key];
    if (cells.eta_seconds) cells.eta_seconds.textContent = (run.active && run.words.eta) || "";
    if (this.backend) this.backend.forEach((node, at) => (node.textContent = [run.backend, run.words.size][at] || ""));
    if (!this.created) return;
    const ago = `${age(now - run.created)} ago`;
    this.created.forEach((node, at) => (node.textContent = [moment(run.created), ago][at]));
    cells.created.title = known(run.ended)
      ? `Submitted ${stamp(run.created)}, ended ${stamp(run.ended)}`
      : `Submitted ${stamp(run.created)}`;
  }

  drawLine(run, now) {
    const parts = [];
    if (known(run.step)) parts.push(["step", run.words.step]);
    if (known(run.loss)) parts.push(["loss", run.words.loss]);
    if (run.active && run.words.eta) parts.push(["left", run.words.eta]);
    if (!run.active) parts.push([`${age(now - (run.ended ?? run.created))} ago`, ""]);
    this.line.replaceChildren(this.state, ...parts.map(([label, value]) => {
      const node = element("span", "", value ? `${label} ` : label);
      if (value) node.append(element("b", "", value));
      return node;
    }));
    this.line.title = `Submitted ${stamp(run.created)}`;
  }

  drawTags(run) {
    const tags = run.archived ? [...tagsOf(run), ""] : tagsOf(run), state = JSON.stringify(tags);
    if (state === this.tagState) return;
    this.tagState = state;
    this.tags.replaceChildren(...tags.map((tag) =>
      tag === ""
        ? element("span", "nbt-word", "archived")
        : button(tag, `Show only runs with ${tag}`, () => this.list.filterTag(tag), "nbt-tag"),
    ));
  }
}
