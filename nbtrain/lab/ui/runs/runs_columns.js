// The columns of the list of runs: the built-in columns, and those that the user adds.
//
// A column is [key, head, class, text(run)]. Columns without `text` are drawn by runs_row.js. Settings such as
// lr_schedule.lr and results such as MFU come from the route `columns`, as run.more: {key: {text, value}}.

import { button, checkbox, element, known, menu } from "../elements/dom.js";

/** The built-in columns of the full list. A narrow list hides some of them (runs_style.js). */
export const RUN_COLUMNS = [
  ["name", "Run", "nbt-name-cell"],
  ["state", "State", ""],
  ["backend", "Backend", ""],
  ["step", "Step", "nbt-num"],
  ["loss", "Loss", "nbt-num"],
  ["curve", "Loss curve", ""],
  ["validation_loss", "Validation", "nbt-num"],
  ["eta_seconds", "Time left", "nbt-num"],
  ["created", "Submitted", ""],
  ["about", "Notes and cause", "nbt-wide"],
];

/** Whether the runs can be sorted by a column; curves have no order. */
export const isSortable = (key) => key !== "curve";

const wholeWords = (value) => (known(value) ? value.toLocaleString("en") : "");

/** Columns that are hidden until the user chooses them. */
const MORE_COLUMNS = [
  ["num_jobs", "Jobs", "nbt-num", (run) => wholeWords(run.num_jobs)],
  ["restarts", "Restarts", "nbt-num", (run) => wholeWords(run.restarts)],
  ["world_size", "Ranks", "nbt-num", (run) => wholeWords(run.world_size)],
];

const isOfServer = (key) => !MORE_COLUMNS.some(([own]) => own === key);

/** Return the value of a run in a column, for sorting and for the CSV; null if the run has none. */
export function columnValue(run, key) {
  if (key === "about") return run.notes || run.cause || null;
  const more = (run.more || {})[key];
  return more ? more.value ?? more.text : run[key] ?? null;
}

const COLUMNS_KEY = "nbtrain-runs-columns";

export class RunColumns {
  /**
   * changed()   called when the user has chosen other columns
   * opened()    called when the menu opens for the first time; it passes the keys that the server knows to offer()
   */
  constructor({ changed, opened }) {
    this.changed = changed;
    const kept = keptColumns();
    this.hidden = new Set(kept.hidden);
    this.added = kept.added;
    this.offered = [];
    this.node = menu("Columns", "Choose the columns of this table");
    this.search = element("input");
    this.search.type = "search";
    this.search.placeholder = "Setting or result, such as lr";
    this.search.setAttribute("aria-label", "search settings and results to add as columns");
    this.hits = element("div", "nbt-offers");
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => event.key !== "Escape" && event.stopPropagation());
    this.node.addEventListener("toggle", () => {
      if (!this.node.open) return;
      this.search.value = "";
      this.fill();
      if (!this.offered.length) opened();
    });
  }

  /** The shown columns, in order: [key, head, class, text(run)]. */
  get shown() {
    const chosen = MORE_COLUMNS.filter(([key]) => this.added.includes(key));
    const more = this.asked.map((key) => [key, key, "nbt-num", (run) => ((run.more || {})[key] || {}).text ?? ""]);
    const [about] = RUN_COLUMNS.slice(-1);
    return [...RUN_COLUMNS.slice(0, -1), ...chosen, ...more, about].filter(([key]) => !this.hidden.has(key));
  }

  /** Keys of the shown columns whose values are requested from the server. */
  get asked() {
    return this.added.filter(isOfServer);
  }

  /** Whether the user chose columns. If so, a narrow list hides none of them. */
  get isOwn() {
    return this.hidden.size > 0 || this.added.length > 0;
  }

  set(key, isShown) {
    if (RUN_COLUMNS.some(([own]) => own === key)) {
      if (isShown) this.hidden.delete(key);
      else this.hidden.add(key);
    } else this.added = isShown ? [...new Set([...this.added, key])] : this.added.filter((other) => other !== key);
    keepColumns({ hidden: [...this.hidden], added: this.added });
    this.changed();
  }

  /** `keys` are the settings and results that the server knows. */
  offer(keys) {
    this.offered = keys;
    if (this.node.open) this.fill();
  }

  fill() {
    const shown = new Set(this.shown.map(([key]) => key)), parts = [];
    for (const [key, head] of [...RUN_COLUMNS.slice(1), ...MORE_COLUMNS]) parts.push(this.box(key, head, shown.has(key)));
    for (const key of this.asked) parts.push(this.box(key, key, true));
    // A response that arrives while the user types updates the search results, but not the typed text.
    const isTyping = this.search.getRootNode().activeElement === this.search;
    this.find();
    if (this.offered.length) parts.push(this.search, this.hits);
    if (this.isOwn) parts.push(button("Reset columns", "", () => this.reset()));
    this.node.list.replaceChildren(...parts);
    if (isTyping) this.search.focus();
  }

  box(key, head, checked) {
    const node = checkbox(head, () => this.set(key, node.input.checked));
    node.input.checked = checked;
    return node;
  }

  find() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = wanted ? this.offered.filter((key) => key.toLowerCase().includes(wanted) && !this.added.includes(key)) : [];
    this.hits.replaceChildren(...found.slice(0, 12).map((key) => button(key, "", () => this.set(key, true))));
    if (wanted && !found.length) this.hits.append(element("p", "nbt-empty", "No matching settings or results."));
  }

  reset() {
    [this.hidden, this.added] = [new Set(), []];
    keepColumns({ hidden: [], added: [] });
    this.changed();
  }
}

function keptColumns() {
  try {
    const { hidden = [], added = [] } = JSON.parse(localStorage.getItem(COLUMNS_KEY)) || {};
    return { hidden: hidden.map(String).filter((key) => key !== "name"), added: added.map(String) };
  } catch {
    // There is no storage, or the entry was not written by this code.
    return { hidden: [], added: [] };
  }
}

function keepColumns(chosen) {
  try {
    localStorage.setItem(COLUMNS_KEY, JSON.stringify(chosen));
  } catch {
    /* the storage is full or disabled: the choice is lost with the page */
  }
}
