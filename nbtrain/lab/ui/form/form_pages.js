// The form's fields: the essential ones first; below them all fields by group, with a search.

import { FormField, OFF } from "./form_fields.js";
import { Tabs } from "../elements/tabs.js";
import { element } from "../elements/dom.js";

export class FormPages {
  /** `form` provides text(key), changed(key, text) and reset(key). */
  constructor(form) {
    this.form = form;
    this.fields = new Map();
    this.marks = {};
    this.first = element("div", "nbf-grid");
    this.first.setAttribute("role", "group");
    this.first.setAttribute("aria-label", "Essential fields");
    this.all = element("details", "nbf-all");
    this.title = element("summary", "", "All fields");
    this.all.append(this.title);
  }

  /** Show the fields of another YAML; the tab and the search text are kept. */
  show(described) {
    this.described = described;
    this.specs = new Map(described.fields.map((spec) => [spec.key, spec]));
    this.fields.clear();
    this.first.replaceChildren(...described.essentials.map((key) => this.field(key, "first").node));
    this.backend = this.form.text("backend.kind");
    if (!this.tabs) this.makeTabs(described.groups);
    else this.open();
    this.countFields();
    this.count();
  }

  /** Return whether a field is shown. Fields of a backend that is not chosen have no effect, and are shown only if they
   *  are changed or have a problem. */
  applies(key) {
    const [section, kind, rest] = key.split("."), own = this.specs.get("backend.kind");
    if (section !== "backend" || !rest || !own.choices.includes(kind)) return true;
    const mark = this.marks[key] || {};
    return kind === this.form.text("backend.kind") || Boolean(mark.changed) || (mark.problems || []).length > 0;
  }

  countFields() {
    // The name has its own place above.
    const applying = [...this.specs.keys()].filter((key) => key !== "name" && this.applies(key));
    this.title.textContent = `All fields (${applying.length})`;
  }

  /** Show the fields of the backend that was chosen. */
  showBackend() {
    const backend = this.form.text("backend.kind");
    if (backend === this.backend) return;
    this.backend = backend;
    // The fields are drawn again. The changed field keeps the focus and its place on the page.
    const { page } = this.tabs, { activeElement } = document, { scrollTop } = page;
    const focused = page.contains(activeElement);
    this.open();
    this.countFields();
    page.scrollTop = scrollTop;
    if (focused) activeElement.focus({ preventScroll: true });
  }

  makeTabs(groups) {
    this.search = element("input");
    this.search.type = "search";
    this.search.placeholder = "Search all fields";
    this.search.setAttribute("aria-label", "search all fields");
    this.search.addEventListener("input", () => this.open());
    this.hits = element("span", "nbf-hits");
    this.hits.setAttribute("role", "status");
    this.tabs = new Tabs(groups.map(({ title }) => [title, title]), () => this.chosen());
    this.tabs.bar.append(element("span", "nbt-room"), this.hits, this.search);
    this.all.append(this.tabs.bar, this.tabs.page);
    this.tabs.select(groups[0].title);
  }

  chosen() {
    this.search.value = "";
    this.open();
  }

  /** Fill the page with the fields of the chosen tab, or with the hits of the search. */
  open() {
    const wanted = this.search.value.trim().toLowerCase(), parts = [];
    let hits = 0;
    for (const { title, sections } of this.described.groups) {
      if (!wanted && title !== this.tabs.key) continue;
      for (const { name, keys } of sections) {
        const found = keys.filter((key) => this.applies(key) && (!wanted || this.found(key, wanted)));
        if (!found.length) continue;
        hits += found.length;
        const grid = element("div", "nbf-grid");
        grid.append(element("div", "nbf-part", wanted ? `${title}: ${name}` : name));
        grid.append(...found.map((key) => this.field(key, "all").node));
        parts.push(grid);
      }
    }
    if (!parts.length) parts.push(element("p", "nbt-empty", `No field matches "${this.search.value.trim()}".`));
    // A search covers all groups, so no tab is shown as chosen.
    this.tabs.bar.classList.toggle("nbf-searching", Boolean(wanted));
    this.hits.textContent = wanted ? `${hits} matching ${hits === 1 ? "field" : "fields"}` : "";
    this.tabs.page.replaceChildren(...parts);
    this.tabs.page.scrollTop = 0;
  }

