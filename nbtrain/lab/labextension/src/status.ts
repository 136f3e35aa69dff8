// The item in the status bar with the number of active runs. A click shows the runs.

import type { IStatusBar } from "@jupyterlab/statusbar";
import { Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";

import type { RunsWatch } from "./watch";

export class Status {
  constructor(
    private readonly watch: RunsWatch,
    show: () => void,
  ) {
    const button = document.createElement("button");
    button.addEventListener("click", show);
    this._item.addClass("nbtrain-Status");
    this._item.node.append(button);
    watch.changed.connect(() => {
      const { active } = watch;
      const words = active.length === 1 ? "1 run" : `${active.length} runs`;
      button.textContent = `nbtrain: ${words}`;
      button.title = active.map((run) => `${run.name}: ${run.pill[0]}`).join("\n");
      button.setAttribute("aria-label", `nbtrain: ${words} active. Show the runs.`);
      this._changed.emit();
    });
  }

  /** Whether the settings enable the item. */
  set wanted(value: boolean) {
    this._wanted = value;
    this._changed.emit();
  }

  addTo(bar: IStatusBar): void {
    bar.registerStatusItem("nbtrain:status", {
      item: this._item,
      align: "left",
      rank: 90,
      // With a lower priority, the item would stay hidden after the window was narrow once.
      priority: 1,
      isActive: () => this._wanted && this.watch.active.length > 0,
      activeStateChanged: this._changed,
    });
  }

  private _wanted = true;
  private readonly _item = new Widget();
  private readonly _changed = new Signal<this, void>(this);
}
