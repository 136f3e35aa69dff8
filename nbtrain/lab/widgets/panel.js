// The run panel: draws snapshots of nbtrain.monitor.run_view. Plain DOM and SVG, no library.
//
//   default export   anywidget's render: the panel of a RunPanel widget
//   mount            the panel in any element, fed by the server half of nbtrain
//   rescue           puts a panel where JupyterLab could not revive a widget
//
// Numbers come by REST from <base_url>nbtrain/, never through comms: those do not arrive while a cell runs.
// Where there is no server half, the widget's trait `snap` is drawn instead.

const POLL_MS = 1000;
const POLL_FINAL_MS = 5000;
const STYLE_ID = "nbtrain-panel-style";

const CSS = `
.nbtrain-panel{--nbt-fg:var(--jp-ui-font-color1,#1f2328);--nbt-dim:var(--jp-ui-font-color2,#6b7280);
 --nbt-line:var(--jp-border-color2,#d8dce1);--nbt-soft:var(--jp-layout-color2,#f3f4f6);--nbt-bg:var(--jp-layout-color1,#fff);
 --nbt-a:var(--jp-brand-color1,#1976d2);--nbt-b:var(--jp-warn-color1,#e8710a);--nbt-good:var(--jp-success-color1,#2e9e4f);
 --nbt-bad:var(--jp-error-color1,#d32f2f);--nbt-mono:var(--jp-code-font-family,ui-monospace,monospace);
 box-sizing:border-box;width:100%;max-width:1120px;container-type:inline-size;color:var(--nbt-fg);background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:8px;font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);
 font-variant-numeric:tabular-nums;overflow:hidden}
.nbtrain-panel *{box-sizing:border-box}
.nbtrain-panel .nbt-head{display:flex;align-items:center;gap:10px;padding:10px 14px 8px}
.nbtrain-panel .nbt-light{width:10px;height:10px;border-radius:50%;background:var(--nbt-dim);flex:none}
.nbtrain-panel[data-state=RUNNING] .nbt-light{background:var(--nbt-good);animation:nbt-pulse 2s infinite}
.nbtrain-panel[data-state=SUCCEEDED] .nbt-light{background:var(--nbt-good)}
.nbtrain-panel[data-state=QUEUED] .nbt-light,.nbtrain-panel[data-state=STARTING] .nbt-light,
.nbtrain-panel[data-state=RESTARTING] .nbt-light{background:var(--nbt-b);animation:nbt-pulse 1s infinite}
.nbtrain-panel[data-state=FAILED] .nbt-light,.nbtrain-panel[data-state=LOST] .nbt-light{background:var(--nbt-bad)}
@keyframes nbt-pulse{50%{opacity:.35}}
@media(prefers-reduced-motion:reduce){.nbtrain-panel .nbt-light{animation:none!important}}
.nbtrain-panel .nbt-name{font-weight:600;font-size:15px}
.nbtrain-panel .nbt-state{font-weight:600;font-size:12px}
.nbtrain-panel .nbt-sub{color:var(--nbt-dim);font-size:12px;flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.nbtrain-panel button{font:inherit;font-size:12px;color:var(--nbt-fg);background:transparent;border:1px solid var(--nbt-line);
 border-radius:5px;padding:2px 10px;cursor:pointer}
.nbtrain-panel button:hover:not(:disabled){background:var(--nbt-soft)}
.nbtrain-panel button:disabled{opacity:.45;cursor:default}
.nbtrain-panel .nbt-stop{color:var(--nbt-bad);border-color:currentColor}
.nbtrain-panel .nbt-note{padding:0 14px 8px;font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-note.nbt-error{color:var(--nbt-bad)}
.nbtrain-panel .nbt-note.nbt-alert{color:var(--nbt-b)}
.nbtrain-panel .nbt-note:empty{display:none}
.nbtrain-panel .nbt-bar{height:6px;margin:0 14px;border-radius:3px;background:var(--nbt-soft);overflow:hidden}
.nbtrain-panel .nbt-fill{height:100%;width:0;border-radius:3px;background:var(--nbt-a);transition:width .6s}
.nbtrain-panel[data-state=SUCCEEDED] .nbt-fill{background:var(--nbt-good)}
.nbtrain-panel[data-state=FAILED] .nbt-fill,.nbtrain-panel[data-state=LOST] .nbt-fill{background:var(--nbt-bad)}
.nbtrain-panel[data-state=CANCELLED] .nbt-fill{background:var(--nbt-dim)}
.nbtrain-panel .nbt-steps{display:flex;flex-wrap:wrap;gap:2px 18px;padding:5px 14px 10px;font-size:12px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-steps b{color:var(--nbt-fg);font-weight:600}
.nbtrain-panel .nbt-steps .nbt-eta{margin-left:auto}
.nbtrain-panel .nbt-tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(126px,1fr));border-top:1px solid var(--nbt-line);overflow:hidden}
.nbtrain-panel .nbt-tile{padding:7px 14px 8px;min-width:0;margin:0 -1px -1px 0;border:solid var(--nbt-line);border-width:0 1px 1px 0}
.nbtrain-panel .nbt-tile span{display:block;font-size:11px;color:var(--nbt-dim);white-space:nowrap}
.nbtrain-panel .nbt-tile strong{font-size:16px;font-weight:600;white-space:nowrap}
.nbtrain-panel .nbt-tile small{font-size:11px;color:var(--nbt-dim);margin-left:3px;font-weight:400}
.nbtrain-panel .nbt-charts{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);gap:1px;background:var(--nbt-line);
 position:relative;border-top:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-chart{background:var(--nbt-bg);padding:8px 10px 4px 14px;min-width:0;position:relative}
.nbtrain-panel .nbt-chart:first-child{grid-row:span 2}
.nbtrain-panel .nbt-chart header{display:flex;gap:12px;font-size:11px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-chart header i{font-style:normal}
.nbtrain-panel .nbt-chart header i::before{content:"";display:inline-block;width:10px;height:2px;margin-right:5px;vertical-align:middle;background:var(--c)}
.nbtrain-panel .nbt-chart header output{margin-left:auto;color:var(--nbt-fg)}
.nbtrain-panel svg{display:block;width:100%;overflow:visible}
.nbtrain-panel svg text{fill:var(--nbt-dim);font-size:10px;font-family:inherit}
.nbtrain-panel .nbt-grid{stroke:var(--nbt-line);stroke-width:1;opacity:.7}
.nbtrain-panel .nbt-tabs{display:flex;gap:2px;align-items:center;padding:6px 10px 0;border-top:1px solid var(--nbt-line)}
.nbtrain-panel .nbt-tabs button{border:0;border-radius:0;border-bottom:2px solid transparent;padding:3px 8px;color:var(--nbt-dim)}
.nbtrain-panel .nbt-tabs button[aria-selected=true]{color:var(--nbt-fg);border-bottom-color:var(--nbt-a)}
.nbtrain-panel .nbt-tabs select{margin-left:auto;font:inherit;font-size:12px;color:var(--nbt-fg);background:var(--nbt-bg);
 border:1px solid var(--nbt-line);border-radius:4px}
.nbtrain-panel .nbt-page{height:172px;overflow:auto;padding:6px 14px 10px;border-top:1px solid var(--nbt-line)}
.nbtrain-panel pre{margin:0;font:11.5px/1.5 var(--nbt-mono);color:var(--nbt-fg);background:transparent;white-space:pre}
.nbtrain-panel table{border-collapse:collapse;width:100%;font-size:12px;margin:0;table-layout:auto}
.nbtrain-panel th,.nbtrain-panel td{text-align:left;padding:2px 12px 2px 0;vertical-align:top;background:transparent;color:var(--nbt-fg);white-space:nowrap;border:0}
.nbtrain-panel th{color:var(--nbt-dim);font-weight:500;font-size:11px}
.nbtrain-panel td.nbt-wide{white-space:normal;width:100%}
.nbtrain-panel tr[data-kind=alert] td{color:var(--nbt-b)}
.nbtrain-panel tr[data-kind=error] td,.nbtrain-panel tr[data-kind=stale] td{color:var(--nbt-bad)}
@container (max-width:620px){.nbtrain-panel .nbt-charts{grid-template-columns:minmax(0,1fr)}.nbtrain-panel .nbt-chart:first-child{grid-row:auto}}
`;

