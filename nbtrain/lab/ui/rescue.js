// Stands in for a widget that JupyterLab could not revive: "Loading widget..." while a cell runs after a
// reload, "model not found" after a kernel's end.

import { element } from "./words.js";

const FAILED = /^(Loading widget|Error displaying widget|Error creating widget)/;

/**
 * Watch the output beside `place`; while no living view is there, `mountOwn(node)` fills a node of ours.
 *
 * views    the selector of living views; `isMine(node)` whether one is the view that is meant
 */
export function standIn(place, views, isMine, mountOwn) {
  let end = null, own = null, hidden = null;

  function look() {
    const area = place.closest(".jp-OutputArea") || place.parentElement.parentElement;
    if (place.isConnected && area) {
      const living = [...area.querySelectorAll(views)].some((node) => node !== own && isMine(node));
      if (living && own) {
        end();
        own.remove();
        own = end = null;
      } else if (!living && !own) {
        hidden = [...area.querySelectorAll(".jp-OutputArea-output")].find((node) =>
          FAILED.test(node.textContent.trim()),
        );
        if (hidden) {
          own = element("div");
          place.append(own);
          end = mountOwn(own);
        }
      }
      if (hidden) hidden.style.display = own ? "none" : "";
      place.style.display = own ? "" : "none";
    }
    setTimeout(look, place.isConnected ? 700 : 5000);
  }
  setTimeout(look, 300);
}
