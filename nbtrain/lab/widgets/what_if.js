// The what-if page: controls that offer only legal values, and the cost of the layout. All numbers and texts come
// from planner/search/what_if.py in the trait `shown`; this script only draws them. It sends changes to the kernel.

const STYLE_ID = "nbtrain-what-if-style";
const WAIT_MS = 40;

const CSS = `
.nbtrain-what-if{--w-fg:var(--jp-ui-font-color1,#1f2328);--w-dim:var(--jp-ui-font-color2,#6b7280);
 --w-line:var(--jp-border-color2,#d8dce1);--w-soft:var(--jp-layout-color2,#f3f4f6);
 box-sizing:border-box;max-width:1120px;border:1px solid var(--w-line);border-radius:8px;padding:10px 14px 12px;
 color:var(--w-fg);background:var(--jp-layout-color1,#fff);font:13px/1.45 var(--jp-ui-font-family,system-ui,
 sans-serif);font-variant-numeric:tabular-nums}
.nbtrain-what-if .w-title{font-weight:600;font-size:15px}
.nbtrain-what-if .w-layout{color:var(--w-dim)}
.nbtrain-what-if .w-words{display:flex;gap:34px;flex-wrap:wrap;margin:8px 0 10px}
.nbtrain-what-if .w-words span{display:block;font-size:11px;color:var(--w-dim)}
.nbtrain-what-if .w-words strong{font-size:20px}
.nbtrain-what-if .w-good{color:var(--jp-success-color1,#2e9e4f)}
.nbtrain-what-if .w-tight{color:var(--jp-warn-color1,#e8710a)}
.nbtrain-what-if .w-bad{color:var(--jp-error-color1,#d32f2f)}
.nbtrain-what-if .w-middle{display:flex;flex-wrap:wrap;gap:26px}
.nbtrain-what-if .w-controls{flex:1 1 330px;min-width:300px}
.nbtrain-what-if .w-pictures{flex:1 1 430px;min-width:320px}
.nbtrain-what-if .w-control{display:grid;grid-template-columns:92px 1fr 110px;gap:10px;align-items:center;
 min-height:29px}
.nbtrain-what-if .w-control label{color:var(--w-dim)}
.nbtrain-what-if .w-control select,.nbtrain-what-if input[type=text]{font:inherit;color:inherit;padding:2px 4px;
 background:var(--jp-layout-color1,#fff);border:1px solid var(--w-line);border-radius:4px}
.nbtrain-what-if .w-control select{width:100%;min-width:0}
.nbtrain-what-if .w-control input[type=range]{width:100%;accent-color:var(--jp-brand-color1,#1976d2)}
.nbtrain-what-if .w-moved{min-height:19px;font-size:12px;color:var(--jp-warn-color1,#e8710a)}
.nbtrain-what-if .w-head{font-size:11px;color:var(--w-dim);margin:8px 0 2px}
.nbtrain-what-if .w-bar{display:grid;grid-template-columns:62px 1fr 76px;gap:8px;align-items:center;
 font-size:12px;height:19px}
.nbtrain-what-if .w-wide{grid-template-columns:76px 1fr 232px}
.nbtrain-what-if .w-track{position:relative;height:13px;background:var(--w-soft)}
.nbtrain-what-if .w-track i{position:absolute;top:0;bottom:0}
.nbtrain-what-if .w-limit{border-left:2px dashed var(--jp-error-color1,#d32f2f);top:-3px!important;
 bottom:-3px!important}
.nbtrain-what-if .w-legend{font-size:11px;color:var(--w-dim);display:flex;flex-wrap:wrap;gap:2px 12px}
.nbtrain-what-if .w-legend b{display:inline-block;width:9px;height:9px;margin-right:4px}
.nbtrain-what-if table{border-collapse:collapse;font-size:12px;margin-top:8px}
.nbtrain-what-if td{text-align:left;padding:1px 14px 1px 0;background:transparent;border:0;color:inherit}
.nbtrain-what-if .w-foot{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin-top:10px}
.nbtrain-what-if .w-foot button{font:inherit;padding:3px 12px;border:0;border-radius:4px;cursor:pointer;
 color:var(--jp-ui-inverse-font-color1,#fff);background:var(--jp-brand-color1,#1976d2)}
.nbtrain-what-if .w-answer{white-space:pre-wrap;overflow-wrap:anywhere}
`;

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
}

const words = (value) => (value === true ? "on" : value === false ? "off" : String(value));

let controlsMade = 0;

/** A control. Its elements are created once, and show the values of each response from the kernel. */
class Control {
  constructor(name, kind, send) {
    this.node = element("div", "w-control");
    this.label = element("label");
    this.value = element("output");
    this.input = element(kind === "slider" ? "input" : "select");
    this.input.id = `w-${(controlsMade += 1)}`;
    this.label.htmlFor = this.input.id;
    this.input.dataset.control = name;
    if (kind === "slider") this.input.type = "range";
    this.slider = kind === "slider";
    this.node.append(this.label, this.input, this.value);
    this.input.addEventListener("input", () => {
      const chosen = this.values[this.slider ? Number(this.input.value) : this.input.selectedIndex];
      this.value.textContent = this.slider ? words(chosen) : "";
      send(name, chosen);
    });
  }

  show(control) {
    this.values = control.values;
    this.label.textContent = control.label;
    this.node.title = control.hint;
    const at = control.values.indexOf(control.value);
    if (this.slider) {
      this.input.min = 0;
      this.input.max = control.values.length - 1;
      this.input.step = 1;
      this.input.value = at;
      this.input.setAttribute("aria-valuetext", words(control.value));
      this.input.disabled = control.values.length < 2;
      this.value.textContent = words(control.value);
      return;
    }
    const options = control.values.map((value, number) => {
      const option = element("option", "", words(value) + (control.free[number] ? "" : " (moves others)"));
      option.selected = number === at;
      return option;
    });
    this.input.replaceChildren(...options);
  }
}

