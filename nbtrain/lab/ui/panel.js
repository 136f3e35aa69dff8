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
// The pages of a job: its resources are measured every two seconds; rarely while none of them is in sight.
const KEPT_MS = 3000;
const KEPT_HIDDEN_MS = 30000;

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

  const fetchLog = (rank, attempt, job) => {
    const words = new URLSearchParams({ rank });
    if (attempt !== null) words.set("attempt", attempt);
    if (job) words.set("job", job);
    return server.call(`run/${name}/log?${words}`);
  };
  const panel = new Panel(root, stop, null, () => keep(true));
  root.dataset.run = name;

  function show(value) {
    if (!value || !value.shown) return;
    if (!value.active && stopAsked) {
      stopAsked = false;
      panel.say("");
    }
    panel.draw(value);
    keep();
  }

  let keptAt = 0, keptState = "", polled = !server;

  /** Ask for the pages of the job when due: by REST, else from the kernel, which answers between cells. */
  async function keep(now = false) {
    const snapped = panel.snap;
    if (!snapped || !snapped.job || !polled) return;
    const state = `${snapped.state} ${snapped.job.job_id}`, gone = Date.now() - keptAt;
    const due = snapped.active && gone > (panel.showsKept() ? KEPT_MS : KEPT_HIDDEN_MS);
    if (!now && !due && keptState === state) return;
    [keptAt, keptState] = [Date.now(), state];
    const job = panel.chosenJob;
    if (!served && model) return model.send({ kind: "job", job: job || null });
    if (!server) return;
    try {
      panel.take(await server.call(`run/${name}/job${job ? `?job=${job}` : ""}`));
    } catch (error) {
      panel.say(`The pages of the job could not be read: ${error.message}`, "error");
    }
  }

  const onMessage = (message) => {
    if (message.kind !== "job") return;
    if (message.value) panel.take(message.value);
    else panel.say(message.error, "error");
  };

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
        polled = true;
        setServed(false);
        panel.say("This Jupyter server shows another output folder: the figures come from the kernel.");
      } else {
        polled = true;
        if (!served && !stopAsked) panel.say("");
        setServed(true);
        show(value);
        if (!value.active) wait = POLL_FINAL_MS;
      }
    } catch (error) {
      polled = true;
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
  if (model) {
    model.on("change:snap", onSnap);
    model.on("msg:custom", onMessage);
  }
  if (!server && model)
    panel.say("No Jupyter server is in reach of this page: the figures come from the kernel.");
  show(snap);

  return () => {
    ended = true;
    clearTimeout(timer);
    watcher.disconnect();
    document.removeEventListener("visibilitychange", wake);
    if (model) {
      model.off("change:snap", onSnap);
      model.off("msg:custom", onMessage);
    }
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
