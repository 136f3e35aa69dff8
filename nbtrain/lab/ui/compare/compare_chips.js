// The runs of a comparison: a chip for each run, with the colour and dashes of its lines, and a menu that adds a run.

import { button, element, menu } from "../elements/dom.js";

/** Maximum number of runs in a comparison; the same as MOST_RUNS in monitor/runs/compare.py. */
export const MOST_COMPARED = 12;
export class CompareChips {
  /** `compare` is the page of compare.js. */
  constructor(compare) {
    this.compare = compare;
    this.node = element("div", "nbt-chips");
    this.list = element("ul", "nbt-chip-list");
    this.list.setAttribute("aria-label", "compared runs");
    this.reasons = element("ul", "nbt-reasons");
    this.adding = menu("Add a run", "");
    this.adding.addEventListener("toggle", () => this.adding.open && this.fill());
    this.find = element("input");
    this.find.type = "search";
    this.find.placeholder = "Name";
    this.find.setAttribute("aria-label", "show only runs whose name contains this text");
    this.find.addEventListener("input", () => this.offer());
    // Keep the notebook from handling the key.
    this.find.addEventListener("keydown", (event) => event.key !== "Escape" && event.stopPropagation());
    const top = element("div", "nbt-tools");
    top.append(this.list, this.adding);
    this.node.append(top, this.reasons);
  }

  draw() {
    const { names, hidden, failures, unreadable, server } = this.compare;
    const curves = [...(unreadable || [])].map(([name, why]) => [name, `The curves of ${name} cannot be read: ${why}`]);
    const gone = [...failures].map(([name, why]) => [name, `${name} is not shown: ${why}`]);
    const reasons = [...gone, ...curves].filter(([name]) => names.includes(name)).map(([, words]) => words);
    this.adding.hidden = !server;
    const looks = names.map((name) => this.compare.lookOf(name));
    const state = JSON.stringify([names, [...hidden], reasons, looks]);
    if (state === this.drawn) return;
    this.drawn = state;
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && [focused.closest("li").dataset.run, focused.dataset.part];
    this.list.replaceChildren(...names.map((name, at) => this.chip(name, looks[at])));
    this.reasons.replaceChildren(...reasons.map((words) => element("li", "", words)));
    if (place) this.focus(...place);
  }

  /** Return the focus to a part of a chip, or to the menu if the chip's run was removed. */
  focus(name, part) {
    const chip = [...this.list.children].find((node) => node.dataset.run === name);
    const target = chip && chip.querySelector(`[data-part=${part}]`);
    (target || this.adding.querySelector("summary")).focus();
  }

  chip(name, { color, dash }) {
    const { compare } = this, { hidden, failures, host } = compare;
    const node = element("li", "nbt-chip"), failed = failures.has(name), shown = !hidden.has(name) && !failed;
    node.dataset.run = name;
    node.classList.toggle("nbt-hidden-run", !shown);
    const words = hidden.has(name) ? `Show ${name}` : `Hide ${name}`;
    const look = button("", words, () => compare.hide(name, !hidden.has(name)), "nbt-look");
    look.setAttribute("aria-label", words);
    look.setAttribute("aria-pressed", String(shown));
    look.disabled = failed;
    const line = element("i", dash ? "nbt-dashed" : "");
    line.style.setProperty("--c", `var(--nbt-${color})`);
    if (dash) line.style.setProperty("--dash", `${dash.split(" ")[0]}px`);
    look.append(line);
    const open = host.openRun && !failed
      ? button(name, `Open ${name}`, () => host.openRun(name), "nbt-chip-name")
      : element("span", "nbt-chip-name", name);
    const off = button("\u00d7", `Remove ${name} from the comparison`, () => compare.remove(name), "nbt-off");
    off.setAttribute("aria-label", `Remove ${name} from the comparison`);
    [[look, "look"], [open, "open"], [off, "off"]].forEach(([part, key]) => (part.dataset.part = key));
    node.append(look, open, off);
    return node;
  }

  /** Request the server's runs for the menu. */
  async fill() {
    this.adding.list.replaceChildren(element("p", "nbt-empty", "Reading\u2026"));
    try {
      this.runs = (await this.compare.server.call("runs?archived=0")).runs.map(({ name }) => name);
    } catch (error) {
      this.adding.list.replaceChildren(element("p", "nbt-empty", error.message));
      return;
    }
    this.find.value = "";
    this.offers = element("div", "nbt-offers");
    this.adding.list.replaceChildren(this.find, this.offers);
    this.offer();
    this.find.focus();
  }

  offer() {
    const { names } = this.compare, wanted = this.find.value.trim().toLowerCase();
    const offered = this.runs.filter((name) => !names.includes(name) && name.toLowerCase().includes(wanted));
    const full = names.length >= MOST_COMPARED;
    const none = full ? `A comparison shows at most ${MOST_COMPARED} runs. Remove one first.`
      : "No other runs match.";
    this.offers.replaceChildren(...(full || !offered.length
      ? [element("p", "nbt-empty", none)]
      : offered.map((name) => button(name, "", () => this.compare.add(name)))));
  }
}
