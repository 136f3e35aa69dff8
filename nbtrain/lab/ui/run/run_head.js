// The head of a run: its state as a pill, the model, the buttons, an error box and the progress.

import { Clamped } from "../elements/clamp.js";
import { button, copyButton, drawEach, element, known } from "../elements/dom.js";

// The places of the buttons from left to right, with the actions that share a place (lab/run_actions.py). A button
// never moves when the state changes, so that a second click does not trigger another action.
const SLOTS = {
  save: ["save"],
  pause: ["pause", "resume"],
  clone: ["clone"],
  tensorboard: ["tensorboard"],
  model: ["model"],
  delete: ["kill", "delete"],
  stop: ["stop"],
};
const MODEL = { key: "model", words: "Try the model", title: "Generate text with the checkpoints of this run" };
const NO_MODEL = { ...MODEL, title: "The run has not saved a checkpoint yet.", off: true };
const BOARD = { key: "tensorboard", words: "TensorBoard", title: "Open the curves of this run in TensorBoard" };

// Buttons that open another page and change nothing.
const BESIDE = ["tensorboard", "model"];

/** Return a state as a coloured pill. */
export function pill(words, tone, title = "") {
  const node = element("span", `nbt-pill nbt-tone-${tone || "calm"}`, words);
  if (title) node.title = title;
  return node;
}

export class RunHead {
  /** `act(key)` carries out the action of a button: "stop", "resume" and so on. */
  constructor(run, act) {
    this.run = run;
    this.act = act;
    this.busy = "";
    this.node = element("div", "nbt-top");
    const head = element("div", "nbt-head");
    this.state = element("span", "nbt-state");
    this.name = element("span", "nbt-name");
    this.sub = element("span", "nbt-sub");
    this.about = element("span");
    this.sub.append(this.about);
    this.actions = element("span", "nbt-actions");
    const titles = element("span", "nbt-titles");
    titles.append(this.state, this.name, this.sub);
    head.append(titles, this.actions);
    this.note = new Clamped("nbt-note");
    this.failure = element("div", "nbt-failure");
    this.failure.hidden = true;
    this.failed = element("b");
    this.remedies = element("span", "nbt-actions");
    this.cause = new Clamped("nbt-cause");
    this.advice = new Clamped("nbt-advice");
    const failed = element("div", "nbt-failed");
    failed.append(this.failed, this.remedies);
    this.failure.append(failed, this.cause.node, this.advice.node);
    this.message = new Clamped("nbt-note", "status");
    this.asked = element("div", "nbt-asked");
    this.asked.hidden = true;
    this.answer = () => {};
    this.refocus = "";
    this.asked.addEventListener("keydown", (event) => event.key === "Escape" && this.answer(false));
    this.live = element("div", "nbt-unseen");
    this.live.setAttribute("aria-live", "polite");
    this.bar = element("div", "nbt-bar");
    this.fill = element("div", "nbt-fill");
    this.bar.append(this.fill);
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-label", "progress of the run");
    this.steps = element("div", "nbt-steps");
    const texts = [this.note.node, this.message.node, this.live];
    this.node.append(head, this.asked, this.failure, ...texts, this.bar, this.steps);
  }

  say(text, kind = "") {
    this.message.show(text);
    this.message.node.className = `nbt-clamped nbt-note ${kind && `nbt-${kind}`}`;
  }

  /** Ask a question on the page. Resolves to whether the user agreed. */
  confirm(question, verb) {
    const answers = [["Cancel", false], [verb, true, "nbt-danger"]];
    return this.choose("alertdialog", question, answers, false);
  }

  /**
   * Offer to undo an action before it is carried out. Resolves to false if the user chose Undo; to true if the user
   * chose not to wait, or after `milliseconds` without a choice.
   */
  undoable(words, milliseconds) {
    const end = Date.now() + milliseconds;
    const say = () => `${words} in ${Math.max(1, Math.ceil((end - Date.now()) / 1000))} s.`;
    this.live.textContent = say();
    const chosen = this.choose("group", say(), [["Undo", false], ["Do not wait", true]], true);
    const label = this.asked.querySelector("span");
    const ticking = setInterval(() => (label.textContent = say()), 500);
    const timer = setTimeout(() => this.answer(true), milliseconds);
    chosen.then(() => {
      clearTimeout(timer);
      clearInterval(ticking);
    });
    return chosen;
  }

  /** Show a question with buttons below the head. Resolves to the value of the chosen button, or to `left` if the page
   *  is closed first. */
  choose(role, words, answers, left) {
    this.answer(false);
    return new Promise((done) => {
      const before = document.activeElement, slot = before.dataset.slot || this.refocus;
      this.left = left;
      this.answer = (value) => {
        const within = this.asked.contains(document.activeElement);
        // A browser takes the focus from a hidden element later; it must not look as if the user had moved it.
        if (within) document.activeElement.blur();
        this.asked.hidden = true;
        this.answer = () => {};
        // The buttons may have been recreated meanwhile.
        const again = this.actions.querySelector(`[data-slot="${slot}"]`) || before;
        if (within) again.focus();
        // A button that is still disabled gets the focus when it is enabled again.
        if (within && document.activeElement !== again) this.refocus = slot;
        done(value);
      };
      const buttons = answers.map(([verb, value, look]) => button(verb, "", () => this.answer(value), look));
      this.asked.replaceChildren(element("span", "", words), ...buttons);
      this.asked.setAttribute("role", role);
      this.asked.setAttribute("aria-label", words);
      this.asked.hidden = false;
      buttons[0].focus();
    });
  }

