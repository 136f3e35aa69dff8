// The actions that the views of lab/ui need from the page around them, as JupyterLab commands.

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import { PageConfig } from "@jupyterlab/coreutils";
import { NotebookActions, type INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";

import { ids } from "./names";

export interface FormArguments {
  yaml?: string;
  overrides?: Record<string, unknown>;
  clone?: string;
}

/** The host that ARCHITECTURE.md describes in "The user interface". An action is null if it is not available here. */
export interface Host {
  openRun(name: string): void;
  openRuns(): void;
  openCompare(names: string[]): void;
  openForm(start?: FormArguments): void;
  openTensorBoard(name?: string): void;
  openModel(name: string): void;
  /** Return the address at which JupyterLab opens a run, at a place such as a line of a log, or compares several runs. */
  linkTo(names: string[], place?: Place): string;
  insertCell: ((text: string) => Promise<void>) | null;
  notify(text: string, kind?: string): void;
}

export function makeHost(app: JupyterFrontEnd, notebooks: INotebookTracker | null): Host {
  const execute = (command: string, args: object = {}) => void app.commands.execute(command, { ...args } as any);
  return {
    openRun: (name) => execute(ids.openRun, { name }),
    openRuns: () => execute(ids.openRuns),
    openCompare: (names) => execute(ids.compare, { names }),
    openForm: (start = {}) => execute(ids.newRun, start),
    openTensorBoard: (name) => execute(ids.tensorBoard, name ? { name } : {}),
    openModel: (name) => execute(ids.models, { name }),
    linkTo,
    insertCell: notebooks && ((text) => insertCell(app, notebooks, text)),
    notify: (text, kind = "info") => void notify(text, kind),
  };
}

/** A place on a run's page: a tab and, in the tab Logs, a log and a line number. */
export interface Place {
  tab?: string;
  job?: string;
  rank?: string;
  attempt?: number | null;
  line?: number | null;
}

const RUN_PARAMETER = "nbtrain-run";
const PLACE_KEYS = ["tab", "job", "rank", "attempt", "line"] as const;
const NUMBERS: readonly string[] = ["attempt", "line"];

function linkTo(names: string[], place: Place = {}): string {
  const query = new URLSearchParams(names.map((name) => [RUN_PARAMETER, name]));
  for (const key of PLACE_KEYS) if ((place[key] ?? "") !== "") query.set(`nbtrain-${key}`, String(place[key]));
  return new URL(`${PageConfig.getBaseUrl()}lab?${query}`, window.location.href).href;
}

/** Return the runs in the page's address, which linkTo() has made. */
export const linkedRuns = () => new URLSearchParams(window.location.search).getAll(RUN_PARAMETER);

/** Return the place in the page's address. */
export function linkedPlace(): Place {
  const query = new URLSearchParams(window.location.search), place: Record<string, string | number> = {};
  for (const key of PLACE_KEYS) {
    const value = query.get(`nbtrain-${key}`);
    if (value === null || (NUMBERS.includes(key) && !/^\d{1,12}$/.test(value))) continue;
    place[key] = NUMBERS.includes(key) ? Number(value) : value;
  }
  return place;
}

export function notify(text: string, kind: string, openRun?: () => void): void {
  const type = (["info", "success", "warning", "error"].includes(kind) ? kind : "info") as "info";
  const actions = openRun ? [{ label: "Open", callback: openRun }] : [];
  // The toast disappears, and the message stays in JupyterLab's list of notifications. Permanent toasts would pile up
  // over the buttons of a page that is open all day.
  Notification.emit(text, type, { autoClose: kind === "error" ? 30_000 : 8000, actions });
}

/**
 * Put `text` into a new cell below the active cell of the notebook that was used last, and show the cell. If the active
 * cell is an empty code cell, put the text there. If no notebook is open, create one.
 */
async function insertCell(app: JupyterFrontEnd, notebooks: INotebookTracker, text: string): Promise<void> {
  const panel = notebooks.currentWidget ?? (await newNotebook(app));
  await panel.revealed;
  app.shell.activateById(panel.id);
  const active = panel.content.activeCell?.model;
  if (active?.type !== "code" || active.sharedModel.getSource().trim()) NotebookActions.insertBelow(panel.content);
  panel.content.activeCell?.model.sharedModel.setSource(text);
  await panel.content.scrollToItem(panel.content.activeCellIndex);
}

async function newNotebook(app: JupyterFrontEnd): Promise<NotebookPanel> {
  const kernelName = app.serviceManager.kernelspecs.specs?.default;
  const panel = await app.commands.execute("notebook:create-new", { kernelName, activate: true });
  if (!panel) throw new Error("no notebook is open, and a new notebook could not be created.");
  await panel.context.ready;
  return panel;
}
