// The runs of a sweep in the list. They follow a row with buttons that fold the runs, show only them, or compare them.

import { MOST_COMPARED } from "../compare/compare_chips.js";
import { runsCounted } from "./runs_bulk.js";
import { button, element, known } from "../elements/dom.js";

/** The label of a sweep's runs; LABEL of config/sections/sweep_section.py. */
export const SWEEP_LABEL = "sweep";
/** A sweep with more runs than this is folded until the user unfolds it. */
const MOST_UNFOLDED = 6;

export const sweepOf = (run) => (run.labels || {})[SWEEP_LABEL] || "";

/**
 * Return the entries of the list, in order: {run} for a run, and {sweep, runs, folded} for the row of a sweep. The runs
 * of a sweep follow its row, at the position of the first of them. A sweep with a single listed run has no row.
 *
 * isFolded(name, runs)   returns whether the runs of a sweep are hidden
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

/** Return the metric by which the runs of a sweep are compared: the validation loss, or the loss if no run has a
 *  validation loss. */
const metricOf = (runs) => (runs.some((run) => known(run.validation_loss)) ? "validation_loss" : "loss");

/** Return the runs of a sweep that have a value of the metric, best first. */
export function bestFirst(runs) {
  const metric = metricOf(runs);
  return runs.filter((run) => known(run[metric])).sort((one, two) => one[metric] - two[metric]);
}

/** Return the summary of a sweep: "50 runs: 40 SUCCEEDED, 10 RUNNING; best validation loss 3.1412 (lr-study-lr-0-001)". */
export function sweepWords(runs) {
  const counts = new Map();
  for (const { state } of runs) counts.set(state, (counts.get(state) || 0) + 1);
  const states = [...counts].sort((one, two) => two[1] - one[1]).map(([state, count]) => `${count} ${state}`);
  const [best] = bestFirst(runs), metric = metricOf(runs);
  const words = `${runsCounted(runs.length)}: ${states.join(", ")}`;
  return best ? `${words}; best ${metric.replace("_", " ")} ${best.words[metric]} (${best.name})` : words;
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
    this.box.setAttribute("aria-label", `Select all runs of the sweep ${name}`);
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
    this.fold.textContent = `${folded ? "\u25b8" : "\u25be"} Sweep ${name}`;
    this.fold.title = folded ? "Show the runs of this sweep" : "Hide the runs of this sweep";
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.words.textContent = words;
    this.only.textContent = isOnly ? "Show all runs" : "Only this sweep";
    this.only.title = isOnly ? "Show the runs of every sweep" : `Show only runs with ${SWEEP_LABEL}=${name}`;
    this.compare.textContent = this.best.length < runs.length ? `Compare best ${this.best.length}` : "Compare";
    this.compare.title = "Compare curves, results and settings side by side, with seeds of one setting as a band";
    this.compare.hidden = !hasCompare;
  }
}
