// Actions on several selected runs at once: tag, stop, archive, delete. One question confirms the action for all runs,
// and one message reports the result and names each run for which the action failed.

import { labelChanges } from "./runs_order.js";
import { STOPPING, button, element } from "../elements/dom.js";

const MOST_NAMES_SAID = 5;

export const runsCounted = (number) => `${number.toLocaleString("en")} ${number === 1 ? "run" : "runs"}`;

/** "a, b, c and 4 more" */
export function namesInWords(names) {
  const more = names.length - MOST_NAMES_SAID;
  return names.slice(0, MOST_NAMES_SAID).join(", ") + (more > 0 ? ` and ${more.toLocaleString("en")} more` : "");
}

/**
 * Call `act(name)` for each name, one after another. Returns {words, failures}: a message about the result, and the
 * errors.
 *
 * done        what has happened, for the message: "Deleted"
 * progress    called before each run with a text such as "2 of 5: gpt-b"
 */
export async function forEachRun(names, done, act, progress = () => {}) {
  const failures = [];
  for (const [at, name] of names.entries()) {
    progress(`${at + 1} of ${names.length}: ${name}`);
    try {
      await act(name);
    } catch (error) {
      failures.push(`${name}: ${error.message}`);
    }
  }
  const count = names.length - failures.length;
  const words = `${done}: ${count === 1 ? names.find((name) => !failures.some((text) => text.startsWith(`${name}: `))) : runsCounted(count)}.`;
  return { words: failures.length ? `${words} Failed for ${failures.join("; ")}` : words, failures };
}

/** Return the buttons for the selected runs; `list` is the controller of runs.js. */
export function bulkButtons(list, runs) {
  const names = runs.map(({ name }) => name), parts = [];
  const active = runs.filter((run) => run.active).map(({ name }) => name);
  const ended = runs.filter((run) => !run.active).map(({ name }) => name);
  const archived = runs.every((run) => run.archived);
  const add = (words, title, act, className) => parts.push(button(words, title, act, className));
  add("Tag...", "Add or remove tags of the selected runs", () => list.openBulk(tagEditor(list, runs)));
  add(archived ? "Restore from the archive" : "Archive", "An archived run is hidden from the list; its files are kept.",
    () => list.archive(names, !archived));
  if (active.length)
    add(`Stop ${runsCounted(active.length)}...`, `Stop the jobs: ${STOPPING}.`, () =>
      list.ask(`Stop ${namesInWords(active)}? In each run, ${STOPPING}. A queued run leaves the queue.`,
        "Stop", () => list.bulk(active, "Stop requested", (name) => list.request(name, "stop"))), "nbt-stop");
  if (ended.length)
    add(`Delete ${runsCounted(ended.length)}...`, "Delete the runs and all their files", () =>
      list.ask(`Delete ${namesInWords(ended)} with all their files? This cannot be undone.`, "Delete", () =>
        list.bulk(ended, "Deleted", (name) => list.request(name, "delete"))), "nbt-delete");
  return parts;
}

/** Return an editor that adds tags to runs and removes tags that at least one of the runs has. */
function tagEditor(list, runs) {
  const node = element("form", "nbt-extra nbt-editor"), said = element("p", "nbt-note nbt-error");
  node.setAttribute("aria-label", `Tags of ${runsCounted(runs.length)}`);
  const label = element("label", "", "Add tags: name=value, separated by commas"), tags = element("input");
  tags.type = "text";
  tags.placeholder = "team=nlp, stage=trial";
  label.append(tags);
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.labels || {})))].sort();
  const boxes = keys.map((key) => {
    const box = element("input"), own = element("label", "nbt-field");
    box.type = "checkbox";
    box.value = key;
    own.append(box, ` ${key}`);
    return { box, own };
  });
  const removal = element("fieldset", "nbt-removal");
  removal.append(element("legend", "", "Remove tags"), ...boxes.map(({ own }) => own));
  removal.hidden = !keys.length;
  said.setAttribute("role", "alert");
  const keep = element("button", "nbt-primary", "Save");
  keep.type = "submit";
  node.append(label, removal, said, keep, button("Cancel", "", () => list.closeBulk()));
  node.addEventListener("keydown", (event) => {
    // Keep the notebook from handling the key.
    event.stopPropagation();
    if (event.key === "Escape") list.closeBulk();
  });
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      const labels = labelChanges(tags.value, {});
      for (const { box } of boxes) if (box.checked && !(box.value in labels)) labels[box.value] = null;
      list.closeBulk();
      if (Object.keys(labels).length)
        list.bulk(runs.map(({ name }) => name), "Tagged", (name) => list.request(name, "tag", { labels }));
    } catch (error) {
      said.textContent = error.message;
    }
  });
  node.first = tags;
  return node;
}
