// The life of a job as a bar over time, with its phases: waiting, building, loading, training, validating, saving,
// restarting, paused.

import { element, stamp } from "../elements/dom.js";

export class LifeBar {
  constructor() {
    this.node = element("div", "nbt-life");
    this.bar = element("div", "nbt-life-bar");
    this.bar.setAttribute("role", "img");
    this.ends = element("div", "nbt-life-ends");
    this.legend = element("div", "nbt-life-legend");
    this.node.append(this.bar, this.ends, this.legend);
  }

  /** `life` comes from monitor/status/life.py: spans [kind, begin, end], and the time of each kind. */
  show({ begin, end, spans, totals }) {
    const state = JSON.stringify([begin, end, spans.length]);
    if (state === this.state) return;
    this.state = state;
    const names = new Map(totals.map(([kind, name]) => [kind, name])), whole = Math.max(end - begin, 1e-9);
    this.bar.replaceChildren(...spans.map(([kind, first, last]) => {
      const node = element("span", `nbt-life-${kind}`);
      node.style.width = `${(100 * (last - first)) / whole}%`;
      node.title = `${names.get(kind) || kind}: ${stamp(first)} to ${stamp(last)}`;
      return node;
    }));
    this.bar.setAttribute("aria-label", `life of the job: ${totals.map(([, name, words]) => `${name} ${words}`).join("; ")}`);
    this.ends.replaceChildren(element("span", "", stamp(begin)), element("span", "", stamp(end)));
    this.legend.replaceChildren(...totals.map(([kind, name, words]) => {
      const node = element("span"), mark = element("i", `nbt-life-${kind}`);
      node.append(mark, `${name} `, element("b", "", words));
      return node;
    }));
  }
}
