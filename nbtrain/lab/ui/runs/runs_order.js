// Filtering a list of runs by text, state and tag, and sorting it by columns.

import { columnValue } from "./runs_columns.js";
import { known } from "../elements/dom.js";

/** The first options of the state filter, [value, label]. The states of the listed runs follow them. */
export const STATE_GROUPS = [
  ["", "All states"],
  ["active", "Active"],
  ["ended", "Ended"],
  ["archived", "Archived"],
];

export const tagWords = ([key, value]) => (value ? `${key}=${value}` : key);
export const tagsOf = (run) => Object.entries(run.labels || {}).map(tagWords);

/** Return the text of a run that the filter searches, in lower case. */
const searched = (run) =>
  [run.name, run.state, ...tagsOf(run), run.notes, run.cause, run.backend]
    .filter(Boolean)
    .join("\n")
    .toLowerCase();

function holdsState(run, state) {
  if (state === "active") return run.active;
  // A run that was never submitted is in neither group.
  if (state === "ended") return run.final;
  return !state || state === "archived" || run.state === state;
}

/** Return the regular expression for a filter word with wildcards, such as gpt-*, with the syntax of `nbtrain runs`;
 *  null for a word without wildcards. */
function namePattern(word) {
  if (!/[*?[]/.test(word)) return null;
  const source = word.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".").replace(/\[!/g, "[^");
  try {
    return new RegExp(`^${source}$`);
  } catch {
    return null;
  }
}

/** Return the runs that match every word of `text`, the state and the tag. A word with wildcards, such as gpt-*, is
 *  compared with the names of the runs only. */
export function filteredRuns(runs, { text, state, tag }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean), patterns = words.map(namePattern);
  return runs.filter((run) => {
    if (!holdsState(run, state) || (tag && !tagsOf(run).includes(tag))) return false;
    if (!words.length) return true;
    const all = searched(run);
    return words.every((word, at) => (patterns[at] ? patterns[at].test(run.name) : all.includes(word)));
  });
}

/** Sort by the first of `orders`, [{key, direction}, ...], and runs that are equal there by the next one.
 *  Runs without a value come last in either direction. */
export function sortedRuns(runs, orders) {
  const compared = (one, two, { key, direction }) => {
    const [a, b] = [columnValue(one, key), columnValue(two, key)];
    if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const first = (one, two) => orders.reduce((before, order) => before || compared(one, two, order), 0);
  return [...runs].sort(first);
}

/** Return the options of the tag filter, [[tag, label with the number of runs], ...], most frequent first. */
export function tagChoices(runs) {
  const counts = new Map();
  for (const run of runs) for (const tag of tagsOf(run)) counts.set(tag, (counts.get(tag) || 0) + 1);
  const found = [...counts].sort((one, two) => two[1] - one[1] || one[0].localeCompare(two[0]));
  return [["", "All tags"], ...found.map(([tag, count]) => [tag, `${tag} (${count})`])];
}

/** Return the changes {key: value or null} that turn `before` into the labels of the text: "team=nlp, stage".
 *  Throws an Error for invalid text. */
export function labelChanges(text, before) {
  const changes = Object.fromEntries(Object.keys(before).map((key) => [key, null]));
  for (const part of text.split(",").map((word) => word.trim()).filter(Boolean)) {
    const at = part.indexOf("=");
    const [key, value] = at < 0 ? [part, ""] : [part.slice(0, at).trim(), part.slice(at + 1).trim()];
    if (!key) throw new Error(`The tag "${part}" has no name before "=". Write name=value, such as team=nlp.`);
    if (known(changes[key])) throw new Error(`The tag "${key}" is given twice. Give each name once.`);
    changes[key] = value;
  }
  for (const key of Object.keys(changes)) if (changes[key] === before[key]) delete changes[key];
  return changes;
}