// --- the server half ---------------------------------------------------------------------------------------

function pageConfig() {
  const node = document.getElementById("jupyter-config-data");
  if (node) {
    try {
      const config = JSON.parse(node.textContent);
      if (config.baseUrl) return { base: config.baseUrl, token: config.token || "" };
    } catch (error) {
      console.warn("nbtrain: the page's configuration is not JSON", error);
    }
  }
  const base = document.body && document.body.dataset.baseUrl;
  return base ? { base, token: document.body.dataset.jupyterApiToken || "" } : null;
}

function cookie(name) {
  const found = document.cookie.split("; ").find((part) => part.startsWith(name + "="));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}

class Server {
  constructor(config) {
    this.base = config.base.replace(/\/*$/, "/") + "nbtrain/";
    this.token = config.token;
  }

  async call(path, method = "GET") {
    const headers = {};
    if (this.token) headers.Authorization = `token ${this.token}`;
    if (method !== "GET") headers["X-XSRFToken"] = cookie("_xsrf");
    // Looking at a panel is no activity: a forgotten tab must not keep an idle server alive.
    const mark = path.includes("?") ? "&" : "?";
    const response = await fetch(`${this.base}${path}${mark}no_track_activity=1`, {
      method,
      headers,
      credentials: "same-origin",
      cache: "no-store",
    });
    const text = await response.text();
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      /* a page that is no JSON: told apart below by its status */
    }
    if (!response.ok || value === null) {
      const failure = new Error((value && (value.message || value.reason)) || `HTTP ${response.status}`);
      failure.status = response.status;
      throw failure;
    }
    return value;
  }
}

