// A row of tabs with its page: arrow keys, Home and End move between them.

import { button, element } from "./dom.js";

let tabsMade = 0;

export class Tabs {
  /** `titles` is [[key, title], ...]; `opened(key)` is called when a tab is chosen. */
  constructor(titles, opened) {
    this.opened = opened;
    this.keys = titles.map(([key]) => key);
    this.bar = element("div", "nbt-tabs");
    this.page = element("div", "nbt-page");
    const own = `nbt-tabs-${(tabsMade += 1)}`, list = element("div", "nbt-tablist");
    list.setAttribute("role", "tablist");
    this.page.id = `${own}-page`;
    this.page.setAttribute("role", "tabpanel");
    this.page.tabIndex = 0;
    this.tabs = {};
    for (const [key, title] of titles) {
      const tab = button(title, "", () => this.select(key));
      tab.id = `${own}-${key}`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", this.page.id);
      this.tabs[key] = tab;
      list.append(tab);
    }
    list.addEventListener("keydown", (event) => this.moved(event));
    this.bar.append(list);
  }

  moved(event) {
    const at = this.keys.indexOf(this.key), last = this.keys.length - 1;
    const right = at === last ? 0 : at + 1, left = at === 0 ? last : at - 1;
    const to = { ArrowRight: right, ArrowLeft: left, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const key = this.keys[to];
    this.select(key);
    this.tabs[key].focus();
  }

  select(key) {
    this.key = key;
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.setAttribute("aria-selected", String(name === key));
      tab.tabIndex = name === key ? 0 : -1;
    }
    this.page.setAttribute("aria-labelledby", this.tabs[key].id);
    this.opened(key);
  }
}
