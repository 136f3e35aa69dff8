// The form's values: the typed texts, {key: text}, on top of a YAML and the notebook's overrides.

import { ON } from "./form_fields.js";
import { FormFrame } from "./form_frame.js";

// Delay after the last key, so that a word is not checked at every keystroke.
const TYPED_MS = 250;

/** `state` is {yaml, given, typed, mode, seq}; touched(wait) is called for each change. */
export class FormHeld extends FormFrame {
  get question() {
    const { yaml, given, typed, mode } = this.state;
    const overrides = given ? this.start.overrides : null;
    const asked = { yaml, overrides, typed, mode };
    return this.start.clone ? { ...asked, clone: this.start.clone } : asked;
  }

  text(key) {
    const { typed } = this.state, { kind, value } = this.pages.specs.get(key);
    if (key in typed) return typed[key];
    // A typed field switches its section on, as lora.rank=8 does on the command line.
    return kind === "section" && this.typedInside(key).length ? ON : value;
  }

  /** Keys of the fields in a section that were typed into. */
  typedInside(section) {
    return this.pages.inside(section).filter((key) => key in this.state.typed);
  }

  /** Store a typed text. A text that equals the original value is removed instead. */
  hold(key, text) {
    const spec = this.pages.specs.get(key);
    // The switch of a section is stored as long as its fields have typed texts.
    const said = spec.kind === "section" && this.typedInside(key).length;
    if (text === spec.value && !said) delete this.state.typed[key];
    else this.state.typed[key] = text;
  }

  changed(key, text) {
    this.hold(key, text);
    if (this.pages.specs.get(key).kind === "section") this.pages.wake();
    if (key === "backend.kind") this.pages.showBackend();
    this.touched(TYPED_MS);
  }

  /** The number of fields that are changed in the form, without fields in sections that are off. */
  get changes() {
    const { specs } = this.pages;
    return Object.entries(this.state.typed).filter(([key, text]) =>
      specs.has(key) && !this.pages.isOff(key) && text !== specs.get(key).value).length;
  }

  /** Reset a field to the YAML's value; a section together with its fields. */
  reset(key) {
    const { base } = this.pages.specs.get(key);
    for (const inside of this.typedInside(key)) delete this.state.typed[inside];
    this.hold(key, base);
    this.refill();
    this.touched();
  }

  copy() {
    return { ...this.state, typed: { ...this.state.typed } };
  }
}
