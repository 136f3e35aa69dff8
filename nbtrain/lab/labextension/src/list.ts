// A plain list of the runs: open one, or stop one that is active.

import type { Host } from "./host";
import type { Mount } from "./views";
import type { RunEntry, RunsWatch } from "./watch";

export const runList =
  (watch: RunsWatch, host: Host, stop: (name: string) => void): Mount =>
  (root) => {
    const list = make("ul", "nbtrain-List");
    const word = make("p", "nbtrain-Word");
    word.setAttribute("role", "status");
    root.append(word, list);
    let drawn = "";
    const draw = () => {
      word.textContent = watch.problem || (watch.runs.length ? "" : watch.looked ? "No run yet." : "Looking...");
      // The button in use keeps its focus while nothing has changed.
      const state = JSON.stringify(watch.runs);
      if (state !== drawn) list.replaceChildren(...watch.runs.map((run) => row(run, host, stop)));
      drawn = state;
    };
    draw();
    watch.changed.connect(draw);
    return () => void watch.changed.disconnect(draw);
  };

function row(run: RunEntry, host: Host, stop: (name: string) => void): HTMLElement {
  const item = make("li");
  const open = make("button", "nbtrain-Open");
  open.title = run.cause ?? "";
  const steps = run.active && run.max_steps ? ` ${run.step ?? 0} / ${run.max_steps}` : "";
  open.append(make("span", "nbtrain-Name", run.name), make("span", "nbtrain-State", run.state + steps));
  open.addEventListener("click", () => host.openRun(run.name));
  item.dataset.run = run.name;
  item.dataset.state = run.state;
  item.append(open);
  if (run.active) {
    const button = make("button", "nbtrain-Stop", "Stop");
    button.setAttribute("aria-label", `Stop ${run.name}`);
    button.title = "Save a checkpoint and end the job; it can be resumed.";
    button.addEventListener("click", () => stop(run.name));
    item.append(button);
  }
  return item;
}

function make(tag: string, className = "", text = ""): HTMLElement {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}