/** `parts` are [name, value, color]. */
function bar(label, parts, scale, total, limit) {
  const row = element("div", "w-bar"), track = element("div", "w-track");
  let left = 0;
  for (const [name, value, color] of parts) {
    const piece = element("i");
    piece.style.left = `${(100 * left) / scale}%`;
    piece.style.width = `${(100 * value) / scale}%`;
    piece.style.background = color;
    piece.title = name;
    track.append(piece);
    left += value;
  }
  if (limit) {
    const line = element("i", "w-limit");
    line.style.left = `${(100 * limit) / scale}%`;
    track.append(line);
  }
  row.append(element("span", "", label), track, element("span", "", total));
  return row;
}

/** `names` are [name, color]. */
function legend(names) {
  const node = element("div", "w-legend");
  for (const [name, color] of names) {
    const entry = element("span"), mark = element("b");
    mark.style.background = color;
    entry.append(mark, name.replaceAll("_", " "));
    node.append(entry);
  }
  return node;
}

function memory(found) {
  const sum = (stage) => found.parts.reduce((whole, [part]) => whole + (stage.parts[part] || 0), 0);
  const scale = Math.max(found.device_bytes || 0, ...found.stages.map(sum)) * 1.03;
  const device = found.device_label ? `, against ${found.device_label} of ${found.device}` : "";
  const nodes = [element("div", "w-head", `Memory${device}`)];
  for (const stage of found.stages) {
    const parts = found.parts.map(([part, color]) => [part, stage.parts[part] || 0, color]);
    nodes.push(bar(stage.label, parts, scale, stage.total, found.device_bytes));
  }
  return [...nodes, legend(found.parts)];
}

function time(found) {
  if (!found.length) return [element("div", "w-head", "Time: the GPU's rates are not known")];
  const whole = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  const parts = found.map(([name, seconds, , color]) => [name, seconds, color]);
  const row = bar("a step", parts, whole, `${Number(whole.toPrecision(3))} s`, null);
  const names = found.map(([name, , share, color]) => [`${name} ${share}`, color]);
  return [element("div", "w-head", "Time of a step"), row, legend(names)];
}

function networks(found) {
  if (!found.length) return [];
  const names = found[0].parts.map(([name, , color]) => [name, color]);
  const sum = ({ parts }) => parts.reduce((whole, [, seconds]) => whole + seconds, 0);
  const scale = Math.max(...found.map(sum));
  const bars = found.map(({ label, parts, total }) => bar(label, parts, scale, total, null));
  for (const row of bars) row.classList.add("w-wide");
  return [element("div", "w-head", "The same step on other networks"), ...bars, legend(names)];
}

function render({ model, el }) {
  if (!document.getElementById(STYLE_ID)) {
    const style = element("style");
    style.id = STYLE_ID;
    style.textContent = CSS;
    document.head.append(style);
  }
  const root = element("div", "nbtrain-what-if"), controls = {};
  // Without this, JupyterLab and the notebook would treat the arrow keys of a slider as shortcuts.
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());
  const title = element("div", "w-title"), layout = element("div", "w-layout");
  const three = element("div", "w-words"), moved = element("div", "w-moved");
  const left = element("div", "w-controls"), right = element("div", "w-pictures");
  const rows = element("table"), middle = element("div", "w-middle"), foot = element("div", "w-foot");
  const path = element("input"), use = element("button", "", "Use this"), answer = element("span", "w-answer");
  path.type = "text";
  path.size = 34;
  path.placeholder = "a new run YAML, e.g. my-run.yaml";
  use.title = "Write this layout as a run YAML. An existing file is not overwritten.";
  foot.append(use, path, answer);
  middle.append(left, right);
  root.append(title, layout, three, middle, foot);
  el.append(root);

  let timer = null;
  function send(name, value) {
    // While a slider is dragged, only its last value is sent.
    clearTimeout(timer);
    timer = setTimeout(() => model.send({ kind: "set", name, value }), WAIT_MS);
  }
  use.addEventListener("click", () => model.send({ kind: "use", path: path.value }));

  function draw() {
    const shown = model.get("shown");
    if (!shown.controls) return;
    title.textContent = shown.title;
    layout.textContent = shown.layout;
    root.dataset.layout = shown.layout;
    three.replaceChildren(
      ...shown.words.map(([name, value, kind]) => {
        const tile = element("div");
        tile.append(element("span", "", name), element("strong", kind ? `w-${kind}` : "", value));
        return tile;
      }),
    );
    for (const control of shown.controls) {
      if (!controls[control.name]) {
        controls[control.name] = new Control(control.name, control.kind, send);
        left.append(controls[control.name].node);
      }
      controls[control.name].show(control);
    }
    left.append(moved);
    moved.textContent = shown.moved.length ? `also changed: ${shown.moved.join(", ")}` : "";
    rows.replaceChildren(
      ...shown.rows.map((cells) => {
        const row = element("tr");
        row.append(...cells.map((cell) => element("td", "", cell)));
        return row;
      }),
    );
    right.replaceChildren(...memory(shown.memory), ...time(shown.time), ...networks(shown.networks), rows);
  }
  function tell() {
    const [kind, text] = model.get("answer");
    answer.className = `w-answer ${kind ? `w-${kind}` : ""}`;
    answer.textContent = text;
    // If the kernel refused a change, the control is reset to the value of the layout.
    draw();
  }
  model.on("change:shown", draw);
  model.on("change:answer", tell);
  tell();
  return () => {
    clearTimeout(timer);
    model.off("change:shown", draw);
    model.off("change:answer", tell);
  };
}

export default { render };
