// TensorBoard in a notebook: a frame of the page that keeps it live (nbtrain/lab/server/tensorboard.html).

export default {
  async render({ model, el }) {
    const say = (text) => {
      const node = document.createElement("pre");
      node.style.cssText = "font:12px var(--jp-code-font-family,monospace);white-space:pre-wrap;margin:0";
      node.textContent = text;
      el.replaceChildren(node);
    };
    const config = document.getElementById("jupyter-config-data");
    const base = config && JSON.parse(config.textContent).baseUrl;
    if (!base) return say(model.get("help"));
    const root = `${base.replace(/\/*$/, "/")}nbtrain/`;
    const address = `${root}tensorboard/`;
    const name = model.get("name");
    try {
      const ask = (path) => fetch(root + path, { credentials: "same-origin", cache: "no-store" });
      const response = await ask(name ? `run/${name}?no_track_activity=1` : "tensorboard/");
      if (!response.ok) return say(model.get("help"));
      // A server with another output root has another TensorBoard, without this run.
      if (name && (await response.json()).run_id !== model.get("run_id")) return say(model.get("help"));
    } catch {
      return say(model.get("help"));
    }
    const frame = document.createElement("iframe");
    frame.title = "TensorBoard";
    frame.className = "nbtrain-tensorboard";
    const border = "border:1px solid var(--jp-border-color2,#d8dce1);border-radius:8px";
    frame.style.cssText = `width:100%;height:${model.get("height")}px;${border}`;
    frame.src = `${address}${name ? `?run=${encodeURIComponent(name)}` : ""}#timeseries`;
    el.replaceChildren(frame);
    // A removed frame must not continue to request points.
    return () => {
      frame.src = "about:blank";
    };
  },
};
