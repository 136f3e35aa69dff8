// The run panel in a notebook: the detail view of run.js as an anywidget, and its rescue.
//
//   default export   anywidget's render: the panel of a RunPanel widget
//   mount            the panel in any element, fed by the server half of nbtrain
//   rescue           shows a panel in place of a widget that JupyterLab could not revive

import { notebookHost } from "./host.js";
import { mountRun } from "./run.js";
import { serverHere } from "./server.js";
import { element } from "./words.js";

/** Keep `root` showing the run `name`; `model` is the anywidget model or null. Returns what ends it. */
export function mount(root, { name, runId = "", snap = null, model = null, tab = "" }) {
  const server = serverHere();
  return mountRun(root, { server, name, host: notebookHost(server), runId, snap, model, tab });
}

/** Watch the widget beside `place`; if JupyterLab cannot revive it, show a panel that needs no kernel. */
export function rescue(place) {
  const name = place.dataset.run, runId = place.dataset.runId || "";
  let end = null, own = null, hidden = null;

  function look() {
    const area = place.closest(".jp-OutputArea") || place.parentElement.parentElement;
    if (place.isConnected && area) {
      const panels = [...area.querySelectorAll(".nbtrain-panel")];
      const living = panels.some((node) => node !== own && node.dataset.run === name);
      if (living && own) {
        end();
        own.remove();
        own = end = null;
      } else if (!living && !own) {
        hidden = [...area.querySelectorAll(".jp-OutputArea-output")].find((node) =>
          /^(Loading widget|Error displaying widget|Error creating widget)/.test(node.textContent.trim()),
        );
        if (hidden) {
          own = element("div");
          place.append(own);
          end = mount(own, { name, runId });
        }
      }
      if (hidden) hidden.style.display = own ? "none" : "";
      place.style.display = own ? "" : "none";
    }
    setTimeout(look, place.isConnected ? 700 : 5000);
  }
  setTimeout(look, 300);
}

export default {
  render({ model, el }) {
    const root = element("div");
    el.append(root);
    const [name, runId, snap] = ["name", "run_id", "snap"].map((trait) => model.get(trait));
    return mount(root, { name, runId, snap, model });
  },
};
