// The settings of a run as a tree with collapsible sections, a search, and filters for settings that differ from the
// YAML, the defaults or the parent run. Each setting has a button that clones the run with another value.

import { button, choices, element } from "../elements/dom.js";

/** The filters of the tree: [key, words, whether a row belongs to it]. */
const FILTERS = [
  ["all", "All settings", () => true],
  ["yaml", "Changed by overrides", (row) => row.override],
  ["set", "Set explicitly", (row) => Boolean(row.origin)],
  ["default", "Different from the defaults", (row) => "default" in row],
  ["parent", "Different from the parent", (row) => "parent" in row],
];

export class ConfigTree {
  /** `cloneWith(key, text)` opens the form with this value; null if the page has no form. */
  constructor(cloneWith) {
    this.cloneWith = cloneWith;
    this.node = element("section", "nbt-config-tree");
    this.find = element("input");
    Object.assign(this.find, { type: "search", placeholder: "Search settings" });
    this.find.setAttribute("aria-label", "search settings");
    this.filter = element("select");
    this.filter.setAttribute("aria-label", "settings to show");
    for (const control of [this.find, this.filter]) control.addEventListener("input", () => this.paint());
    this.count = element("span", "nbt-empty");
    this.count.setAttribute("role", "status");
    const fold = (open) => () => this.tree.querySelectorAll("details").forEach((node) => (node.open = open));
    this.tools = element("div", "nbt-tools");
    this.tools.append(this.find, this.filter, button("Expand all", "", fold(true)), button("Collapse all", "", fold(false)), this.count);
    this.tree = element("div", "nbt-config-sections");
    this.node.append(this.tools, this.tree);
    this.rows = [];
  }

  show(rows, parent) {
    this.rows = rows;
    const offered = FILTERS.filter(([key]) => (key !== "parent" || parent) && (!["yaml", "set"].includes(key) || rows.some(({ origin }) => origin)));
    choices(this.filter, offered.map(([key, words]) => [key, key === "parent" ? `Different from ${parent}` : words]));
    this.parent = parent;
    this.paint();
  }

  paint() {
    const wanted = this.find.value.trim().toLowerCase(), chosen = this.filter.value || "all";
    const belongs = FILTERS.find(([key]) => key === chosen)[2];
    const rows = this.rows.filter((row) =>
      belongs(row) && (!wanted || `${row.key} ${row.value}`.toLowerCase().includes(wanted)));
    const narrowed = wanted || chosen !== "all";
    this.count.textContent = narrowed ? `${rows.length} of ${this.rows.length} settings` : `${rows.length} settings`;
    const open = new Set([...this.tree.querySelectorAll("details[open]")].map(({ dataset }) => dataset.path));
    const first = !this.tree.childElementCount;
    const sections = new Map();
    for (const row of rows) {
      const at = row.key.indexOf("."), name = at < 0 ? "" : row.key.slice(0, at);
      if (!sections.has(name)) sections.set(name, []);
      sections.get(name).push(row);
    }
    this.tree.replaceChildren(...[...sections].map(([name, own]) => {
      if (!name) return this.table(own, "");
      const node = element("details"), summary = element("summary");
      node.dataset.path = name;
      node.open = Boolean(narrowed) || open.has(name) || (first && name === "model");
      summary.append(element("b", "", name), ` ${own.length}`);
      node.append(summary, this.table(own, `${name}.`));
      return node;
    }));
  }

  /** Return the rows of a section as a table; `prefix` is the section's name with a dot. */
  table(rows, prefix) {
    const table = element("table", "nbt-pairs");
    table.setAttribute("aria-label", `settings of ${prefix.slice(0, -1) || "the run"}`);
    table.append(...rows.map((row) => this.row(row, prefix)));
    return table;
  }

  row(row, prefix) {
    const node = element("tr"), head = element("th", "", row.key.slice(prefix.length)), cell = element("td", "nbt-wide");
    head.scope = "row";
    node.dataset.key = row.key;
    const value = element("code", "", row.value);
    if ("default" in row || "parent" in row) value.className = "nbt-differs";
    const notes = [
      ...("default" in row && row.default !== null ? [`default ${row.default}`] : []),
      ...("parent" in row ? [`${this.parent} ${row.parent}`] : []),
      ...(row.origin ? [`set by ${row.origin}`] : []),
    ];
    cell.append(value, " ", element("small", "", notes.join(" \u00b7 ")));
    const clone = element("td", "nbt-act");
    if (this.cloneWith && row.text !== null) clone.append(this.cloneButton(row));
    node.append(head, cell, clone);
    return node;
  }

  /** Return a button that turns into a field for the new value. Enter opens the form with this value, and Escape closes
   *  the field. */
  cloneButton(row) {
    const title = `Clone this run with another value of ${row.key}`;
    const node = button("Change", title, () => {
      const field = element("input");
      Object.assign(field, { type: "text", value: row.text, title: "Press Enter to open the form with this value, or Escape to cancel" });
      field.setAttribute("aria-label", `new value of ${row.key}`);
      const close = () => {
        field.replaceWith(node);
        node.focus();
      };
      field.addEventListener("keydown", (event) => {
        if (event.key === "Escape") close();
        if (event.key !== "Enter") return;
        event.preventDefault();
        close();
        this.cloneWith(row.key, field.value);
      });
      node.replaceWith(field);
      field.focus();
      field.select();
    });
    node.setAttribute("aria-label", title);
    return node;
  }
}
