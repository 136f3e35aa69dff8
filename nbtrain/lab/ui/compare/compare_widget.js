// The comparison of runs as an anywidget.
//
//   default export    anywidget's render
//   mountComparison   the comparison in any element, with data from nbtrain's server extension

import { mountCompare } from "./compare.js";
import { hostElsewhere, makeHost, notebookHost, ownKeys } from "../host/host.js";
import { serverHere } from "../host/server.js";
import { element } from "../elements/dom.js";

export function mountComparison(root, { names, host = makeHost(), changed }) {
  return mountCompare(root, { server: serverHere(), names, host, changed });
}

export default {
  async render({ model, el }) {
    const root = element("div");
    el.append(root);
    let server = serverHere();
    // A server with another output directory does not have these runs.
    if (server) {
      const there = await server.call("runs").catch(() => null);
      if (!there || there.run_root_id !== model.get("root_id")) server = null;
    }
    const [names, value] = [model.get("names"), model.get("value")];
    const host = server ? notebookHost(server) : hostElsewhere(notebookHost(null));
    return mountCompare(ownKeys(root), { server, names, host, value, published: model.get("published") });
  },
};
