// Small helpers for text and elements. Numbers are formatted by Python and numbers.js. Times are formatted here, in
// the user's time zone.

export const known = (value) => value !== null && value !== undefined;
export const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
/** The time, and the day if it is not today's. */
export function moment(time) {
  const then = new Date(time * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? clock(time) : `${then.toLocaleDateString("sv-SE")} ${clock(time)}`;
}
/** Day, time and zone: "2026-11-23 14:02:11 GMT+1". */
export function stamp(time) {
  return `${new Date(time * 1000).toLocaleDateString("sv-SE")} ${clock(time)} ${zone(time)}`.trim();
}
/** The user's time zone at a time: "GMT+1". */
export function zone(time) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date(time * 1000));
  const found = parts.find(({ type }) => type === "timeZoneName");
  return found ? found.value : "";
}
/** How long ago: "5 s", "12 min", "3 h", "4 d". */
export function age(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}

/** The effect of a stop on the ranks of a job. Modes perf and eval save no checkpoint. */
export const STOPPING = "the ranks exit at the next step boundary; in mode full they save a checkpoint first";

const ASKED = {
  kill: "Kill requested: the job is killed immediately.",
  stop: `Stop requested: ${STOPPING}.`,
  save: "Save requested: the ranks save a checkpoint at the next step boundary, and the job continues.",
  pause: "Pause requested: the ranks save a checkpoint at the next step boundary and release their devices.",
  resume: "Resume requested.",
};

/** The message for an action that failed: "Stop failed: the run no longer exists." */
export const failedWords = (action, message) => `${action[0].toUpperCase()}${action.slice(1)} failed: ${message}`;

/** The message for a request that the server accepted, "" if the action has none. A queued job has no ranks yet. */
export const askedWords = (key, queued) =>
  key === "stop" && queued ? "Removal from the queue requested." : ASKED[key] || "";

export const plain = (line) => line.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");

/** The id of a snapshot's newest job; "" if the run has none. */
export const newestJob = (snap) => (snap.job && snap.job.job_id) || "";

export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (known(text)) node.textContent = text;
  return node;
}

/**
 * Draw `values` as children of `node` with `make(value)`. Only children whose value has changed are made again, so that
 * a page that is drawn every second is laid out again only where something has changed.
 */
export function drawEach(node, values, make) {
  const before = node.drawn || [];
  const drawn = values.map((value, at) => {
    const state = JSON.stringify(value), kept = before[at];
    return kept && kept.state === state ? kept : { state, node: make(value) };
  });
  drawn.forEach((child, at) => {
    const there = node.children[at];
    if (there === child.node) return;
    if (there) there.replaceWith(child.node);
    else node.append(child.node);
  });
  while (node.children.length > drawn.length) node.lastElementChild.remove();
  node.drawn = drawn;
}

/** A button; `title` is its tooltip. */
export function button(text, title, act, className = "") {
  const node = element("button", className, text);
  node.type = "button";
  if (title) node.title = title;
  node.addEventListener("click", act);
  return node;
}

/** A menu with the elements `filled`. It closes on a click outside, on Escape, and on a click on one of its buttons. */
export function menu(words, title, ...filled) {
  const node = element("details", "nbt-menu"), list = element("div", "nbt-menu-list");
  const summary = element("summary", "", words);
  if (title) {
    summary.title = title;
    summary.setAttribute("aria-label", title);
  }
  list.append(...filled);
  list.addEventListener("click", (event) => event.target.closest("button") && (node.open = false));
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !node.open) return;
    event.stopPropagation();
    node.open = false;
    summary.focus();
  });
  const elsewhere = (event) => node.contains(event.target) || (node.open = false);
  node.addEventListener("toggle", () => {
    const change = node.open ? "addEventListener" : "removeEventListener";
    document[change]("pointerdown", elsewhere, true);
  });
  node.append(summary, list);
  node.list = list;
  return node;
}

/** An input with its label, such as a check box. */
export function labelled(input, words, className = "nbt-field") {
  const node = element("label", className);
  node.append(input, ` ${words}`);
  return node;
}

export function checkbox(words, act) {
  const input = element("input");
  input.type = "checkbox";
  input.addEventListener("change", act);
  const node = labelled(input, words);
  node.input = input;
  return node;
}

/** Set the options of a select, [[value, words], ...]; the current choice is kept if it still exists. */
export function choices(select, options) {
  const before = [...select.options].map((option) => option.value + option.textContent).join("\n");
  if (before === options.map((words) => words.join("")).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, words]) => {
    const option = element("option", "", words);
    option.value = value;
    return option;
  }));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

/** Copy text to the clipboard. Over plain HTTP a page has no navigator.clipboard. */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {
      /* not allowed in this frame: use execCommand */
    }
  }
  const area = element("textarea");
  area.value = text;
  area.style.cssText = "position:fixed;opacity:0";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies the result of `text()`, and then shows "Copied". */
export function copyButton(words, title, text) {
  const node = button(words, title, async () => {
    await copyText(text());
    node.textContent = "Copied";
    setTimeout(() => (node.textContent = words), 1500);
  }, "nbt-copy");
  return node;
}

/** Let the browser save `content` as a file. */
export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = element("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
