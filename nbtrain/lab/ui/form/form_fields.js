// One field of the form: its control with description, unit, default and error message.

import { button, element } from "../elements/dom.js";

const LONG_CHARS = 34;

// The YAML texts of a section's switch.
export const ON = "{}";
export const OFF = "null";

/** The text of a value as it is shown next to the control. */
function shown(spec, text) {
  if (spec.kind === "section") return text === OFF ? "off" : "on";
  return text || "none";
}

/** The tooltip of a field. */
function fieldWords(spec) {
  const unit = spec.unit ? ` In ${spec.unit}.` : "";
  const given = spec.default === null ? "No default." : `Default: ${shown(spec, spec.default)}.`;
  return `${spec.key}: ${spec.description}${unit} ${given}`.replace(/\s+/g, " ");
}

let fieldsMade = 0;

export class FormField {
  /**
   * `changed(key, text)` is called for an edit, `reset(key)` to undo it. `whole` shows the key with its section;
   * `base` names the source of the unchanged values: "YAML", or "parent" in a clone's form.
   */
  constructor(spec, { changed, reset, whole = false, base = "YAML" }) {
    this.spec = spec;
    this.base = base;
    this.id = `nbf-${(fieldsMade += 1)}`;
    this.node = element("div", "nbf-field");
    this.node.dataset.key = spec.key;
    const label = element("label", "nbf-label");
    label.append(spec.title, " ", element("i", "", whole ? spec.key : spec.label));
    label.htmlFor = this.id;
    this.badge = element("span", "nbf-badge");
    const back = `Reset ${spec.key} to the ${base}'s value`;
    this.back = button("\u21ba", back, () => reset(spec.key), "nbf-back");
    this.back.setAttribute("aria-label", back);
    const head = element("div", "nbf-head");
    head.append(label, this.back);
    this.control = this.makeControl();
    this.control.id = this.id;
    this.control.setAttribute("aria-describedby", `${this.id}-help`);
    const event = ["switch", "section", "choice"].includes(spec.kind) ? "change" : "input";
    this.control.addEventListener(event, () => changed(spec.key, this.text, this));
    const row = element("div", "nbf-row");
    row.append(this.control);
    if (spec.unit) row.append(element("span", "nbf-unit", spec.unit));
    this.help = element("div", "nbf-help");
    this.help.id = `${this.id}-help`;
    this.meta = element("div", "nbf-meta");
    this.node.append(head, row, this.meta, this.help);
    this.mark({});
  }

  makeControl() {
    const { kind, choices, value } = this.spec;
    if (kind === "switch" || kind === "section") {
      const box = element("input");
      box.type = "checkbox";
      return box;
    }
    if (kind === "choice") {
      const select = element("select");
      select.append(...choices.map((words) => element("option", "", words)));
      return select;
    }
    if (value.length > LONG_CHARS || /^[[{]/.test(value)) {
      const area = element("textarea");
      area.rows = 3;
      area.spellcheck = false;
      return area;
    }
    const input = element("input");
    input.type = "text";
    input.spellcheck = false;
    input.autocomplete = "off";
    input.placeholder = kind === "yaml" ? "null" : "none";
    return input;
  }

  /** The value as typed. An empty number field is null. */
  get text() {
    const { control } = this;
    if (this.spec.kind === "switch") return control.checked ? "true" : "false";
    if (this.spec.kind === "section") return control.checked ? ON : OFF;
    return this.spec.kind === "yaml" && control.value.trim() === "" ? "null" : control.value;
  }

  set text(text) {
    const { control } = this;
    if (this.spec.kind === "switch") control.checked = text === "true";
    else if (this.spec.kind === "section") control.checked = text !== OFF;
    else {
      const shown = this.spec.kind === "yaml" && text === "null" ? "" : text;
      // Setting the same text again would move the user's caret.
      if (control.value !== shown) control.value = shown;
    }
  }

  /** Set whether the field's section is off; if so, the control is disabled. */
  set off(off) {
    this.control.disabled = off;
    this.node.classList.toggle("nbf-off", off);
    this.node.title = this.title;
  }

  get title() {
    const condition = this.control.disabled ? ` Used only if ${this.spec.within} is on.` : "";
    return fieldWords(this.spec) + condition;
  }

  /** Show the result of a check: `changed` is "form" or "given", `also` names another field to look at. */
  mark({ changed = "", problems = [], also = "", finding = "" }) {
    const { node, spec } = this;
    node.title = this.title;
    node.classList.toggle("nbf-changed", Boolean(changed));
    node.classList.toggle("nbf-bad", problems.length > 0);
    node.classList.toggle("nbf-also", !problems.length && Boolean(also));
    this.badge.textContent = changed === "given" ? "as opened" : changed ? "changed" : "";
    this.back.hidden = !changed;
    this.control.setAttribute("aria-invalid", String(problems.length > 0));
    const base = changed ? `${this.base}: ${shown(spec, spec.base)}` : "";
    const given = spec.default === null ? "no default" : `default: ${shown(spec, spec.default)}`;
    const words = [base, given].filter(Boolean).join(" \u00b7 ");
    this.meta.replaceChildren(...(changed ? [this.badge, ` \u00b7 ${words}`] : [words]));
    const said = problems.length ? problems.join(" ") : also || finding;
    this.help.className = `nbf-help ${problems.length ? "nbf-error" : said ? "nbf-warning" : ""}`;
    this.help.textContent = said || spec.description.replace(/\s+/g, " ");
    // A long problem scrolls. Without a tab index, only the mouse could scroll it.
    if (problems.length) this.help.tabIndex = 0;
    else this.help.removeAttribute("tabindex");
  }
}
