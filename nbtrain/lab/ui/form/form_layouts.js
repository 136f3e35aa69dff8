// Layouts that the layout search suggests. They are requested when the section is opened, and each can be applied to
// the fields.

import { DataTable } from "../elements/table.js";
import { button, element } from "../elements/dom.js";

const LAYOUT_HEADS = ["", "layout", "step time", "total time", "memory", "headroom", "compared with the first"];

export class FormLayouts {
  /** `form` provides ask(path, more) and use(texts, words). */
  constructor(form) {
    this.form = form;
    this.node = element("details", "nbt-details nbf-layouts");
    this.node.append(element("summary", "", "Suggested layouts"));
    this.gpus = this.input("number", "GPUs", "Number of GPUs. If empty, the run's number is used.");
    this.gpus.min = 1;
    this.type = this.input("text", "GPU type", "GPU type, such as A100-80GB. If empty, the run's type is used.");
    const tools = element("div", "nbt-tools");
    tools.append(this.gpus, this.type, button("Search", "Search for layouts on these GPUs", () => this.search()));
    this.note = element("p", "nbt-empty");
    this.note.setAttribute("role", "status");
    this.table = new DataTable("suggested layouts", { sortable: false, act: (row) => this.actions(row) });
    this.refused = element("details", "nbt-details");
    this.node.append(tools, this.note, this.table.node, this.refused);
    this.refused.hidden = true;
    this.node.addEventListener("toggle", () => this.node.open && !this.asked && this.search());
  }

  input(type, placeholder, title) {
    const node = element("input");
    Object.assign(node, { type, placeholder, title });
    node.setAttribute("aria-label", title);
    node.addEventListener("keydown", (event) => event.key === "Enter" && this.search());
    return node;
  }

  /** The values have changed, so the suggestions that are shown are outdated. */
  age() {
    this.asked = false;
    if (this.table.rows.length) this.note.textContent = "The values have changed since this search. Search again to update the results.";
  }

  async search() {
    this.asked = true;
    this.note.textContent = "Searching\u2026";
    try {
      const more = { gpus: Number(this.gpus.value) || null, gpu_type: this.type.value.trim() || null };
      const { title, rows, refused } = await this.form.ask("form/layouts", more);
      this.note.textContent = rows.length ? title : `${title}. No layout fits.`;
      this.table.show(rows.length ? LAYOUT_HEADS : [], rows.map((row) => ({
        kind: "",
        found: row,
        cells: [row.number, row.layout, row.step, row.time, row.memory, row.headroom, row.against],
      })));
      this.refused.hidden = !refused.length;
      const list = element("ul");
      refused.forEach((line) => list.append(element("li", "", line)));
      this.refused.replaceChildren(element("summary", "", "Rejected layouts and reasons"), list);
    } catch (error) {
      this.table.show([], []);
      this.refused.hidden = true;
      this.note.textContent = error.message;
    }
  }

  actions({ found }) {
    if (!found.changes.length) return [element("span", "nbf-unit", "Current layout")];
    const title = found.changes.map(([key, before, now]) => `${key}: ${before} \u2192 ${now}`).join("\n");
    return [button("Use this", title, () => this.form.use(found.typed, found.layout))];
  }
}
