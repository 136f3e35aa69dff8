// The menu of a run in the list, and the row below a run that asks to confirm an action or edits tags and notes. When
// the menu opens, it requests the actions that are possible now from the server.

import { labelChanges, tagsOf } from "./runs_order.js";
import { button, copyText, element } from "../elements/dom.js";

const MARGIN_PX = 4;

export class RunMenu {
  /** `list` is the controller of runs.js. */
  constructor(list) {
    this.list = list;
    this.node = element("div", "nbt-run-menu");
    this.node.popover = "auto";
    this.node.setAttribute("role", "menu");
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  async open(run, anchor) {
    const own = this.own(run);
    this.node.setAttribute("aria-label", `Actions for ${run.name}`);
    this.node.replaceChildren(...own);
    this.node.showPopover();
    this.place(anchor);
    this.node.querySelector("button").focus();
    let found = [];
    try {
      found = await this.list.actionsOf(run);
    } catch (error) {
      this.list.say(`${run.name}: ${error.message}`, "error");
    }
    // The menu was closed, or opened again for a newer request.
    if (!own[0].isConnected || !this.node.matches(":popover-open")) return;
    // Append below the existing items without replacing them: the user may be pressing one right now.
    this.node.append(...this.allowed(run, found));
    this.place(anchor);
  }

  item(words, title, act, className = "") {
    const node = button(words, title, () => {
      this.node.hidePopover();
      act();
    }, className);
    node.setAttribute("role", "menuitem");
    return node;
  }

  /** Return the items that can be shown without a response from the server. */
  own(run) {
    const { list } = this, { host } = list, items = [];
    const add = (words, title, act) => items.push(this.item(words, title, act));
    if (host.openRun) add("Open", "", () => host.openRun(run.name));
    if (host.openTensorBoard)
      add("TensorBoard", "Open the curves of this run in TensorBoard", () => host.openTensorBoard(run.name));
    if (host.openModel && run.step)
      add("Try the model", "Generate text with the newest checkpoint", () => host.openModel(run.name));
    if (host.linkTo)
      add("Copy link", "Copy a link that opens this run in JupyterLab", async () => {
        await copyText(host.linkTo([run.name]));
        list.say(`Copied: ${host.linkTo([run.name])}`);
      });
    add("Copy notebook code", "Copy the code that shows this run in a notebook", async () => {
      await copyText(`nb.open_run(${JSON.stringify(run.name)})`);
      list.say(`Copied: nb.open_run(${JSON.stringify(run.name)})`);
    });
    if (list.server) {
      add("Tags and notes...", "", () => list.edit(run));
      const words = run.archived ? "Restore from the archive" : "Archive";
      const title = "An archived run is hidden from the list; its files are kept.";
      add(words, title, () => list.archive([run.name], !run.archived));
    }
    return items;
  }

  /** Return the items for the actions that the server allows now. */
  allowed(run, actions) {
    const { list } = this;
    return actions.filter(({ key }) => list.can(key)).map((action) => {
      const { ask, key, title, words } = action;
      return this.item(ask ? `${words}...` : words, title, () => list.act(run, action), `nbt-${key}`);
    });
  }

  place(anchor) {
    const from = anchor.getBoundingClientRect(), own = this.node.getBoundingClientRect();
    const left = Math.max(MARGIN_PX, Math.min(from.right - own.width, innerWidth - own.width - MARGIN_PX));
    const below = from.bottom + own.height + MARGIN_PX < innerHeight;
    this.node.style.left = `${left}px`;
    this.node.style.top = `${Math.max(MARGIN_PX, below ? from.bottom + 2 : from.top - own.height - 2)}px`;
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...this.node.children];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = all.indexOf(document.activeElement);
    all[(at + step + all.length) % all.length].focus();
  }
}

/** Return a question with a confirm button and Cancel; `done(answer)` is called once. */
export function runQuestion(question, verb, done) {
  const node = element("div", "nbt-extra");
  node.setAttribute("role", "alertdialog");
  node.setAttribute("aria-label", question);
  const no = button("Cancel", "", () => done(false));
  node.append(element("span", "", question), button(verb, "", () => done(true), "nbt-danger"), no);
  node.addEventListener("keydown", (event) => event.key === "Escape" && done(false));
  node.first = no;
  return node;
}

/** Return the editor for a run's tags and notes; `save(changes)` returns a promise, `done()` closes the editor. */
export function runEditor(run, save, done) {
  const node = element("form", "nbt-extra nbt-editor");
  node.setAttribute("aria-label", `Tags and notes of ${run.name}`);
  const tags = element("input"), notes = element("textarea"), said = element("p", "nbt-note nbt-error");
  tags.type = "text";
  tags.value = tagsOf(run).join(", ");
  tags.placeholder = "team=nlp, stage=trial";
  notes.value = run.notes || "";
  notes.rows = 3;
  said.setAttribute("role", "alert");
  const field = (words, input) => {
    const label = element("label", "", words);
    label.append(input);
    return label;
  };
  const keep = element("button", "nbt-primary", "Save");
  keep.type = "submit";
  node.append(field("Tags: name=value, separated by commas", tags), field("Notes", notes));
  node.append(said, keep, button("Cancel", "", done));
  node.addEventListener("keydown", (event) => {
    // Keep the notebook from handling the key.
    event.stopPropagation();
    if (event.key === "Escape") done();
  });
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    keep.disabled = true;
    try {
      const labels = labelChanges(tags.value, run.labels || {}), changes = {};
      if (Object.keys(labels).length) changes.labels = labels;
      if (notes.value !== (run.notes || "")) changes.notes = notes.value;
      if (Object.keys(changes).length) await save(changes);
      done();
    } catch (error) {
      said.textContent = error.message;
      keep.disabled = false;
    }
  });
  node.first = tags;
  return node;
}
