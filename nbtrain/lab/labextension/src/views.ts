// The views of lab/ui as widgets. A view is created when its widget is attached to the page, and ends with its widget.

import { Widget } from "@lumino/widgets";
import type { Message } from "@lumino/messaging";

import { mountCompare } from "../../ui/compare/compare.js";
import { mountForm } from "../../ui/form/form.js";
import { mountRun } from "../../ui/run/run.js";
import { mountRuns } from "../../ui/runs/runs.js";
import type { Server } from "../../ui/host/server.js";
import type { Host, Place } from "./host";

/** Draws a view into an element, and returns a function that ends it. */
export type Mount = (root: HTMLElement) => Mounted;

/** A function that ends a view; some also have a method that polls the server at once. */
export type Mounted = (() => void) & { look?(): void };

export class View extends Widget {
  constructor(kind: string, mounted: Mount) {
    super();
    this._mount = mounted;
    this.addClass("nbtrain-View");
    this.addClass(`nbtrain-${kind}View`);
  }

  /** Poll the server at once. */
  look(): void {
    this._end?.look?.();
  }

  dispose(): void {
    if (this.isDisposed) return;
    this._end?.();
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this._end) return;
    const root = document.createElement("div");
    this.node.append(root);
    this._end = this._mount(root);
  }

  private readonly _mount: Mount;
  private _end: Mounted | null = null;
}

/** Return the comparison; `changed` is called with the names when the user adds or removes a run. */
export const compareView = (server: Server, host: Host, names: string[], changed: (names: string[]) => void) =>
  new View("Compare", (root) => mountCompare(root, { server, host, names, changed }));

export const formView = (server: Server, host: Host, start: object, id: string) =>
  new View("Form", (root) => {
    root.classList.add("nbt-fills");
    return mountForm(root, { server, host, start, id });
  });

/** Return the list of runs; `compact` is its form for the sidebar. */
export const runsView = (server: Server, host: Host, compact: boolean) =>
  new View("Runs", (root) => {
    if (!compact) root.classList.add("nbt-fills");
    return mountRuns(root, { server, host, compact });
  });

/** Return the page of a run; `place` is what it shows first. */
export const runView = (server: Server, host: Host, name: string, place: Place = {}) =>
  new View("Run", (root) => {
    root.classList.add("nbt-fills");
    return mountRun(root, { server, host, name, place });
  });
