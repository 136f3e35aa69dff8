// What only the surroundings of a view can do. A null is not to be had here: its button is left out.
//
//   openRun(name), openRuns(), openCompare(names), openForm({yaml, overrides, clone}),
//   openTensorBoard(name), insertCell(text), notify(text, kind)

/** A host of which `able` are the abilities. */
export const makeHost = (able = {}) => ({
  openRun: null,
  openRuns: null,
  openCompare: null,
  openForm: null,
  openTensorBoard: null,
  insertCell: null,
  notify: null,
  ...able,
});

/** What is left of a host for runs that its server does not have: that server has others of their names. */
export const hostElsewhere = ({ insertCell, notify }) => makeHost({ insertCell, notify });

/**
 * In a notebook, keys are for the view that has the focus. Without this JupyterLab would take arrow keys and
 * letters for its own, by its shortcuts and by the notebook: they go from cell to cell, and delete cells.
 */
export function ownKeys(root) {
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());
  return root;
}

/** In a notebook: TensorBoard opens in a browser tab; with nbtrain's extension, that does the rest. */
export function notebookHost(server) {
  const lab = window.nbtrainHost || {};
  const openTensorBoard = server
    ? (name) => window.open(server.url(`tensorboard/?run=${encodeURIComponent(name)}`), "_blank")
    : null;
  return makeHost({ openTensorBoard, ...lab });
}
