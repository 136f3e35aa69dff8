// The run panel: draws snapshots of nbtrain.monitor.run_view. Plain DOM and SVG, no library.
//
//   default export   anywidget's render: the panel of a RunPanel widget
//   mount            the panel in any element, fed by the server half of nbtrain
//   rescue           shows a panel in place of a widget that JupyterLab could not revive
//
// Snapshots come by REST from <base_url>nbtrain/, never through comms, which do not arrive while a cell runs.
// Without a server half, the widget's trait `snap` is drawn instead.

import { Server, pageConfig } from "./server.js";
import { Panel } from "./view.js";
import { element } from "./words.js";

const POLL_MS = 1000;
const POLL_FINAL_MS = 5000;

/** Keep `root` showing the run `name`; `model` is the anywidget model or null. Returns what ends it. */
export function mount(root, { name, runId = "", snap = null, model = null }) {
  const config = pageConfig();
  let server = config && new Server(config);
  let served = false, ended = false, visible = false, timer = null, stopAsked = false;

  async function stop() {
    panel.stop.disabled = true;
    stopAsked = true;
    try {
      if (served) await server.call(`run/${name}/stop`, "POST");
      else if (model) model.send({ kind: "stop" });
      panel.say(
        served
          ? "Asked to stop: the ranks save a checkpoint at the next step boundary and leave."
          : "Asked the kernel to stop the job; it hears this when its running cell has ended.",
      );
    } catch (error) {
      panel.stop.disabled = false;
      stopAsked = false;
      panel.say(`The job could not be stopped: ${error.message}`, "error");
    }
  }

  const fetchLog = (rank) => server.call(`run/${name}/log?rank=${encodeURIComponent(rank)}`);
  const panel = new Panel(root, stop, null);
  root.dataset.run = name;

  function show(value) {
    if (!value || !value.shown) return;
    if (!value.active && stopAsked) {
      stopAsked = false;
      panel.say("");
    }
    panel.draw(value);
  }

  function setServed(value) {
    if (served === value) return;
    served = value;
    panel.fetchLog = value ? fetchLog : null;
    if (model) {
      // The kernel stops sending snapshots while the server answers.
      model.set("served", value);
      model.save_changes();
    }
  }

  async function poll() {
    timer = null;
    if (ended || !root.isConnected || document.hidden || !visible || !server) return;
    let wait = POLL_MS;
    try {
      const value = await server.call(`run/${name}`);
      if (runId && value.run_id && value.run_id !== runId) {
        server = null;
        setServed(false);
        panel.say("This Jupyter server shows another output folder: the figures come from the kernel.");
      } else {
        if (!served && !stopAsked) panel.say("");
        setServed(true);
        show(value);
        if (!value.active) wait = POLL_FINAL_MS;
      }
    } catch (error) {
      setServed(false);
      wait = POLL_FINAL_MS;
      if (error.status === 404 && model) {
        panel.say("No server half of nbtrain here: the figures come from the kernel.");
      } else {
        panel.say(`The Jupyter server does not answer (${error.message}); trying again.`, "error");
      }
    }
    if (!ended && server && timer === null) timer = setTimeout(poll, wait);
  }

  function wake() {
    if (!ended && timer === null && visible && !document.hidden) timer = setTimeout(poll, 0);
  }

  const onSnap = () => !served && show(model.get("snap"));
  const watcher = new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    wake();
  });
  watcher.observe(root);
  document.addEventListener("visibilitychange", wake);
  if (model) model.on("change:snap", onSnap);
  if (!server && model)
    panel.say("No Jupyter server is in reach of this page: the figures come from the kernel.");
  show(snap);

  return () => {
    ended = true;
    clearTimeout(timer);
    watcher.disconnect();
    document.removeEventListener("visibilitychange", wake);
    if (model) model.off("change:snap", onSnap);
    panel.dispose();
  };
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
