// A table of rows {kind, time, cells}. A click on a column head sorts it; it can have a filter, a column menu and pages.
// A cell is text, an element, or {text, title, className, note, tone}; `note` follows the text in small type.

import { button, checkbox, element, known, menu, moment, stamp, zone } from "./dom.js";

const SORTED = { 1: "ascending", "-1": "descending" };

/** The first cell of a row that has a time, in the user's time zone; else null. */
const timeCell = (row, time) =>
  known(row.time) ? { text: time(row.time), sort: row.time, title: stamp(row.time) } : null;

const SIZES = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** The sort key of a cell: "1,234" and "1.2 GiB" as numbers, everything else as text. */
function figure(words) {
  const text = String(words).replace(/(\d),(?=\d{3})/g, "$1");
  const [, number, unit] = /^(\d+(?:\.\d+)?)(?: (B|[KMGT]iB)\b.*)?$/.exec(text) || [];
  return number ? Number(number) * SIZES[unit || "B"] : text;
}

/** Replace the content of `node`. If a button had the focus, the new button at its position gets the focus. */
function keepFocus(node, parts) {
  const controls = () => [...node.querySelectorAll("button, summary")];
  const at = controls().indexOf(document.activeElement);
  node.replaceChildren(...parts);
  const again = at < 0 ? null : controls()[at];
  if (again) again.focus({ preventScroll: true });
}

export class DataTable {
  /**
   * sortable   whether a click on a column's head sorts the rows
   * pageSize   rows on a page; 0 for no pages
   * choose     whether the user can choose columns; `hide` are titles of columns that are hidden at first
   * act(row)   elements of an additional first column
   * time(at)   text for a row's time
   */
  constructor(label, options = {}) {
    const { sortable = true, pageSize = 0, choose = false, hide = [], act = null, time = moment } = options;
    Object.assign(this, { label, sortable, pageSize, hide, act, time });
    this.rows = [];
    this.heads = [];
    this.order = null;
    this.page = 0;
    this.hidden = new Set();
    this.filter = () => true;
    this.node = element("div", "nbt-table");
    this.tools = element("div", "nbt-tools");
    this.scroll = element("div", "nbt-scroll");
    this.pager = element("div", "nbt-pager");
    if (choose) this.tools.append(this.columns());
    this.node.append(this.tools, this.scroll, this.pager);
    this.tools.hidden = !choose;
  }

  /** Add elements above the table, such as a filter. */
  tool(...nodes) {
    this.tools.prepend(...nodes);
    this.tools.hidden = false;
  }

  columns() {
    this.menu = menu("Columns", "");
    return this.menu;
  }

  show(heads, rows) {
    const state = JSON.stringify([heads, rows]);
    // An open menu stays until the user closes it.
    if (state === this.state || this.scroll.querySelector("details[open]")) return;
    this.state = state;
    if (this.menu && heads.join() !== this.heads.join()) {
      this.hidden = new Set(heads.flatMap((title, at) => (this.hide.includes(title) ? [at] : [])));
      this.menu.list.replaceChildren(...heads.map((title, at) => {
        const box = checkbox(title, () => {
          if (box.input.checked) this.hidden.delete(at);
          else this.hidden.add(at);
          this.draw();
        });
        box.input.checked = !this.hidden.has(at);
        return box;
      }));
    }
    [this.heads, this.rows] = [heads, rows];
    this.draw();
  }

  cells(row) {
    const first = timeCell(row, this.time);
    return first ? [first, ...row.cells] : row.cells;
  }

  sorted() {
    const rows = this.rows.filter((row) => this.filter(row));
    if (!this.order) return rows;
    const { column, direction } = this.order;
    const key = (row) => {
      const cell = this.cells(row)[column];
      return cell && known(cell.sort) ? cell.sort : figure((cell && cell.text) ?? cell ?? "");
    };
    const compared = (one, two) =>
      typeof one === "number" && typeof two === "number"
        ? one - two
        : String(one).localeCompare(String(two), "en", { numeric: true });
    return [...rows].sort((one, two) => direction * compared(key(one), key(two)));
  }

