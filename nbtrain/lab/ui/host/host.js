// Actions that only the page around a view can offer. An action that is null is not available, and its button
// is not shown.
//
//   openRun(name), openRuns(), openCompare(names), openForm({yaml, overrides, clone}),
//   openTensorBoard(name), openModel(name), linkTo(names, place), insertCell(text), notify(text, kind)

/** Return a host with the actions `able`; all other actions are null. */
export const makeHost = (able = {}) => ({
  openRun: null,
  openRuns: null,
  openCompare: null,
  openForm: null,
  openTensorBoard: null,
  openModel: null,
  linkTo: null,
  insertCell: null,
  notify: null,
  ...able,
});

/** Return the actions for runs that the host's server does not have. It may have other runs with the same names. */
export const hostElsewhere = ({ insertCell, notify }) => makeHost({ insertCell, notify });

/**
 * Keep keys in the view that has the focus. Without this, JupyterLab would treat arrow keys and letters as
 * shortcuts of the notebook, which move between cells and delete cells.
 */
export function ownKeys(root) {
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());
  return root;
}

/** Return the host in a notebook. TensorBoard opens in a browser tab; nbtrain's extension adds the other actions. */
export function notebookHost(server) {
  const lab = window.nbtrainHost || {};
  const openTensorBoard = server
    ? (name) => window.open(server.url(`tensorboard/?run=${encodeURIComponent(name)}`), "_blank")
    : null;
  return makeHost({ openTensorBoard, ...lab });
}
