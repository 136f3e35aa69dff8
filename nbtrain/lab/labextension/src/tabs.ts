// The tabs of the main area, such as a run, the list of runs, and TensorBoard. Each tab has a stable id, so that it opens
// only once and is restored after a reload.

import type { ILayoutRestorer, JupyterFrontEnd } from "@jupyterlab/application";
import { IFrame, MainAreaWidget, WidgetTracker } from "@jupyterlab/apputils";
import { PageConfig } from "@jupyterlab/coreutils";
import type { LabIcon } from "@jupyterlab/ui-components";
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from "@lumino/coreutils";
import { SplitPanel, type Widget } from "@lumino/widgets";

export interface TabKind {
  command: string;
  namespace: string;
  icon: LabIcon;
  /** The tab's label. */
  label(args: ReadonlyJSONObject): string;
  /** The tab's tooltip, if it differs from the label. */
  caption?(args: ReadonlyJSONObject): string;
  /** The arguments that distinguish a tab from others of its kind, and restore it after a reload. */
  own(args: ReadonlyJSONObject): ReadonlyJSONObject;
  /** Create the tab's view. `id` is the id of the tab; a view calls `changed` to change the arguments of its tab. */
  content(args: ReadonlyJSONObject, id: string, changed: (args: ReadonlyJSONObject) => void): Widget;
}

export class Tabs {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly kind: TabKind,
  ) {
    this._tracker = new WidgetTracker<MainAreaWidget>({ namespace: kind.namespace });
  }

  restore(restorer: ILayoutRestorer): void {
    void restorer.restore(this._tracker, {
      command: this.kind.command,
      // With its id, a tab keeps its place in the layout even if its arguments have changed.
      args: (widget) => ({ ...this._args.get(widget), id: widget.id }),
      name: (widget) => widget.id,
    });
  }

  /** Bring the tab with these arguments to the front; open it if it does not exist. */
  open(args: ReadonlyJSONObject): MainAreaWidget {
    // The launcher adds its folder to the arguments.
    const own = this.kind.own(args);
    let widget = this._tracker.find((one) => wordOf(this._args.get(one)) === wordOf(own));
    if (!widget) {
      const id = typeof args.id === "string" ? args.id : this._freeId(own);
      const content = this.kind.content(own, id, (changed) => this._change(id, changed));
      widget = new MainAreaWidget({ content });
      widget.id = id;
      widget.title.icon = this.kind.icon;
      widget.title.closable = true;
      widget.toolbar.hide();
      this._describe(widget, own);
      void this._tracker.add(widget);
    }
    // The main area of Notebook 7 has room for one document only, so all other tabs go below it.
    const below = this.app.name === "Jupyter Notebook";
    if (!widget.isAttached) this.app.shell.add(widget, below ? "down" : "main", { mode: "tab-after" });
    this.app.shell.activateById(widget.id);
    if (below) giveHeight(widget);
    return widget;
  }

  /** Return a free id made of the arguments. The plain id may belong to a tab whose arguments have changed. */
  private _freeId(own: ReadonlyJSONObject): string {
    const wanted = [this.kind.namespace, ...Object.values(own).map(wordOf)].join("-");
    let id = wanted;
    for (let number = 2; this._tracker.find((one) => one.id === id); number += 1) id = `${wanted}-${number}`;
    return id;
  }

  private _change(id: string, args: ReadonlyJSONObject): void {
    const widget = this._tracker.find((one) => one.id === id);
    if (!widget) return;
    this._describe(widget, this.kind.own(args));
    void this._tracker.save(widget);
  }

  private _describe(widget: MainAreaWidget, own: ReadonlyJSONObject): void {
    this._args.set(widget, own);
    widget.title.label = this.kind.label(own);
    widget.title.caption = this.kind.caption?.(own) ?? widget.title.label;
  }

  private readonly _tracker: WidgetTracker<MainAreaWidget>;
  private readonly _args = new WeakMap<Widget, ReadonlyJSONObject>();
}

const wordOf = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

/** Return those of the entries `keys` of `args` that have a value. */
export function only(args: ReadonlyPartialJSONObject, ...keys: string[]): ReadonlyJSONObject {
  const given = keys.filter((key) => args[key] !== undefined && args[key] !== null && args[key] !== "");
  return Object.fromEntries(given.map((key) => [key, args[key]])) as ReadonlyJSONObject;
}

/** Give Notebook 7's area below the document a height. It opens without one. */
function giveHeight(widget: Widget): void {
  let around: Widget | null = widget;
  while (around && !(around instanceof SplitPanel)) around = around.parent;
  const [above, below] = around ? around.relativeSizes() : [1, 1];
  if (below < above / 4) around?.setRelativeSizes([2, 3]);
}

/** Return a frame with a live TensorBoard of one run or of all runs. It follows JupyterLab's theme. */
export function tensorBoardFrame(name: string): Widget {
  const page = name ? `nbtrain/tensorboard/?${new URLSearchParams({ run: name })}` : "nbtrain/tensorboard/";
  return pageFrame(page, name ? `TensorBoard of ${name}` : "TensorBoard of all runs");
}

/** Return a frame with the page that tries models: serving/page.html, behind jupyter-server-proxy. */
export function modelsFrame(name: string): Widget {
  const query = name ? `?${new URLSearchParams({ model: name })}` : "";
  return pageFrame(`nbtrain-models/${query}`, name ? `Try the model of ${name}` : "Try a model");
}

/** Return a frame with a page of this server. */
function pageFrame(page: string, title: string): Widget {
  const frame = new IFrame({
    sandbox: ["allow-scripts", "allow-same-origin", "allow-downloads", "allow-popups", "allow-forms"],
    referrerPolicy: "same-origin",
  });
  frame.addClass("nbtrain-TensorBoard");
  frame.url = PageConfig.getBaseUrl() + page;
  frame.node.querySelector("iframe")?.setAttribute("title", title);
  return frame;
}
