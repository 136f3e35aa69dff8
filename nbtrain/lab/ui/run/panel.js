// The run panel in a notebook: the detail view of run.js as an anywidget, and its replacement if JupyterLab cannot
// restore it.
//
//   default export   anywidget's render: the panel of a RunPanel widget
//   mount            the panel in any element, with data from nbtrain's server extension
//   rescue           shows a panel instead of a widget that JupyterLab could not restore

import { notebookHost, ownKeys } from "../host/host.js";
import { standIn } from "../host/rescue.js";
import { mountRun } from "./run.js";
import { serverHere } from "../host/server.js";
import { element } from "../elements/dom.js";

/** Show the run `name` in `root`; `model` is the anywidget model or null. Returns a function that ends it. */
export function mount(root, { name, runId = "", snap = null, model = null, place = {} }) {
  const server = serverHere();
  return mountRun(ownKeys(root), { server, name, host: notebookHost(server), runId, snap, model, place });
}

/** Watch the widget next to `place`; if JupyterLab cannot restore it, show a panel that needs no kernel. */
export function rescue(place) {
  const name = place.dataset.run, runId = place.dataset.runId || "";
  const isMine = (node) => node.dataset.run === name;
  standIn(place, ".nbtrain-panel", isMine, (own) => mount(own, { name, runId }));
}

export default {
  render({ model, el }) {
    const root = element("div");
    el.append(root);
    const [name, runId, snap] = ["name", "run_id", "snap"].map((trait) => model.get(trait));
    return mount(root, { name, runId, snap, model });
  },
};