  /** End the view: an open question counts as cancelled, and an action that can still be undone is carried out. */
  dispose() {
    this.answer(this.left);
  }

  draw(snap) {
    const shown = snap.shown;
    this.name.textContent = snap.name;
    this.about.textContent = this.sub.title = shown.about;
    this.drawState(snap);
    this.drawActions(snap);
    this.drawNote(snap);
    const percent = (100 * shown.fraction).toFixed(2);
    // A transform needs no layout; an animated width costs a tenth of a core while a page is open.
    this.fill.style.transform = `scaleX(${percent / 100})`;
    this.bar.setAttribute("aria-valuenow", percent);
    drawEach(this.steps, shown.line, ([label, value]) => {
      const node = element("span", { step: "nbt-step", "time left": "nbt-eta" }[label]);
      node.append(`${label} `, element("b", "", value));
      return node;
    });
  }

  drawState(snap) {
    const stopping = snap.active && this.busy === "stop";
    const [words, tone] = stopping ? ["Stopping...", "wait"] : snap.shown.pill;
    if (this.stateWords === words) return;
    this.state.replaceChildren(pill(words, tone, snap.meaning));
    const why = snap.cause || snap.meaning;
    const ending = words.endsWith(".") ? "" : ".";
    if (known(this.stateWords)) this.live.textContent = `${snap.name}: ${words}${ending} ${why}`;
    this.stateWords = words;
  }

  /** Return the buttons of all places, in order. A place that this page cannot offer has no button. */
  buttons(snap) {
    const { host, absent } = this.run, saved = snap.progress && known(snap.progress.checkpoint_step);
    const possible = [
      ...(snap.actions || []),
      ...(host.openTensorBoard && !absent ? [BOARD] : []),
      ...(host.openModel && !absent ? [saved ? MODEL : NO_MODEL] : []),
    ];
    return Object.entries(SLOTS).flatMap(([slot, keys]) => {
      const action = possible.find(({ key }) => keys.includes(key)), off = (snap.off || {})[slot];
      const shown = action || (off && { ...off, off: true });
      return shown && (BESIDE.includes(shown.key) || this.run.can(shown.key)) ? [{ ...shown, slot }] : [];
    });
  }

  drawActions(snap) {
    const all = this.buttons(snap), state = JSON.stringify([all, this.busy]);
    if (state === this.actionState) return;
    this.actionState = state;
    const focused = this.actions.contains(document.activeElement) && document.activeElement.dataset.slot;
    this.actions.replaceChildren(...all.map(({ key, slot, words, title, off }) => {
      const node = button(words, title, () => this.act(key), `nbt-${key}`);
      node.dataset.key = key;
      node.dataset.slot = slot;
      node.disabled = Boolean(off || (this.busy && !BESIDE.includes(key)));
      return node;
    }));
    // A button that was disabled for a moment has lost the focus. It gets the focus back, unless the user moved it.
    if (focused) this.refocus = focused;
    else if (document.activeElement !== document.body) this.refocus = "";
    const again = this.refocus && this.actions.querySelector(`[data-slot="${this.refocus}"]`);
    if (again) again.focus();
    if (again && document.activeElement === again) this.refocus = "";
  }

  drawNote(snap) {
    const shown = snap.shown, failed = shown.tone === "error" && snap.cause;
    this.note.show(failed ? "" : shown.note);
    this.note.node.className = `nbt-clamped nbt-note ${shown.tone && `nbt-${shown.tone}`}`;
    this.failure.hidden = !failed;
    if (!failed) return;
    this.failed.textContent = snap.failed ? "The job has failed" : "The job is lost";
    this.cause.show(snap.cause);
    this.advice.show(shown.advice);
    const resume = (snap.actions || []).find(({ key }) => key === "resume" && this.run.can(key));
    const others = resume ? snap.remedies || [] : [];
    const state = JSON.stringify([snap.cause, resume, others, this.busy]);
    if (state === this.failureState) return;
    this.failureState = state;
    const buttons = [copyButton("Copy", "Copy the cause", () => snap.cause)];
    if (resume) {
      const node = button("Resume", resume.title, () => this.act("resume"), "nbt-primary");
      buttons.unshift(node);
    }
    buttons.unshift(...others.map(({ words, title, overrides }) =>
      button(words, title, () => this.act("resume", overrides))));
    buttons.slice(0, -1).forEach((node) => (node.disabled = Boolean(this.busy)));
    this.remedies.replaceChildren(...buttons);
  }
}
