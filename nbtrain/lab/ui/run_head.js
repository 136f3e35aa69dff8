// The head of a run: its state as a pill, the model, the buttons, an error box and the progress.

import { button, copyButton, element, known } from "./words.js";


/** A state as a coloured pill. */
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
    this.actions = element("span", "nbt-actions");
    head.append(this.state, this.name, this.sub, this.actions);
    this.note = element("div", "nbt-note");
    this.failure = element("div", "nbt-failure");
    this.failure.hidden = true;
    this.message = element("div", "nbt-note");
    this.message.setAttribute("role", "status");
    this.asked = element("div", "nbt-asked");
    this.asked.hidden = true;
    this.live = element("div", "nbt-unseen");
    this.live.setAttribute("aria-live", "polite");
    this.bar = element("div", "nbt-bar");
    this.fill = element("div", "nbt-fill");
    this.bar.append(this.fill);
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-label", "progress of the run");
    this.steps = element("div", "nbt-steps");
    const rows = [head, this.asked, this.failure, this.note, this.message, this.live, this.bar, this.steps];
    this.node.append(...rows);
  }

  say(text, kind = "") {
    this.message.textContent = text;
    this.message.className = `nbt-note ${kind && `nbt-${kind}`}`;
  }

  /** Ask a question in the page. Resolves to whether the user agreed. */
  confirm(question, verb) {
    return new Promise((done) => {
      const before = document.activeElement;
      const answer = (value) => () => {
        const within = this.asked.contains(document.activeElement);
        this.asked.hidden = true;
        // The buttons may have been recreated meanwhile.
        const again = this.actions.querySelector(`[data-key="${before.dataset.key}"]`) || before;
        if (within) again.focus();
        done(value);
      };
      const no = button("Cancel", "", answer(false));
      const words = element("span", "", question);
      this.asked.replaceChildren(words, button(verb, "", answer(true), "nbt-danger"), no);
      this.asked.setAttribute("role", "alertdialog");
      this.asked.setAttribute("aria-label", question);
      this.asked.hidden = false;
      this.asked.onkeydown = (event) => event.key === "Escape" && answer(false)();
      no.focus();
    });
  }

  draw(snap) {
    const shown = snap.shown;
    this.name.textContent = snap.name;
    this.sub.textContent = this.sub.title = shown.about;
    this.drawState(snap);
    this.drawActions(snap);
    this.drawNote(snap);
    const percent = (100 * shown.fraction).toFixed(2);
    this.fill.style.width = `${percent}%`;
    this.bar.setAttribute("aria-valuenow", percent);
    this.steps.replaceChildren(...shown.line.map(([label, value]) => {
      const node = element("span", { step: "nbt-step", "time left": "nbt-eta" }[label]);
      node.append(`${label} `, element("b", "", value));
      return node;
    }));
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

  drawActions(snap) {
    const all = (snap.actions || []).filter(({ key }) => this.run.can(key));
    const board = "Open the curves of this run in TensorBoard";
    if (this.run.host.openTensorBoard && !this.run.absent) all.push({ key: "tensorboard", words: "TensorBoard", title: board });
    const state = JSON.stringify([all, this.busy]);
    if (state === this.actionState) return;
    this.actionState = state;
    const focused = this.actions.contains(document.activeElement) && document.activeElement.dataset.key;
    this.actions.replaceChildren(...all.map(({ key, words, title }) => {
      const node = button(words, title, () => this.act(key), `nbt-${key}`);
      node.dataset.key = key;
      node.disabled = Boolean(this.busy) && key !== "tensorboard";
      return node;
    }));
    const again = focused && this.actions.querySelector(`[data-key="${focused}"]`);
    if (again) again.focus();
  }

  drawNote(snap) {
    const shown = snap.shown, failed = shown.tone === "error" && snap.cause;
    this.note.textContent = failed ? "" : shown.note;
    this.note.className = `nbt-note ${shown.tone && `nbt-${shown.tone}`}`;
    this.failure.hidden = !failed;
    const state = JSON.stringify([failed, shown.advice, snap.actions, this.busy, this.run.can("resume")]);
    if (!failed || state === this.failureState) return;
    this.failureState = state;
    const cause = element("p", "nbt-cause", snap.cause), row = element("p", "nbt-actions");
    const parts = [element("b", "", snap.state === "LOST" ? "The job is lost" : "The job has failed"), cause];
    if (shown.advice) parts.push(element("p", "", shown.advice));
    const resume = (snap.actions || []).find(({ key }) => key === "resume");
    if (resume && this.run.can("resume")) {
      const node = button("Resume", resume.title, () => this.act("resume"), "nbt-primary");
      node.disabled = Boolean(this.busy);
      row.append(node);
    }
    row.append(copyButton("Copy", "Copy the cause", () => snap.cause));
    this.failure.replaceChildren(...parts, row);
  }
}