  draw() {
    const rows = this.sorted(), size = this.pageSize || rows.length || 1;
    this.page = Math.min(this.page, Math.max(0, Math.ceil(rows.length / size) - 1));
    const begin = this.page * size, table = element("table");
    this.times = [];
    table.setAttribute("aria-label", this.label);
    if (this.heads.some(Boolean)) table.append(this.head());
    const body = element("tbody");
    for (const row of rows.slice(begin, begin + size)) body.append(this.row(row));
    table.append(body);
    keepFocus(this.scroll, [table]);
    this.pager.hidden = !this.pageSize || rows.length <= size;
    if (this.pager.hidden) return;
    const to = (page) => () => {
      this.page = page;
      this.draw();
    };
    const back = button("\u2039", "Previous page", to(this.page - 1));
    const on = button("\u203a", "Next page", to(this.page + 1));
    back.disabled = this.page === 0;
    on.disabled = begin + size >= rows.length;
    const words = `${begin + 1}\u2013${Math.min(begin + size, rows.length)} of ${rows.length}`;
    keepFocus(this.pager, [back, element("span", "", words), on]);
  }

  /** Update the texts of the times, because ages grow. */
  tick() {
    for (const [cell, time] of this.times || []) {
      const words = this.time(time);
      if (cell.textContent !== words) cell.textContent = words;
    }
  }

  head() {
    const head = element("thead"), row = element("tr");
    if (this.act) row.append(element("td"));
    const timed = this.time === moment && this.rows.find((one) => known(one.time));
    this.heads.forEach((name, column) => {
      if (this.hidden.has(column)) return;
      // Times are shown in the user's time zone.
      const title = column === 0 && timed ? `${name}, ${zone(timed.time)}` : name;
      const cell = element("th");
      cell.scope = "col";
      const mine = this.order && this.order.column === column;
      if (this.sortable) {
        const sort = button(title, `Sort by ${title}`, () => {
          const direction = this.order && this.order.column === column ? -this.order.direction : 1;
          this.order = { column, direction };
          this.draw();
          const again = this.scroll.querySelector(`th button[data-column="${column}"]`);
          if (again) again.focus();
        });
        sort.dataset.column = column;
        cell.append(sort);
        cell.setAttribute("aria-sort", mine ? SORTED[this.order.direction] : "none");
      } else cell.textContent = title;
      row.append(cell);
    });
    head.append(row);
    return head;
  }

  row(row) {
    const node = element("tr"), cells = this.cells(row);
    node.dataset.kind = row.kind || "";
    if (this.act) {
      const own = element("td", "nbt-act");
      own.append(...this.act(row));
      node.append(own);
    }
    cells.forEach((cell, column) => {
      if (this.hidden.has(column)) return;
      const last = column === cells.length - 1;
      const own = element("td", last ? "nbt-wide" : "");
      if (cell instanceof Node) own.append(cell);
      else if (cell && typeof cell === "object") {
        own.textContent = cell.text;
        if (cell.title) own.title = cell.title;
        if (cell.className) own.classList.add(cell.className);
        if (cell.note) own.append(" ", element("small", cell.tone, cell.note));
        if (column === 0 && known(row.time)) this.times.push([own, row.time]);
      } else own.textContent = cell ?? "";
      node.append(own);
    });
    return node;
  }
}

/** A list of [label, text] as two columns. */
export function pairs(rows, label) {
  const table = element("table", "nbt-pairs");
  if (label) table.setAttribute("aria-label", label);
  table.append(...rows.map(([name, text]) => pairRow(name, text)));
  return table;
}

/** A row of such a table; `text` may be an element. */
export function pairRow(name, text) {
  const row = element("tr"), head = element("th", "", name), cell = element("td", "nbt-wide");
  head.scope = "row";
  cell.append(text ?? "");
  row.append(head, cell);
  return row;
}
