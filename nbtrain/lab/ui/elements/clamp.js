// A text of any length in three lines, with a button that shows the rest.

import { button, element } from "./dom.js";

/** A long cause must not push the tabs and buttons below it out of the window. */
export class Clamped {
  constructor(className = "", role = "") {
    this.node = element("div", `nbt-clamped ${className}`);
    this.text = element("div", "nbt-clamp");
    if (role) this.text.setAttribute("role", role);
    this.more = button("more", "Show the whole text", () => this.toggle(), "nbt-more");
    this.more.setAttribute("aria-expanded", "false");
    this.node.append(this.text, this.more);
    this.open = false;
    this.node.hidden = this.more.hidden = true;
    new ResizeObserver(() => this.measure()).observe(this.text);
  }

  /** An element with the text `text`. */
  static of(text) {
    const clamped = new Clamped();
    clamped.show(text);
    return clamped.node;
  }

  show(text) {
    if (this.text.textContent === text) return;
    this.text.textContent = text;
    this.node.hidden = !text;
    this.toggle(false);
  }

  toggle(open = !this.open) {
    this.open = open;
    this.text.classList.toggle("nbt-clamp-open", open);
    // The whole text scrolls. Without a tab index, only the mouse could scroll it.
    if (open) this.text.tabIndex = 0;
    else this.text.removeAttribute("tabindex");
    this.text.scrollTop = 0;
    this.more.textContent = open ? "less" : "more";
    this.more.setAttribute("aria-expanded", String(open));
    this.measure();
  }

  measure() {
    this.more.hidden = !this.open && this.text.scrollHeight <= this.text.clientHeight + 1;
  }
}