// --- words and numbers -------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined;

function si(value, digits = 1) {
  for (const [size, mark] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return (value / size).toFixed(digits) + mark;
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

function bytes(value) {
  for (const [size, mark] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= size) return [(value / size).toFixed(value / size < 10 ? 2 : 1), mark];
  return [String(Math.round(value)), "B"];
}

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
const plain = (line) => line.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (known(text)) node.textContent = text;
  return node;
}

// --- charts ------------------------------------------------------------------------------------------------

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (known(text)) node.textContent = text;
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || power * 10;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

class Chart {
  constructor(title, lines, format, height) {
    this.lines = lines;
    this.format = format;
    this.height = height;
    this.node = element("div", "nbt-chart");
    this.header = element("header");
    for (const line of lines) {
      const mark = element("i", "", line.label || title);
      mark.style.setProperty("--c", line.color);
      this.header.append(mark);
    }
    this.readout = element("output");
    this.header.append(this.readout);
    this.picture = svg("svg", { height, role: "img", "aria-label": title });
    this.node.append(this.header, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.draw(this.data);
    });
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    this.hovered = (event.clientX - box.left - this.left) / Math.max(1, box.width - this.left - 8);
    this.draw(this.data);
  }

  draw(data) {
    this.data = data;
    const width = this.picture.clientWidth || this.node.clientWidth - 24;
    if (!data || width < 40) return;
    const left = (this.left = 46), right = 8, top = 8, bottom = 18, height = this.height;
    const curves = this.lines.map((line) => data[line.name] || { steps: [], values: [] });
    const xs = curves.flatMap((curve) => curve.steps);
    const ys = curves.flatMap((curve) => curve.values).filter(known);
    const parts = [];
    if (!ys.length) {
      parts.push(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no points yet"));
      this.readout.textContent = "";
      this.picture.replaceChildren(...parts);
      return;
    }
    let x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys);
    if (x0 === x1) x1 = x0 + 1;
    const margin = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
    if (this.lines[0].zero) y0 = Math.min(0, y0);
    else y0 -= margin;
    y1 += margin;
    const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const Y = (y) => top + ((y1 - y) / (y1 - y0)) * (height - top - bottom);
    for (const y of ticks(y0, y1, height > 120 ? 5 : 2)) {
      parts.push(svg("line", { class: "nbt-grid", x1: left, x2: width - right, y1: Y(y), y2: Y(y) }));
      parts.push(svg("text", { x: left - 6, y: Y(y) + 3, "text-anchor": "end" }, this.format(y, y1 - y0)));
    }
    for (const x of ticks(x0, x1, width > 400 ? 6 : 4)) {
      const anchor = X(x) > width - 30 ? "end" : "middle";
      parts.push(svg("text", { x: X(x), y: height - 4, "text-anchor": anchor }, si(x, x >= 1e4 ? 0 : 1)));
    }
    curves.forEach((curve, at) => {
      const line = this.lines[at];
      const points = curve.steps
        .map((step, i) => (known(curve.values[i]) ? [X(step), Y(curve.values[i])] : null))
        .filter(known);
      const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
      const style = `fill:none;stroke:${line.color};stroke-width:1.6;stroke-linejoin:round`;
      parts.push(svg("polyline", { points: path, style }));
      if (line.dots && points.length < 80)
        for (const [x, y] of points) parts.push(svg("circle", { cx: x, cy: y, r: 2.4, style: `fill:${line.color}` }));
    });
    this.readout.textContent = "";
    if (known(this.hovered) && this.hovered >= 0 && this.hovered <= 1) {
      const wanted = x0 + this.hovered * (x1 - x0);
      const said = [];
      let step = null;
      curves.forEach((curve, at) => {
        if (!curve.steps.length) return;
        const near = nearest(curve.steps, wanted);
        if (at === 0) step = curve.steps[near];
        if (!known(curve.values[near])) return;
        said.push(this.format(curve.values[near]));
        parts.push(
          svg("circle", {
            cx: X(curve.steps[near]),
            cy: Y(curve.values[near]),
            r: 3.2,
            style: `fill:${this.lines[at].color};stroke:var(--nbt-bg)`,
          }),
        );
      });
      const name = this.lines[0].axis || "step";
      this.readout.textContent = `${known(step) ? `${name} ${whole(step)}  ` : ""}${said.join(" / ")}`;
    }
    this.picture.replaceChildren(...parts);
  }
}

