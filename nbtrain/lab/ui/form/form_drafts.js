// Values typed into forms. They are saved in this browser, so that a reload restores a form with or without its kernel.

const DRAFTS_KEY = "nbtrain-form-drafts";
const LAST_KEY = "nbtrain-form-last";
const MOST_DRAFTS = 20;

function readDrafts() {
  try {
    return JSON.parse(window.localStorage.getItem(DRAFTS_KEY)) || {};
  } catch {
    return {}; // there is no storage, or the entry was not written by this code
  }
}

function writeDrafts(drafts) {
  const sorted = Object.entries(drafts).sort(([, one], [, two]) => two.time - one.time);
  try {
    window.localStorage.setItem(DRAFTS_KEY, JSON.stringify(Object.fromEntries(sorted.slice(0, MOST_DRAFTS))));
  } catch {
    /* the storage is full or disabled; the kernel has the values too */
  }
}

/** The settings of the run that was last submitted from this browser, {name, yaml, typed, mode}; null without one. */
export function lastSettings() {
  try {
    const { name, yaml, typed, mode } = JSON.parse(window.localStorage.getItem(LAST_KEY)) || {};
    return name && yaml && typed ? { name, yaml, typed, mode } : null;
  } catch {
    return null;
  }
}

/** Save the settings of a submitted run for the next form; null forgets them. */
export function keepLastSettings(settings) {
  try {
    if (settings) window.localStorage.setItem(LAST_KEY, JSON.stringify(settings));
    else window.localStorage.removeItem(LAST_KEY);
  } catch {
    /* the storage is full or disabled: the next form opens with the example */
  }
}

export const draftOf = (id) => readDrafts()[id] || null;

/** Save a draft. `orphan`: no kernel has received the last change. */
export function keepDraft(id, start, state, orphan) {
  writeDrafts({ ...readDrafts(), [id]: { start, state, orphan, time: Date.now() } });
}

export function forgetDraft(id) {
  const drafts = readDrafts();
  delete drafts[id];
  writeDrafts(drafts);
}

// {id: the views of that form in this page}: a notebook may show one form twice.
const views = new Map();

/** Register a view of a form; returns a function that removes it. */
export function joinViews(id, view) {
  if (!views.has(id)) views.set(id, new Set());
  views.get(id).add(view);
  return () => views.get(id).delete(view);
}

export const otherViews = (id, view) => [...(views.get(id) || [])].filter((one) => one !== view);

/** The newest draft of a form with the same start whose changes no kernel has received: [id, draft] or null. */
export function orphanOf(start, except) {
  const found = Object.entries(readDrafts()).filter(
    ([id, one]) => id !== except && one.orphan && one.start === start && Object.keys(one.state.typed).length,
  );
  return found.sort(([, one], [, two]) => two.time - one.time)[0] || null;
}
