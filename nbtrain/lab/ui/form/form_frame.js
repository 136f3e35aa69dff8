// The form's elements above and below the fields, with their texts.

import { FormAnswer } from "./form_answer.js";
import { FormLayouts } from "./form_layouts.js";
import { FormPages } from "./form_pages.js";
import { FormSide } from "./form_side.js";
import { FORM_CSS } from "./form_style.js";
import { addStyle } from "../elements/style.js";
import { button, choices, copyButton, element } from "../elements/dom.js";

let framesMade = 0;

const MODE_WORDS = { full: "full: train the run", twin: "twin: try its layout at small scale" };

/** The parts of the form's page, which form.js fills and listens to. */
export class FormFrame {
  build() {
    addStyle();
    addStyle("nbtrain-form-style", FORM_CSS);
    this.root.classList.add("nbt-root", "nbtrain-form");
    this.pages = new FormPages(this);
    this.side = new FormSide({
      go: (key) => this.go(key),
      use: (texts, words) => this.use(texts, words),
      openRun: this.host.openRun,
    });
    this.layouts = new FormLayouts(this);
    this.notice = element("div", "nbf-notice");
    this.notice.setAttribute("role", "status");
    this.inside = element("fieldset");
    this.inside.disabled = true;
    this.kernel = element("div", "nbf-kernel");
    this.kernel.setAttribute("role", "status");
    this.answer = new FormAnswer(this.host);
    // The results and the buttons are next to the fields, so that they stay visible.
    const results = element("div", "nbf-beside"), middle = element("div", "nbf-middle");
    results.append(this.side.node, this.foot());
    middle.append(this.pages.first, results);
    this.inside.append(this.head(), middle, this.pages.all, this.side.rest, this.layouts.node);
    this.result = element("div", "nbf-run");
    this.root.replaceChildren(this.titleNode, this.notice, this.inside, this.result);
  }

  head() {
    const top = element("div", "nbf-top");
    const titled = (words, control, title) => {
      const label = element("label", "", words);
      label.title = title;
      label.append(control);
      top.append(label);
      return control;
    };
    const title = this.start.clone ? `Clone of ${this.start.clone}` : "Launch a run";
    this.titleNode = element("div", "nbf-title", title);
    this.titleNode.setAttribute("role", "heading");
    this.titleNode.setAttribute("aria-level", "3");
    if (!this.start.clone) {
      const yamls = "The run YAMLs of the workspace, and the examples included in nbtrain.";
      this.yaml = titled("Run YAML", element("select"), yamls);
      this.yaml.addEventListener("change", () => this.open(this.yaml.value));
      const about = "Path of your own YAML file, absolute or relative to the workspace.";
      this.path = titled("Or a path", element("input"), about);
      this.path.type = "text";
      this.path.placeholder = "my-run.yaml";
      this.path.addEventListener("change", () => this.path.value.trim() && this.open(this.path.value.trim()));
    }
    this.name = titled("Name", element("input"), "Name of the run, and of its folder in the output directory.");
    this.name.type = "text";
    this.name.dataset.key = "name";
    this.name.addEventListener("input", () => this.changed("name", this.name.value));
    this.nameHelp = element("div", "nbf-help nbf-name-help nbf-error");
    this.nameHelp.id = `nbf-name-help-${(framesMade += 1)}`;
    this.name.setAttribute("aria-describedby", this.nameHelp.id);
    const ofNotebook = Boolean(this.start.mode);
    const about = ofNotebook
      ? "Whether Submit and the next cell train the run or try its layout at small scale."
      : "Whether Submit trains the run or tries its layout at small scale.";
    this.mode = titled(ofNotebook ? "Mode of the notebook" : "Mode", element("select"), about);
    choices(this.mode, Object.entries(MODE_WORDS));
    this.mode.value = this.state.mode;
    this.mode.addEventListener("change", () => {
      this.state.mode = this.mode.value;
      this.touched();
    });
    const head = element("div");
    head.append(top, this.nameHelp);
    return head;
  }

  foot() {
    const foot = element("div", "nbf-foot");
    this.line = element("code", "nbf-line");
    this.line.tabIndex = 0;
    const all = "Undo every change that you made in this form.";
    this.resetButton = button("Reset", all, () => this.resetAll());
    const insert = this.host.insertCell;
    const about = "Get a cell that starts a run with the values of this form.";
    this.insert = insert
      ? button("Insert as cell", about, () => this.insertCell())
      : copyButton("Copy as cell", about, () => this.found.cell);
    this.submitButton = button("Submit", "", () => this.submit(), "nbt-primary");
    this.submitButton.disabled = this.insert.disabled = true;
    const buttons = element("div", "nbf-buttons");
    buttons.append(this.resetButton, this.insert, this.submitButton);
    foot.append(this.line, buttons, this.kernel, this.answer.node);
    return foot;
  }

  /** Show one line above the fields; `actions` are [words, act]. */
  say(text, kind = "", actions = []) {
    this.notice.className = `nbf-notice ${text ? kind && `nbf-${kind}` : "nbf-silent"}`;
    const buttons = actions.map(([words, act]) => button(words, "", act));
    this.notice.replaceChildren(element("span", "", text), ...buttons);
  }
}
