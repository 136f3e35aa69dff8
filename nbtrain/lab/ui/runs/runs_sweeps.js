// The runs of a sweep in the list: together below one row, which folds them, filters by them and compares them.

import { MOST_COMPARED } from "../compare/compare_chips.js";
import { runsCounted } from "./runs_bulk.js";
import { button, element, known } from "../elements/dom.js";

/** The label of a sweep's runs; LABEL of config/sections/sweep_section.py. */
export const SWEEP_LABEL = "sweep";
/** A sweep of more runs is folded until the user unfolds it. */
const MOST_UNFOLDED = 6;

export const sweepOf = (run) => (run.labels || {})[SWEEP_LABEL] || "";

/**
 * The entries of the list, in order: {run}, and {sweep, runs, folded} before the runs of a sweep, which are all at
 * the place of its first one. A sweep with a single listed run has no row.
 *
 * isFolded(name, runs)   whether the runs of a sweep are folded away
 */
export function sweepEntries(runs, isFolded) {
  const sweeps = new Map(), entries = [];
  for (const run of runs) {
    const name = sweepOf(run);
    if (name) sweeps.set(name, [...(sweeps.get(name) || []), run]);
  }
  for (const run of runs) {
    const sweep = sweepOf(run), own = sweeps.get(sweep) || [];
    if (own.length < 2) entries.push({ run });
    else if (own[0] === run) {
      const folded = isFolded(sweep, own);
      entries.push({ sweep, runs: own, folded }, ...(folded ? [] : own.map((other) => ({ run: other }))));
    }
  }
  return entries;
}

export const isFoldedAtFirst = (runs) => runs.length > MOST_UNFOLDED;

/** The metric by which the runs of a sweep are compared: their validation loss, or their loss if none has one. */
const metricOf = (runs) => (runs.some((run) => known(run.validation_loss)) ? "validation_loss" : "loss");

/** The runs of a sweep that have a metric, the best one first. */
export function bestFirst(runs) {
  const metric = metricOf(runs);
  return runs.filter((run) => known(run[metric])).sort((one, two) => one[metric] - two[metric]);
}

/** "50 runs: 40 SUCCEEDED, 10 RUNNING; best validation loss 3.1412: lr-study-lr-0-001" */
export function sweepWords(runs) {
  const counts = new Map();
  for (const { state } of runs) counts.set(state, (counts.get(state) || 0) + 1);
  const states = [...counts].sort((one, two) => two[1] - one[1]).map(([state, count]) => `${count} ${state}`);
  const [best] = bestFirst(runs), metric = metricOf(runs);
  const words = `${runsCounted(runs.length)}: ${states.join(", ")}`;
  return best ? `${words}; best ${metric.replace("_", " ")} ${best.words[metric]}: ${best.name}` : words;
}

/** The row of a sweep. `list` is the controller of runs.js. */
export class SweepRow {
  constructor(list, name) {
    Object.assign(this, { list, name });
    this.node = element("tr", "nbt-sweep");
    this.node.dataset.sweep = name;
    const pick = element("td", "nbt-pick"), target = element("label");
    this.box = element("input");
    this.box.type = "checkbox";
    this.box.setAttribute("aria-label", `Choose all runs of the sweep ${name}`);
    this.box.addEventListener("change", () => list.choose(this.runs.map((run) => run.name), this.box.checked));
    target.append(this.box);
    pick.append(target);
    this.cell = element("td");
    this.fold = button("", "", () => list.foldSweep(name, this.runs, !this.folded), "nbt-fold");
    this.words = element("span", "nbt-word");
    const tag = `${SWEEP_LABEL}=${name}`;
    this.only = button("", "", () => list.filterTag(list.tag.value === tag ? "" : tag));
    this.compare = button("", "", () => list.host.openCompare(this.best));
    const line = element("div", "nbt-tools");
    line.append(this.fold, this.words, this.only, this.compare);
    this.cell.append(line);
    this.node.append(pick, this.cell);
  }

  draw({ runs, folded }, columns) {
    Object.assign(this, { runs, folded });
    const { list, name } = this;
    this.best = bestFirst(runs).slice(0, MOST_COMPARED).map((run) => run.name);
    const chosen = runs.filter((run) => list.chosen.has(run.name)).length;
    this.box.checked = chosen === runs.length;
    this.box.indeterminate = chosen > 0 && chosen < runs.length;
    const isOnly = list.tag.value === `${SWEEP_LABEL}=${name}`, words = sweepWords(runs);
    const hasCompare = Boolean(list.host.openCompare) && this.best.length > 1;
    const state = JSON.stringify([words, folded, columns, isOnly, this.best, hasCompare]);
    if (state === this.drawn) return;
    this.drawn = state;
    this.cell.colSpan = columns;
    this.fold.textContent = `${folded ? "\u25b8" : "\u25be"} sweep ${name}`;
    this.fold.title = folded ? "Show the runs of this sweep" : "Fold the runs of this sweep";
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.words.textContent = words;
    this.only.textContent = isOnly ? "Show all runs" : "Only this sweep";
    this.only.title = isOnly ? "Show the runs of every sweep" : `Show only runs with ${SWEEP_LABEL}=${name}`;
    this.compare.textContent = this.best.length < runs.length ? `Compare best ${this.best.length}` : "Compare";
    this.compare.title = "Curves, results and settings side by side; seeds of one setting as a band";
    this.compare.hidden = !hasCompare;
  }
}
