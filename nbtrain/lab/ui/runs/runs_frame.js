// The frame of the list of runs: filters, the bar for selected runs, column heads and pages.

import { MOST_COMPARED } from "../compare/compare_chips.js";
import { bulkButtons } from "./runs_bulk.js";
import { isSortable } from "./runs_columns.js";
import { RunMenu } from "./runs_menu.js";
import { STATE_GROUPS } from "./runs_order.js";
import { RUNS_CSS } from "./runs_style.js";
import { addStyle } from "../elements/style.js";
import { button, choices, element, known, zone } from "../elements/dom.js";

export const RUNS_ON_A_PAGE = 100;
const RUNS_SORTED = { 1: "ascending", "-1": "descending" };

const SORT_CHOICES = [
  ["created", "Newest first"],
  ["name", "By name"],
  ["state", "By state"],
  ["loss", "By loss"],
];

/** The elements of the list; RunsList of runs.js implements their actions. */
export class RunsFrame {
  build() {
    addStyle();
    addStyle("nbtrain-runs-style", RUNS_CSS);
    const { root } = this;
    root.classList.add("nbt-root", "nbtrain-runs");
    root.classList.toggle("nbt-compact", this.compact);
    this.tools = element("div", "nbt-tools");
    this.text = element("input");
    this.text.type = "search";
    this.text.placeholder = "Name, tag, note, cause";
    this.text.setAttribute("aria-label", "show only runs that contain this text");
    this.text.addEventListener("input", () => this.filtered());
    // Keep the notebook from handling the key.
    this.text.addEventListener("keydown", (event) => event.stopPropagation());
    this.state = this.select("show runs by state", () => {
      const archived = this.state.value === "archived";
      if (archived !== this.archived) {
        this.archived = archived;
        if (this.given) this.show(this.given);
        this.look();
      }
      this.filtered();
    });
    this.archived = false;
    choices(this.state, STATE_GROUPS);
    this.tag = this.select("show runs by tag", () => this.filtered());
    this.count = element("span", "nbt-word");
    this.tools.append(this.text, this.state, this.tag);
    if (this.compact) this.tools.append(this.sortChoice());
    this.tools.append(element("span", "nbt-room"), this.count);
    this.compareAll = button("", "Compare curves, results and settings side by side",
      () => this.host.openCompare(this.comparable().slice(0, MOST_COMPARED)));
    this.compareAll.hidden = true;
    if (!this.compact) {
      this.tools.append(this.compareAll);
      const about = "Save the runs that match the filter, with these columns";
      this.tools.append(this.columns.node, button("CSV", about, () => this.saveCsv()));
    }
    this.bulkPlace = element("div");
    this.bar = element("div", "nbt-tools nbt-chosen");
    this.bar.hidden = true;
    this.message = element("div", "nbt-note");
    this.message.setAttribute("role", "status");
    this.live = element("div", "nbt-unseen");
    this.live.setAttribute("aria-live", "polite");
    const scroll = element("div", "nbt-scroll"), table = element("table");
    table.setAttribute("aria-label", "Runs");
    this.body = element("tbody");
    this.table = table;
    table.append(this.body);
    if (!this.compact) this.rebuildHead();
    scroll.append(table);
    this.empty = element("p", "nbt-empty", "Loading the runs...");
    this.pager = element("div", "nbt-pager");
    this.pager.hidden = true;
    this.menu = new RunMenu(this);
    this.body.addEventListener("keydown", (event) => this.key(event));
    const parts = [this.tools, this.bar, this.bulkPlace, this.message, this.live, scroll, this.empty, this.pager];
    root.replaceChildren(...parts, this.menu.node);
  }

  select(label, act) {
    const node = element("select");
    node.setAttribute("aria-label", label);
    node.addEventListener("change", act);
    return node;
  }

  sortChoice() {
    const node = this.select("sort the runs", () => this.sort(node.value));
    choices(node, SORT_CHOICES);
    return node;
  }

  rebuildHead() {
    const before = this.table.querySelector("thead");
    if (before) before.remove();
    this.table.prepend(this.head());
    this.root.classList.toggle("nbt-own-columns", this.columns.isOwn);
  }