  found(key, wanted) {
    const { title, description } = this.specs.get(key);
    return `${key} ${title} ${description}`.toLowerCase().replace(/\s+/g, " ").includes(wanted);
  }

  /** Return the field of a key in one place. An essential field is shown in two places, which stay in sync. */
  field(key, place) {
    const own = `${place} ${key}`;
    if (!this.fields.has(own)) {
      const made = new FormField(this.specs.get(key), {
        changed: (name, text, source) => {
          for (const other of this.placesOf(name)) if (other !== source) other.text = text;
          this.form.changed(name, text);
        },
        reset: (name) => this.form.reset(name),
        whole: place === "first",
        base: this.form.start.clone ? "parent" : "YAML",
      });
      made.text = this.form.text(key);
      made.off = this.isOff(key);
      made.mark(this.marks[key] || {});
      this.fields.set(own, made);
    }
    return this.fields.get(own);
  }

  placesOf(key) {
    return ["first", "all"].map((place) => this.fields.get(`${place} ${key}`)).filter(Boolean);
  }

  /** Set every field to the form's text. */
  refill() {
    for (const field of this.fields.values()) field.text = this.form.text(field.spec.key);
    this.wake();
    this.showBackend();
  }

  /** Whether a field belongs to a section that is off. */
  isOff(key) {
    const { within } = this.specs.get(key);
    return Boolean(within) && this.form.text(within) === OFF;
  }

  /** Enable the fields of the sections that are on, and disable the others. */
  wake() {
    for (const field of this.fields.values()) if (field.spec.within) field.off = this.isOff(field.spec.key);
  }

  /** Keys of the fields inside a section. */
  inside(section) {
    return [...this.specs.values()].filter(({ within }) => within === section).map(({ key }) => key);
  }

  /** Update fields whose value depends on another field: {key: {base, value, default}}. */
  follow(found) {
    for (const [key, words] of Object.entries(found)) Object.assign(this.specs.get(key), words);
    this.refill();
  }

  /** Mark the fields; `marks` is {key: argument of FormField.mark}. */
  mark(marks) {
    this.marks = marks;
    for (const field of this.fields.values()) field.mark(marks[field.spec.key] || {});
    this.count();
  }

  /** Show on each tab how many of its fields have problems or are changed. */
  count() {
    for (const { title } of this.described.groups) {
      let wrong = 0, changed = 0;
      for (const [key, mark] of Object.entries(this.marks)) {
        const spec = this.specs.get(key);
        if (!spec || spec.group !== title) continue;
        wrong += (mark.problems || []).length;
        changed += mark.changed ? 1 : 0;
      }
      const parts = [document.createTextNode(title)];
      const badge = (number, name, one, many) => {
        const node = element("span", `nbf-count ${name}`, number);
        const words = ` ${number === 1 ? one : many}`;
        node.title = number + words;
        node.append(element("span", "nbt-unseen", words));
        parts.push(node);
      };
      if (wrong) badge(wrong, "nbf-wrong", "problem", "problems");
      if (changed) badge(changed, "", "changed field", "changed fields");
      this.tabs.tabs[title].replaceChildren(...parts);
    }
  }

  /** Scroll to a field and focus it. */
  go(key) {
    const spec = this.specs.get(key);
    let field = this.fields.get(`first ${key}`);
    if (!field && spec && spec.group) {
      this.all.open = true;
      this.tabs.select(spec.group);
      field = this.field(key, "all");
    }
    if (!field) return;
    field.node.scrollIntoView({ block: "nearest" });
    field.control.focus({ preventScroll: true });
  }

  /** Focus an essential field with its value selected, so that typing replaces it. */
  begin(key) {
    const field = this.fields.get(`first ${key}`);
    if (!field) return;
    this.go(key);
    field.control.select();
  }
}
