// The results of checking the form's values: fit, time and disk, all problems, changed fields, and the plan.

import { grouped } from "../charts/numbers.js";
import { pairs } from "../elements/table.js";
import { button, element } from "../elements/dom.js";

const TILES = [["fits", "Fits"], ["time", "Time"], ["disk", "Disk"]];

const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

export class FormSide {
  /**
   * go(key)           scrolls to a field
   * use(texts, words) sets the texts of fields
   * openRun(name)     opens a run; null if the page cannot
   */
  constructor({ go, use, openRun }) {
    Object.assign(this, { go, use, openRun });
    this.node = element("div", "nbf-side");
    const tiles = element("div", "nbt-tiles");
    this.tiles = {};
    for (const [key, title] of TILES) {
      const tile = element("div", "nbt-tile");
      this.tiles[key] = element("strong", "", "\u2026");
      tile.append(element("span", "", title), this.tiles[key]);
      tiles.append(tile);
    }
    this.when = element("div", "nbf-when");
    this.verdict = element("div", "nbf-verdict");
    this.verdict.setAttribute("aria-live", "polite");
    this.found = element("div", "nbf-found");
    this.found.tabIndex = 0;
    this.found.setAttribute("role", "region");
    this.found.setAttribute("aria-label", "Problems and shortages");
    this.changes = this.details("Changed fields", "nbf-changes");
    this.findings = this.details("Plan findings", "nbf-findings");
    this.plan = this.details("Plan", "nbf-plan");
    this.node.append(tiles, this.when, this.verdict, this.found, this.changes.node);
    // The remaining parts use the full width.
    this.rest = element("div", "nbf-rest");
    this.rest.append(this.findings.node, this.plan.node);
  }

  details(title, name) {
    const node = element("details", `nbt-details ${name}`);
    const summary = element("summary", "", title), content = element("div");
    node.append(summary, content);
    return { node, summary, content, title };
  }

  fill(part, number, content) {
    part.summary.textContent = number === null ? part.title : `${part.title} (${number})`;
    part.node.hidden = number === 0;
    part.content.replaceChildren(...content);
  }

  show(found) {
    const { problems, shortages, headline, changes, findings } = found;
    for (const node of [this.node, this.rest]) node.classList.toggle("nbf-stale", !headline);
    this.when.textContent = headline || !problems.length ? "" : "This plan is for the last valid values.";
    if (headline) {
      for (const [key] of TILES) this.tiles[key].textContent = headline[key];
      this.tiles.fits.className = headline.kind ? `nbf-${headline.kind}` : "";
    }
    this.showFound(found);
    this.fill(this.changes, changes.length, [this.changed(changes)]);
    if (!headline && problems.length) return;
    const texts = findings.map((one) => {
      const node = element("p", "", "");
      node.append(element("b", "", `${one.label}: `), `${one.message} ${one.fix}`);
      return node;
    });
    this.fill(this.findings, findings.length, texts);
    const grid = element("div", "nbf-tables");
    for (const [title, rows] of found.plan || []) {
      const part = element("div");
      const table = pairs(rows.map(([name, text]) => [name.trim(), text]), title);
      part.append(element("h4", "", title), table);
      grid.append(part);
    }
    this.fill(this.plan, null, [grid]);
    if (shortages.length && !problems.length) this.verdict.classList.add("nbf-tight");
  }

  showFound({ problems, shortages, findings, words, unprepared, taken }) {
    const warnings = findings.filter(({ level }) => level !== "note");
    const isReady = !problems.length && !shortages.length && !warnings.length;
    const fields = new Set(problems.map(({ key }) => key)).size;
    this.verdict.className = `nbf-verdict ${problems.length ? "nbf-error" : isReady ? "nbf-good" : ""}`;
    this.verdict.classList.toggle("nbf-warning", !problems.length && !words && warnings.length > 0);
    if (problems.length) {
      const where = fields > 1 ? ` in ${counted(fields, "field")}` : "";
      this.verdict.textContent = `${counted(problems.length, "problem")}${where}`;
      const list = element("ul");
      for (const { key, message, ways = [] } of problems) {
        const row = element("li");
        row.append(key ? this.link(key, element("b", "", key), ` ${message}`) : message);
        for (const typed of ways) row.append(" ", this.setter(typed));
        if (key === "name" && taken) row.append(...this.otherNames(taken));
        list.append(row);
      }
      this.found.replaceChildren(list);
      return;
    }
    if (words) {
      this.verdict.textContent = "Ready to try at small scale";
      this.found.replaceChildren(element("p", "", words));
      return;
    }
    if (!shortages.length && warnings.length) {
      this.verdict.textContent = `Can be submitted, with ${counted(warnings.length, "warning")}`;
      this.found.replaceChildren(...warnings.map((finding) => this.warning(finding)));
      return;
    }
    if (!shortages.length) {
      this.verdict.textContent = "Ready to submit";
      this.found.replaceChildren(element("p", "", "No problems found on this machine."));
      return;
    }
    this.verdict.textContent = "This machine cannot start the run yet";
    const fixes = new Map();
    for (const one of shortages) fixes.set(one.fix, [...(fixes.get(one.fix) || []), one]);
    this.found.replaceChildren(...[...fixes].flatMap(([fix, found]) => [
      ...found.map(({ key, message }) => {
        const row = element("p");
        row.append(key ? this.link(key, message) : message);
        return row;
      }),
      element("p", "nbf-warning", fix),
      ...(unprepared && found.every(({ kind }) => kind === "data")
        ? [element("p", "", "The cell that you can insert or copy below prepares the data first.")]
        : []),
    ]), ...warnings.map((finding) => this.warning(finding)));
  }

  /** Return the buttons for a name that is taken: use a free name, or open the other run. */
  otherNames({ name, is_run: isRun, free }) {
    const other = button(`Use the name ${free}`, "", () => this.use({ name: free }, `the name ${free}`), "nbf-act");
    const open = isRun && this.openRun ? [button(`Open ${name}`, "", () => this.openRun(name), "nbf-act")] : [];
    return [" ", other, ...open.flatMap((node) => [" ", node])];
  }

  /** Return a warning of the plan with its fix; a fix that sets one field is a button. */
  warning({ key, message, fix, typed }) {
    const row = element("p");
    row.append(key ? this.link(key, element("b", "", key), ` ${message}`) : message, " ");
    row.append(typed ? this.setter(typed) : fix);
    return row;
  }

  /** Return a button that sets one field; `typed` is {key: text}. */
  setter(typed) {
    const [[field, text]] = Object.entries(typed);
    return button(`Set ${field} to ${grouped(text)}`, "", () => this.use(typed, `${field} = ${grouped(text)}`),
      "nbf-act");
  }

  /** Return a link that scrolls to a field. */
  link(key, ...words) {
    const node = button("", `Go to ${key}`, () => this.go(key));
    node.append(...words);
    return node;
  }

  changed(changes) {
    return pairs(changes.map(([key, before, now, by]) => {
      const node = element("span");
      node.append(element("s", "", before), ` \u2192 `, element("strong", "", now));
      if (by === "given") node.append(element("span", "nbf-unit", "  as opened"));
      return [key, node];
    }), "changed fields");
  }
}
