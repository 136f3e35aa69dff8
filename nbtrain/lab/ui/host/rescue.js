// Replaces a widget that JupyterLab could not restore: "Loading widget..." while a cell runs after a reload,
// "model not found" after the kernel has ended.

import { element } from "../elements/dom.js";

const FAILED = /^(Loading widget|Error displaying widget|Error creating widget)/;

/**
 * Watch the output next to `place`. While it has no live view, let `mountOwn(node, isGone)` fill a node of ours.
 * `isGone()` returns true if the widget is lost, and false if it is only unreachable for now.
 *
 * views    selector of live views; `isMine(node)` returns whether a view is the expected one
 */
export function standIn(place, views, isMine, mountOwn) {
  let end = null, own = null, hidden = null;
  const failed = () => {
    const area = place.closest(".jp-OutputArea") || place.parentElement.parentElement;
    return [...area.querySelectorAll(".jp-OutputArea-output")].filter((node) =>
      FAILED.test(node.textContent.trim()),
    );
  };
  const isGone = () => place.isConnected && failed().some((node) => !/^\s*Loading/.test(node.textContent));

  function look() {
    const area = place.closest(".jp-OutputArea") || place.parentElement.parentElement;
    if (place.isConnected && area) {
      const living = [...area.querySelectorAll(views)].some((node) => node !== own && isMine(node));
      if (living && own) {
        end();
        own.remove();
        own = end = null;
      } else if (!living && !own) {
        [hidden] = failed();
        if (hidden) {
          own = element("div");
          place.append(own);
          end = mountOwn(own, isGone);
        }
      }
      if (hidden) hidden.style.display = own ? "none" : "";
      place.style.display = own ? "" : "none";
    }
    setTimeout(look, place.isConnected ? 700 : 5000);
  }
  setTimeout(look, 300);
}
