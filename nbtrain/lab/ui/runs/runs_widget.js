// nb.runs() in a notebook: the list of runs.js as an anywidget, and its replacement if JupyterLab cannot restore it.
//
//   default export   anywidget's render: the list of a RunTable widget
//   rescueRuns       shows the list instead of a widget that JupyterLab could not restore

import { notebookHost, ownKeys } from "../host/host.js";
import { standIn } from "../host/rescue.js";
import { mountRuns } from "./runs.js";
import { serverHere } from "../host/server.js";
import { element } from "../elements/dom.js";

function mountTable(root, id, model) {
  const server = serverHere();
  root.dataset.runs = id;
  return mountRuns(ownKeys(root), { server, host: notebookHost(server), model });
}

/** Return a model without a kernel, with the traits that were saved in the notebook. */
const keptModel = (traits) => ({ get: (name) => traits[name], on() {}, off() {}, send() {} });

export function rescueRuns(place) {
  const traits = JSON.parse(place.dataset.runs);
  const isMine = (node) => node.dataset.runs === traits.id;
  const model = keptModel({ ...traits, rows: [] });
  standIn(place, ".nbtrain-runs", isMine, (own) => mountTable(own, traits.id, model));
}

export default {
  render({ model, el }) {
    const root = element("div");
    el.append(root);
    return mountTable(root, model.get("table_id"), model);
  },
};