function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
}

// --- the panel ---------------------------------------------------------------------------------------------

class Panel {
  constructor(root, stop, fetchLog) {
    this.root = root;
    this.fetchLog = fetchLog;
    if (!document.getElementById(STYLE_ID)) {
      const style = element("style");
      style.id = STYLE_ID;
      style.textContent = CSS;
      document.head.append(style);
    }
    root.classList.add("nbtrain-panel");
    const head = element("div", "nbt-head");
    this.name = element("span", "nbt-name");
    this.state = element("span", "nbt-state");
    this.sub = element("span", "nbt-sub");
    this.stop = element("button", "nbt-stop", "Stop");
    this.stop.title = "Save a checkpoint and end the job; it can be resumed.";
    this.stop.addEventListener("click", stop);
    head.append(element("span", "nbt-light"), this.name, this.state, this.sub, this.stop);
    this.note = element("div", "nbt-note");
    this.message = element("div", "nbt-note");
    this.bar = element("div", "nbt-bar");
    this.fill = element("div", "nbt-fill");
    this.bar.append(this.fill);
    this.bar.setAttribute("role", "progressbar");
    this.steps = element("div", "nbt-steps");
    this.tiles = element("div", "nbt-tiles");
    const charts = element("div", "nbt-charts");
    const a = "var(--nbt-a)", b = "var(--nbt-b)";
    const loss = [
      { name: "loss", label: "training loss (nats)", color: a },
      { name: "validation_loss", label: "validation loss", color: b, dots: true },
    ];
    const fixed = (value, span) => value.toFixed(span === undefined ? 4 : span < 0.2 ? 3 : span < 3 ? 2 : 1);
    this.charts = [
      new Chart("loss", loss, fixed, 214),
      new Chart("learning rate", [{ name: "learning_rate", color: a, zero: true }], (v) => (v ? v.toExponential(1) : "0"), 84),
      new Chart("throughput (tokens/s)", [{ name: "tokens_per_second", color: a, zero: true }], (v) => si(v), 84),
    ];
    charts.append(...this.charts.map((chart) => chart.node));
    const tabs = element("div", "nbt-tabs");
    tabs.setAttribute("role", "tablist");
    this.page = element("div", "nbt-page");
    this.tabs = {};
    for (const [key, title] of [["log", "Log"], ["events", "Events"], ["ranks", "Ranks"], ["job", "Job"]]) {
      const tab = element("button", "", title);
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.select(key));
      this.tabs[key] = tab;
      tabs.append(tab);
    }
    this.logChoice = element("select");
    this.logChoice.setAttribute("aria-label", "whose log");
    this.logChoice.addEventListener("change", () => this.drawPage());
    tabs.append(this.logChoice);
    root.replaceChildren(head, this.note, this.message, this.bar, this.steps, this.tiles, charts, tabs, this.page);
    this.tab = "log";
    this.select("log");
    this.resized = new ResizeObserver(() => this.charts.forEach((chart) => chart.draw(chart.data)));
    this.resized.observe(root);
  }

  dispose() {
    this.resized.disconnect();
  }

  select(key) {
    this.tab = key;
    for (const [name, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-selected", String(name === key));
    this.logChoice.hidden = key !== "log";
    this.page.replaceChildren();
    if (this.snap) this.drawPage();
  }

  say(text, kind = "") {
    this.message.textContent = text;
    this.message.className = `nbt-note ${kind && `nbt-${kind}`}`;
  }

  draw(snap) {
    this.snap = snap;
    const { root } = this, progress = snap.progress, job = snap.job, config = snap.config;
    root.dataset.state = snap.state;
    root.dataset.step = progress ? progress.step : "";
    root.dataset.run = snap.name;
    this.name.textContent = snap.name;
    this.state.textContent = snap.state;
    this.state.title = snap.meaning;
    const about = [];
    if (progress && progress.num_parameters) about.push(`${si(progress.num_parameters)} parameters`);
    if (config) about.push(`${job ? job.world_size : config.data_parallel_size} x ${config.device}, ${config.precision}, ZeRO ${config.zero_stage}`);
    if (job) about.push(`job ${job.job_id}`);
    this.sub.textContent = about.join("  ·  ");
    this.stop.hidden = !snap.active;
    if (!snap.active) this.stop.disabled = false;
    const bad = snap.state === "FAILED" || snap.state === "LOST";
    const lastAlert = snap.active && snap.alerts.length ? snap.alerts[snap.alerts.length - 1] : null;
    this.note.textContent = snap.cause || (lastAlert ? `Alert: ${lastAlert.message}` : "");
    this.note.className = `nbt-note ${bad ? "nbt-error" : lastAlert && !snap.cause ? "nbt-alert" : ""}`;
    const fraction = progress && known(progress.fraction) ? progress.fraction : 0;
    this.fill.style.width = `${(100 * fraction).toFixed(2)}%`;
    this.bar.setAttribute("aria-valuenow", (100 * fraction).toFixed(1));
    this.drawSteps(snap);
    this.drawTiles(snap);
    this.charts.forEach((chart) => chart.draw(snap.curves));
    this.drawPage();
  }

  drawSteps({ progress, job, active }) {
    const parts = [];
    const say = (label, value, className) => {
      const node = element("span", className);
      node.append(`${label} `, element("b", "", value));
      parts.push(node);
    };
    if (progress) {
      say("step", `${whole(progress.step)} / ${whole(progress.total_steps)}`, "nbt-step");
      say("tokens", `${si(progress.consumed_tokens)} / ${si(progress.target_tokens)}`);
      if (known(progress.fraction)) say("", `${(100 * progress.fraction).toFixed(1)} %`);
      if (active && progress.phase !== "train") say("phase", `${progress.phase}, ${duration(progress.phase_seconds || 0)}`);
    }
    if (job) say("elapsed", duration(job.elapsed_seconds));
    if (job && job.restarts) say("restarts", whole(job.restarts));
    if (progress && known(progress.eta_seconds)) say("time left", duration(progress.eta_seconds), "nbt-eta");
    this.steps.replaceChildren(...parts);
  }

  drawTiles({ progress, resources, curves, active }) {
    const parts = [];
    const tile = (label, value, unit) => {
      const node = element("div", "nbt-tile");
      const strong = element("strong", "", value);
      if (unit) strong.append(element("small", "", unit));
      node.append(element("span", "", label), strong);
      parts.push(node);
    };
    const last = (name) => {
      const curve = curves[name];
      return curve && curve.values.length ? curve.values[curve.values.length - 1] : null;
    };
    const p = progress || {};
    tile("training loss", known(p.loss) ? p.loss.toFixed(4) : "–");
    tile("validation loss", known(p.validation_loss) ? p.validation_loss.toFixed(4) : "–",
      known(p.validation_perplexity) ? `ppl ${p.validation_perplexity < 1000 ? p.validation_perplexity.toFixed(1) : si(p.validation_perplexity)}` : "");
    tile("learning rate", known(p.learning_rate) ? p.learning_rate.toExponential(2) : "–");
    tile("throughput", known(p.tokens_per_second) ? whole(p.tokens_per_second) : "–", "tokens/s");
    tile("gradient norm", known(p.grad_norm) ? p.grad_norm.toFixed(3) : "–");
    if (known(last("mfu"))) tile("MFU", (100 * last("mfu")).toFixed(1), "%");
    const use = active && resources && resources.job;
    if (use) {
      tile(`CPU, of ${resources.machine.num_cores} cores`, known(use.cpu_cores) ? use.cpu_cores.toFixed(2) : "–", "cores");
      const [number, unit] = bytes(use.memory_bytes);
      const [total, totalUnit] = bytes(resources.machine.memory_total_bytes);
      tile(`memory, of ${total} ${totalUnit}`, number, unit);
      for (const gpu of resources.gpus.slice(0, 8)) {
        const [used, usedUnit] = known(gpu.memory_used_bytes) ? bytes(gpu.memory_used_bytes) : ["–", ""];
        tile(`GPU ${gpu.index}`, known(gpu.utilization_fraction) ? `${Math.round(100 * gpu.utilization_fraction)} %` : "–",
          `${used} ${usedUnit}${known(gpu.power_watts) ? `, ${Math.round(gpu.power_watts)} W` : ""}`);
      }
    } else if (known(last("host_memory_bytes"))) {
      tile("memory, rank 0", ...bytes(last("host_memory_bytes")));
    }
    if (known(p.test_loss)) tile("test loss", p.test_loss.toFixed(4));
    this.tiles.replaceChildren(...parts);
  }

  drawPage() {
    const snap = this.snap;
    this.tabs.events.textContent = snap.alerts.length ? `Events (${snap.alerts.length} alert${snap.alerts.length > 1 ? "s" : ""})` : "Events";
    if (this.tab === "log") this.drawLog(snap);
    else if (this.tab === "events")
      this.table(["time", "kind", "from", "message"], [...snap.events].reverse().map((event) => ({
        kind: event.kind,
        cells: [clock(event.time), event.kind, event.writer, event.message],
      })));
    else if (this.tab === "ranks")
      this.table(["rank", "phase", "step", "pid", "CPU", "memory", "heartbeat", "last words"], snap.ranks.map((rank) => ({
        kind: rank.stale || rank.phase === "failed" || rank.phase === "killed" ? "stale" : "",
        cells: [
          rank.rank,
          rank.phase,
          known(rank.step) ? whole(rank.step) : "",
          known(rank.pid) ? rank.pid : "",
          known(rank.cpu_cores) ? `${rank.cpu_cores.toFixed(2)} cores` : "",
          known(rank.memory_bytes) ? bytes(rank.memory_bytes).join(" ") : "",
          known(rank.heartbeat_age_seconds) && snap.active ? `${duration(rank.heartbeat_age_seconds)} ago` : "",
          rank.message,
        ],
      })));
    else this.table(["", ""], this.jobRows(snap).map((cells) => ({ kind: "", cells })));
  }

  jobRows({ job, jobs, config, warnings }) {
    const rows = [];
    if (config) {
      rows.push(["model", `${config.num_layers} layers, hidden ${config.hidden_size}, ${config.num_attention_heads} heads, sequence ${config.seq_length}, vocabulary ${whole(config.vocab_size)}`]);
      rows.push(["batch", `${config.global_batch_size} sequences in micro batches of ${config.micro_batch_size}`]);
      rows.push(["layout", `data ${config.data_parallel_size} x pipeline ${config.pipeline_parallel_size} x tensor ${config.tensor_parallel_size}, ZeRO ${config.zero_stage}, ${config.precision}`]);
      rows.push(["dataset", config.dataset]);
    }
    if (job) {
      rows.push(["backend", `${job.backend}, ${job.world_size} ranks, attempt ${job.attempt}, ${job.restarts} restarts`]);
      if (job.command.length) rows.push(["command", job.command.join(" ")]);
    }
    for (const one of [...jobs].reverse()) rows.push(["job", `${one.job_id}  ${one.state}${one.cause ? `: ${one.cause}` : ""}`]);
    for (const warning of warnings) rows.push(["warning", warning]);
    return rows;
  }

  table(heads, rows) {
    const table = element("table");
    const head = element("tr");
    heads.forEach((title) => head.append(element("th", "", title)));
    if (heads.some(Boolean)) table.append(head);
    for (const { kind, cells } of rows) {
      const row = element("tr");
      row.dataset.kind = kind;
      cells.forEach((cell, at) => row.append(element("td", at === cells.length - 1 ? "nbt-wide" : "", cell)));
      table.append(row);
    }
    this.page.replaceChildren(table);
  }

  drawLog(snap) {
    const choices = ["", ...snap.ranks.slice(0, 64).map((rank) => String(rank.rank)), "supervisor"];
    if (this.logChoice.options.length !== choices.length) {
      this.logChoice.replaceChildren(
        ...choices.map((value) => {
          const option = element("option", "", value === "" ? "newest lines" : value === "supervisor" ? value : `rank ${value}`);
          option.value = value;
          return option;
        }),
      );
    }
    const wanted = this.fetchLog ? this.logChoice.value : "";
    this.logChoice.disabled = !this.fetchLog;
    if (wanted === "") this.showLog(snap.log.lines.length ? snap.log.lines : ["(nothing was logged yet)"]);
    else
      this.fetchLog(wanted).then(
        (part) => this.logChoice.value === wanted && this.tab === "log" && this.showLog(part.text.split("\n").slice(-400)),
        (error) => this.say(`The log of ${wanted} could not be read: ${error.message}`, "error"),
      );
  }

  showLog(lines) {
    const text = lines.map(plain).join("\n");
    let pre = this.page.querySelector("pre");
    if (!pre) {
      pre = element("pre");
      this.page.replaceChildren(pre);
    }
    if (pre.textContent === text) return;
    const follows = this.page.scrollHeight - this.page.scrollTop - this.page.clientHeight < 24 || !pre.textContent;
    pre.textContent = text;
    if (follows) this.page.scrollTop = this.page.scrollHeight;
  }
}

/** Keep `root` showing the run `name`. Returns a function that ends it. `model` is the anywidget model, if any. */
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
    if (!value || !value.schema_version) return;
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
  if (!server && model) panel.say("No Jupyter server is in reach of this page: the figures come from the kernel.");
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

/** Watch over the widget beside `place`; where JupyterLab cannot revive it, show a panel without a kernel. */
export function rescue(place) {
  const name = place.dataset.run, runId = place.dataset.runId || "";
  let end = null, own = null, hidden = null;

  function look() {
    const area = place.closest(".jp-OutputArea") || place.parentElement.parentElement;
    if (place.isConnected && area) {
      const living = [...area.querySelectorAll(".nbtrain-panel")].some((node) => node !== own && node.dataset.run === name);
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
    return mount(root, { name: model.get("name"), runId: model.get("run_id"), snap: model.get("snap"), model });
  },
};