  head() {
    const head = element("thead"), row = element("tr"), pick = element("th", "nbt-pick");
    this.all = element("input");
    this.all.type = "checkbox";
    this.all.setAttribute("aria-label", "Select all runs on this page");
    this.all.addEventListener("change", () => this.choose(this.shown, this.all.checked));
    const target = element("label");
    target.append(this.all);
    pick.append(target);
    row.append(pick);
    this.heads = {};
    for (const [key, name, className] of this.columns.shown) {
      const cell = element("th", className);
      // The times in the column do not name their time zone.
      const title = key === "created" ? `${name}, ${zone(Date.now() / 1000)}` : name;
      cell.scope = "col";
      cell.dataset.column = key;
      const about = `Sort by ${title}. Shift+click sorts within equal values of the columns chosen before.`;
      cell.append(isSortable(key) ? button(title, about, (event) => this.sort(key, event.shiftKey)) : title);
      this.heads[key] = cell;
      row.append(cell);
    }
    row.append(element("td"));
    head.append(row);
    return head;
  }

  drawHead() {
    if (this.compact) return;
    for (const [key, cell] of Object.entries(this.heads)) {
      const place = this.orders.findIndex((order) => order.key === key), order = this.orders[place];
      if (isSortable(key)) cell.setAttribute("aria-sort", order ? RUNS_SORTED[order.direction] : "none");
      cell.dataset.place = order && this.orders.length > 1 ? place + 1 : "";
    }
    const chosen = this.shown.filter((name) => this.chosen.has(name)).length;
    this.all.checked = chosen > 0 && chosen === this.shown.length;
    this.all.indeterminate = chosen > 0 && chosen < this.shown.length;
  }

  /** Return the names of the runs that match the filter and have results, in the order of the list. */
  comparable() {
    return this.found.filter((run) => known(run.step)).map(({ name }) => name);
  }

  /** Show the button that compares the runs of the list. It is hidden while runs are selected, because the bar for
   *  selected runs has a Compare button. */
  drawCompareAll() {
    const count = this.comparable().length;
    this.compareAll.hidden = !this.host.openCompare || this.chosen.size > 0 || count < 2;
    this.compareAll.textContent = count > MOST_COMPARED ? `Compare first ${MOST_COMPARED}` : "Compare all";
  }

  drawBar() {
    const runs = this.runs.filter((run) => this.chosen.has(run.name)), names = [...this.chosen];
    const all = this.found.filter((run) => !this.chosen.has(run.name)).length ? this.found.length : 0;
    const state = JSON.stringify([names, Boolean(this.server), all, runs.map((run) => [run.active, run.archived])]);
    this.bar.hidden = !names.length;
    if (!names.length) this.bulkPlace.replaceChildren();
    if (!names.length || state === this.barState) return;
    this.barState = state;
    const parts = [element("span", "", `${names.length} selected`)];
    if (this.host.openCompare) {
      const open = () => this.host.openCompare(names);
      const compare = button("Compare", "Compare curves, results and settings side by side", open, "nbt-primary");
      compare.disabled = names.length < 2 || names.length > MOST_COMPARED;
      if (names.length < 2) compare.title = "Select a second run to compare.";
      else if (compare.disabled) {
        const reason = `A comparison shows at most ${MOST_COMPARED} runs. Select fewer runs.`;
        compare.title = reason;
        parts.push(compare, element("span", "nbt-word", reason));
      }
      if (!parts.includes(compare)) parts.push(compare);
    }
    if (this.server) parts.push(...bulkButtons(this, runs));
    // The checkbox in the head selects only the runs on this page.
    if (all > this.shown.length && this.shown.every((name) => this.chosen.has(name)))
      parts.push(button(`Select all ${all.toLocaleString("en")}`, "Select every run that matches the filter", () =>
        this.choose(this.found.map(({ name }) => name), true)));
    parts.push(button("Clear", "Clear the selection", () => this.choose(names, false)));
    this.bar.replaceChildren(...parts);
  }

  drawPager(begin, count) {
    this.pager.hidden = count <= RUNS_ON_A_PAGE;
    const state = `${begin} ${count}`;
    if (this.pager.hidden || state === this.pagerState) return;
    this.pagerState = state;
    const to = (page) => () => {
      this.page = page;
      this.draw();
      this.table.parentNode.scrollTop = 0;
      this.root.scrollIntoView({ block: "nearest" });
    };
    const back = button("\u2039", "Previous page", to(this.page - 1));
    const on = button("\u203a", "Next page", to(this.page + 1));
    back.disabled = begin === 0;
    on.disabled = begin + RUNS_ON_A_PAGE >= count;
    const words = `${begin + 1}\u2013${Math.min(begin + RUNS_ON_A_PAGE, count)} of ${count.toLocaleString("en")}`;
    this.pager.replaceChildren(back, element("span", "", words), on);
  }

  say(text, kind = "") {
    this.message.textContent = text;
    this.message.className = `nbt-note ${kind && `nbt-${kind}`}`;
  }
}
