// The frame of the list of runs: filters, the bar for chosen runs, column heads and pages.

import { RunMenu } from "./runs_menu.js";
import { STATE_GROUPS } from "./runs_order.js";
import { RUN_COLUMNS } from "./runs_row.js";
import { RUNS_CSS } from "./runs_style.js";
import { addStyle } from "./style.js";
import { button, choices, element } from "./words.js";

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
    this.state = this.select("which states", () => {
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
    this.tag = this.select("which tag", () => this.filtered());
    this.count = element("span", "nbt-word");
    this.tools.append(this.text, this.state, this.tag);
    if (this.compact) this.tools.append(this.sortChoice());
    this.tools.append(element("span", "nbt-room"), this.count);
    this.bar = element("div", "nbt-tools nbt-chosen");
    this.bar.hidden = true;
    this.message = element("div", "nbt-note");
    this.message.setAttribute("role", "status");
    this.live = element("div", "nbt-unseen");
    this.live.setAttribute("aria-live", "polite");
    const scroll = element("div", "nbt-scroll"), table = element("table");
    table.setAttribute("aria-label", "Runs");
    this.body = element("tbody");
    if (!this.compact) table.append(this.head());
    table.append(this.body);
    scroll.append(table);
    this.empty = element("p", "nbt-empty", "Looking...");
    this.pager = element("div", "nbt-pager");
    this.pager.hidden = true;
    this.menu = new RunMenu(this);
    this.body.addEventListener("keydown", (event) => this.key(event));
    const parts = [this.tools, this.bar, this.message, this.live, scroll, this.empty, this.pager];
    root.replaceChildren(...parts, this.menu.node);
  }

  select(label, act) {
    const node = element("select");
    node.setAttribute("aria-label", label);
    node.addEventListener("change", act);
    return node;
  }

  sortChoice() {
    const node = this.select("in which order", () => this.sort(node.value));
    choices(node, SORT_CHOICES);
    return node;
  }

  head() {
    const head = element("thead"), row = element("tr"), pick = element("th", "nbt-pick");
    this.all = element("input");
    this.all.type = "checkbox";
    this.all.setAttribute("aria-label", "Choose all runs of this page");
    this.all.addEventListener("change", () => this.choose(this.shown, this.all.checked));
    pick.append(this.all);
    row.append(pick);
    this.heads = {};
    for (const [key, title, className] of RUN_COLUMNS) {
      const cell = element("th", className);
      cell.scope = "col";
      cell.dataset.column = key;
      cell.append(button(title, `sort by ${title}`, () => this.sort(key)));
      this.heads[key] = cell;
      row.append(cell);
    }
    row.append(element("td"));
    head.append(row);
    return head;
  }

  drawHead() {
    if (this.compact) return;
    for (const [key, cell] of Object.entries(this.heads))
      cell.setAttribute("aria-sort", this.order.key === key ? RUNS_SORTED[this.order.direction] : "none");
    const chosen = this.shown.filter((name) => this.chosen.has(name)).length;
    this.all.checked = chosen > 0 && chosen === this.shown.length;
    this.all.indeterminate = chosen > 0 && chosen < this.shown.length;
  }

  drawBar() {
    const names = [...this.chosen];
    const archived = this.runs.filter((run) => this.chosen.has(run.name)).every((run) => run.archived);
    const state = `${names} ${this.server} ${archived}`;
    this.bar.hidden = !names.length;
    if (!names.length || state === this.barState) return;
    this.barState = state;
    const parts = [element("span", "", `${names.length} chosen`)];
    if (this.host.openCompare) {
      const open = () => this.host.openCompare(names);
      const compare = button("Compare", "Curves and settings side by side", open, "nbt-primary");
      compare.disabled = names.length < 2;
      if (compare.disabled) compare.title = "Choose a second run to compare with.";
      parts.push(compare);
    }
    if (this.server) {
      const words = archived ? "Restore from the archive" : "Archive";
      parts.push(button(words, "", () => this.archive(names, !archived)));
    }
    parts.push(button("Clear", "Choose none", () => this.choose(names, false)));
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
      this.root.scrollIntoView({ block: "nearest" });
    };
    const back = button("\u2039", "previous page", to(this.page - 1));
    const on = button("\u203a", "next page", to(this.page + 1));
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
