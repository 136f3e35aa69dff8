// The launch form in a notebook: form.js as an anywidget, and its replacement if JupyterLab cannot restore it.
//
//   default export   anywidget's render: the form of a LaunchForm widget
//   rescueForm       shows the form instead of a widget that JupyterLab could not restore

import { mountForm } from "./form.js";
import { notebookHost, ownKeys } from "../host/host.js";
import { standIn } from "../host/rescue.js";
import { serverHere } from "../host/server.js";
import { element } from "../elements/dom.js";

function mountHere(root, options) {
  const server = serverHere();
  root.dataset.form = options.id;
  return mountForm(ownKeys(root), { server, host: notebookHost(server), below: true, ...options });
}

export function rescueForm(place) {
  const { id, start } = JSON.parse(place.dataset.form);
  const isMine = (node) => node.dataset.form === id;
  standIn(place, ".nbtrain-form", isMine, (own, isGone) => mountHere(own, { id, start, isGone }));
}

export default {
  render({ model, el }) {
    const root = element("div");
    el.append(root);
    return mountHere(root, { id: model.get("form_id"), start: model.get("start"), model });
  },
};
