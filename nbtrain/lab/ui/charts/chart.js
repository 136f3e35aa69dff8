// One chart: lines over steps, tokens or time, raw and smoothed, with bounds, marks, hover and zoom.
//
//   spec   {title, lines: [{name, label, color, dots, x, y, low?, high?, bad?, words?, note?, dash?}],
//           bounds: [{word, value}], marks: [{x, kind, words}], xName, xForm, yName, yForm, fromZero, top?,
//           smoothing?, begin?, namedAbove?, endNames?, where?}
//
// In a thinned line, y is the mean of each interval, and low and high are its lowest and highest values, which are drawn
// as a band. `bad` lists the ranges of x with NaN or Inf values; the line has a marked gap there. With `endNames`, each
// line has its name at its end (chart_ends.js). where(line, at) returns the step, tokens and time of a point in words.
//
// xForm and yForm are number formats of numbers.js. The charts of a ChartGroup share the pointer's position and the zoom.

import { endMargin, endNames } from "./chart_ends.js";
import { chartCsv, chartPng, chartSvg } from "./chart_files.js";
import { byteTicks, logTicks, nearest, readLabel, smoothed, tickLabel, ticks, timeTicks } from "./numbers.js";
import { button, download, element, known, menu, stamp } from "../elements/dom.js";

// The space above the highest label is for the axis's name.
const RIGHT = 10, TOP = 24, BOTTOM = 20;
// Space between a curve and the frame, as a share of the curve's range.
const MARGIN = 0.06;
// Minimum distance between two labels of an axis, in pixels.
const APART_X = 70, APART_Y = 34;
// Maximum number of values that are shown at the pointer.
const MOST_READ = 4;
// A line has a value at the pointer up to this distance beyond its ends, or up to the distance between its points.
const NEAR_PIXELS = 4;
// A drag shorter than this is a click.
const DRAG_PIXELS = 6;

export function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (known(text)) node.textContent = text;
  return node;
}

const stroke = (line) => `var(--nbt-${line.color})`;
const finite = Number.isFinite;
// Minimum width of the mark of a gap, in pixels.
const GAP_PIXELS = 3;
// Maximum number of gaps that are labelled.
const MOST_GAP_LABELS = 3;
// Maximum number of names in a chart's legend until the user shows all of them.
const MOST_NAMES_SHOWN = 8;
// Maximum number of lines in the readout of a chart.
const MOST_TIP_ROWS = 12;
// Distance of the readout from the pointer, in pixels.
const TIP_PIXELS = 14;
// A bound with the word "request = limit" gets the style of a limit.
const boundClass = ({ word }) => (word === "request" ? "nbt-request" : "nbt-limit");

/** Return whether `x` is outside the range of sorted numbers by more than their mean distance and more than `least`. */
function beyond(sorted, x, least) {
  const first = sorted[0], last = sorted[sorted.length - 1];
  const reach = Math.max(least, (last - first) / Math.max(1, sorted.length - 1));
  return x < first - reach || x > last + reach;
}

/** Charts that share the position of the pointer on their x axis, and the range that is zoomed into. */
export class ChartGroup {
  constructor() {
    this.charts = new Set();
    this.at = null;
    this.range = null;
    /** The chart under the pointer, or with the focus: it shows the whole readout. */
    this.active = null;
    /** Called after a zoom, so that more points of the visible part can be fetched. */
    this.zoomed = null;
  }

  hover(x) {
    if (this.at === x) return;
    this.at = x;
    this.draw();
  }

  zoom(range) {
    this.range = range;
    this.draw();
    if (this.zoomed) this.zoomed();
  }

  draw() {
    this.charts.forEach((chart) => chart.draw());
  }
}

export class Chart {
  /** `isLarge`: whether it is the enlarged copy of another chart. */
  constructor(height, { group = new ChartGroup(), name = "chart", isLarge = false } = {}) {
    this.height = height;
    this.group = group;
    this.fileName = name;
    this.log = false;
    /** [lowest, highest] of the vertical axis as the user chose them; null fits an end to the values. */
    this.ends = [null, null];
    this.isLarge = isLarge;
    this.large = null;
    group.charts.add(this);
    this.node = element("div", "nbt-chart");
    this.header = element("div", "nbt-chart-head");
    this.legend = element("span", "nbt-legend");
    this.picture = svg("svg", { height, role: "img", tabindex: 0 });
    this.tip = element("div", "nbt-tip");
    this.tip.hidden = true;
    this.header.append(this.legend, ...(isLarge ? [] : [this.enlargeButton()]), this.menu());
    this.node.append(this.header, this.picture, this.tip);
    this.drag = null;
    this.picture.addEventListener("pointermove", (event) => this.moved(event));
    this.picture.addEventListener("pointerleave", () => !this.drag && group.hover(null));
    this.picture.addEventListener("pointerdown", (event) => this.pressed(event));
    this.picture.addEventListener("pointerup", (event) => this.released(event));
    this.picture.addEventListener("dblclick", () => group.zoom(null));
    this.picture.addEventListener("keydown", (event) => this.key(event));
    this.picture.addEventListener("focus", () => (group.active = this));
    this.picture.addEventListener("blur", () => group.hover(null));
  }

  menu() {
    this.logEntry = button("Log axis", "", () => {
      this.log = !this.log;
      this.draw();
    });
    return menu(
      "\u22ef",
      "Chart options: log axis, zoom, save as PNG, SVG or CSV",
      this.logEntry,
      button("Reset zoom", "", () => this.group.zoom(null)),
      button("Save as PNG", "", async () => download(`${this.fileName}.png`, await chartPng(this))),
      button("Save as SVG", "", () => download(`${this.fileName}.svg`, chartSvg(this).text, "image/svg+xml")),
      button("Save as CSV", "", () => download(`${this.fileName}.csv`, chartCsv(this.spec), "text/csv")),
    );
  }

  dispose() {
    this.group.charts.delete(this);
    if (this.large) this.large.close();
  }

  // --- the enlarged copy ---

  enlargeButton() {
    const node = button("\u2922", "Enlarge this chart", () => this.enlarge(), "nbt-enlarge");
    node.setAttribute("aria-label", "Enlarge this chart");
    return node;
  }

  /** Show a copy of the chart in the whole window, with its own ranges, smoothing and axis. Escape closes it. */
  enlarge() {
    if (!this.spec) return;
    const dialog = element("dialog", "nbt-large"), tools = element("div", "nbt-tools");
    const chart = new Chart(Math.max(220, Math.round(window.innerHeight * 0.7)), { name: this.fileName, isLarge: true });
    chart.log = this.log;
    const smoothing = element("input"), said = element("output");
    const look = { type: "range", min: "0", max: "0.99", step: "0.01" };
    for (const [name, value] of Object.entries(look)) smoothing.setAttribute(name, value);
    smoothing.value = this.spec.smoothing || 0;
    const copy = () => {
      said.textContent = smoothing.value;
      chart.show({ ...this.spec, smoothing: Number(smoothing.value) });
    };
    smoothing.addEventListener("input", copy);
    const slider = element("label", "nbt-field", "Smoothing ");
    slider.append(smoothing, said);
    const ends = ["Lowest", "Highest"].map((words, at) => {
      const input = element("input");
      Object.assign(input, { type: "text", inputMode: "decimal", placeholder: "auto", size: 7 });
      input.addEventListener("input", () => {
        const text = input.value.trim(), value = text === "" ? null : Number(text);
        const wrong = value !== null && !finite(value);
        input.setAttribute("aria-invalid", String(wrong));
        if (wrong) return;
        chart.ends[at] = value;
        chart.draw();
      });
      const label = element("label", "nbt-field", `${words} `);
      label.append(input);
      return label;
    });
    const close = button("Close", "", () => dialog.close());
    tools.append(slider, ...ends, element("span", "nbt-room"), close);
    dialog.append(tools, chart.node);
    dialog.setAttribute("aria-label", `${this.spec.title || this.spec.yName || "chart"}, enlarged`);
    const resized = new ResizeObserver(() => chart.draw());
    dialog.addEventListener("close", () => {
      resized.disconnect();
      dialog.remove();
      this.large = null;
    });
    (this.node.closest(".nbt-root") || document.body).append(dialog);
    this.large = { close: () => dialog.close(), show: copy };
    dialog.showModal();
    copy();
    resized.observe(chart.node);
  }

  show(spec) {
    this.spec = spec;
    // A single line with the name of the chart needs no legend.
    const only = spec.lines.length === 1 && !(spec.bounds || []).length ? spec.lines[0].label : "";
    const same = Boolean(only) && only.toLowerCase() === (spec.title || "").toLowerCase();
    // Names that are shown once above all charts are not repeated in each chart, except for lines with a note.
    const named = spec.namedAbove ? spec.lines.filter((line) => line.note) : spec.lines;
    const marks = same && !spec.lines[0].note ? [] : named.map((line) => {
      const mark = element("i", line.dash ? "nbt-dashed" : "", line.label);
      if (line.note) mark.append(`, ${line.note}`);
      mark.style.setProperty("--c", stroke(line));
      if (line.dash) mark.style.setProperty("--dash", `${line.dash.split(" ")[0]}px`);
      return mark;
    });
    const rest = marks.splice(this.allNames || marks.length <= MOST_NAMES_SHOWN + 1 ? marks.length : MOST_NAMES_SHOWN).length;
    if (rest || this.allNames) marks.push(this.namesButton(rest));
    for (const bound of spec.bounds || []) marks.push(element("i", boundClass(bound), bound.word));
    if (spec.title) marks.unshift(element("b", "", spec.title));
    const words = marks.map((mark) => mark.textContent).join("\n");
    if (this.legendWords !== words) this.legend.replaceChildren(...marks);
    this.legendWords = words;
    this.draw();
    if (this.large) this.large.show();
  }

  /** Show the names of all lines, or only the first ones. */
  namesButton(rest) {
    const words = rest ? `and ${rest} more` : "fewer names";
    return button(words, "", () => {
      this.allNames = !this.allNames;
      this.show(this.spec);
      this.legend.querySelector("button").focus();
    }, "nbt-more");
  }

  // --- axes ---

  /** Return the frame: ranges, scales and ticks of the visible part; null if the chart has no points. */
  frame(width) {
    const { spec, height } = this, range = this.group.range;
    const xs = spec.lines.flatMap((line) => (line.x.length ? [line.x[0], line.x[line.x.length - 1]] : []));
    if (xs.length) xs.push(...spec.lines.flatMap((line) => (line.bad || []).flat()).filter(finite));
    if (!xs.length) return null;
    let [x0, x1] = range || [Math.min(...xs), Math.max(...xs)];
    if (!(x1 > x0)) [x0, x1] = spec.xForm === "whole" ? [x0 - 1, x0 + 1] : [x0, x0 + 1];
    let low = Infinity, high = -Infinity;
    const see = (value) => {
      if (!finite(value) || (this.log && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const line of spec.lines)
      line.x.forEach((x, at) => {
        if (x < x0 || x > x1) return;
        see(line.y[at]);
        if (line.low) see(line.low[at]);
        if (line.high) see(line.high[at]);
      });
    // A line with no point inside a zoomed range may cross it.
    for (const { x, y } of spec.lines)
      for (const end of range || [])
        for (let at = 1; at < x.length; at += 1)
          if (x[at - 1] < end && x[at] > end)
            see(y[at - 1] + ((y[at] - y[at - 1]) * (end - x[at - 1])) / (x[at] - x[at - 1]));
    (spec.bounds || []).forEach(({ value }) => see(value));
    if (known(spec.top)) see(spec.top);
    if (low > high) [low, high] = this.log ? [1, 10] : [0, 1];
    let y0, y1, scale, yTicks;
    const most = Math.max(3, Math.floor((height - TOP - BOTTOM) / APART_Y));
    if (this.log) {
      const air = Math.max((high / low) ** MARGIN, 1.02);
      [y0, y1] = this.chosenEnds(low / air, high * air);
      scale = (value) => Math.log10(value);
      yTicks = logTicks(y0, y1);
    } else {
      const margin = (high - low) * MARGIN || Math.abs(high) * 0.05 || 1;
      [y0, y1] = [spec.fromZero ? Math.min(0, low) : low - margin, high + margin];
      scale = (value) => value;
      [y0, y1] = this.chosenEnds(y0, y1);
      const round = () => ticks(y0, y1, most, 3, spec.yForm === "whole");
      if (/^bytes/.test(spec.yForm)) y1 = Math.max(y1, y0 + 4);
      yTicks = /^bytes/.test(spec.yForm) ? byteTicks(y0, y1) : round();
    }
    const apart = (at) => (at.length > 1 ? at[1] - at[0] : Math.abs(at[0]) || 1);
    const gaps = yTicks.slice(1).map((one, at) => one - yTicks[at]);
    const gap = this.log ? Math.min(...gaps, yTicks[0]) : apart(yTicks);
    const yLabels = yTicks.map((value) => [value, tickLabel(spec.yForm, value, gap)]);
    const left = 12 + 6.2 * Math.max(2, ...yLabels.map(([, label]) => label.length));
    const right = width - ((spec.endNames && endMargin(spec.lines, width)) || RIGHT);
    const across = right - left, up = height - TOP - BOTTOM;
    const fits = Math.max(2, Math.floor(across / APART_X));
    const xTicks = spec.xForm === "seconds"
      ? timeTicks(x0, x1, fits)
      : ticks(x0, x1, fits, 2, spec.xForm === "whole");
    return {
      x0, x1, y0, y1, left, right, width, yLabels,
      xLabels: xTicks.map((value) => [value, tickLabel(spec.xForm, value, apart(xTicks))]),
      X: (x) => left + ((x - x0) / (x1 - x0)) * across,
      Y: (y) => TOP + ((scale(y1) - scale(y)) / (scale(y1) - scale(y0))) * up,
      valueAt: (pixel) => x0 + ((pixel - left) / Math.max(1, across)) * (x1 - x0),
    };
  }

  /** Return the ends of the vertical axis: the user's ends if the axis can show their range, else `low` and `high`. */
  chosenEnds(low, high) {
    const [own0, own1] = [this.ends[0] ?? low, this.ends[1] ?? high];
    return own1 > own0 && (!this.log || own0 > 0) ? [own0, own1] : [low, high];
  }

  draw() {
    const { spec, height } = this;
    const width = this.picture.clientWidth || this.node.clientWidth - 24;
    if (!spec || width < 40) return;
    this.logEntry.textContent = this.log ? "Linear axis" : "Log axis";
    const frame = (this.now = this.frame(width));
    if (!frame) {
      const place = { x: width / 2, y: height / 2, "text-anchor": "middle" };
      this.picture.replaceChildren(svg("text", place, "No points yet"));
      this.picture.setAttribute("aria-label", `${spec.title || spec.yName}: no points yet`);
      return;
    }
    const { X, Y, left, right } = frame, floor = height - BOTTOM;
    const parts = [];
    for (const [y, label] of frame.yLabels) {
      parts.push(svg("line", { class: "nbt-grid", x1: left, x2: right, y1: Y(y), y2: Y(y) }));
      parts.push(svg("text", { class: "nbt-y", x: left - 6, y: Y(y) + 3, "text-anchor": "end" }, label));
    }
    parts.push(...this.xAxis(frame, right));
    parts.push(svg("text", { class: "nbt-axis", x: 2, y: 9 }, spec.yName || ""));
    for (const { word, value } of spec.bounds || []) {
      if (this.log && value <= 0) continue;
      const across = { x1: left, x2: right, y1: Y(value), y2: Y(value) };
      parts.push(svg("line", { class: `nbt-bound ${boundClass({ word })}`, ...across }));
    }
    for (const { x, kind, words } of spec.marks || []) {
      if (!(x >= frame.x0 && x <= frame.x1)) continue;
      const mark = svg("line", { class: `nbt-mark nbt-${kind}`, x1: X(x), x2: X(x), y1: TOP, y2: floor });
      mark.append(svg("title", {}, words));
      const flag = svg("path", { class: `nbt-flag nbt-${kind}`, d: `M${X(x) - 4},${TOP} h8 l-4,6 z` });
      flag.append(svg("title", {}, words));
      parts.push(mark, flag);
    }
    // A line that leaves the zoomed range is clipped at the frame.
    const [x, y, across, up] = [left - 4, TOP - 4, right - left + 8, floor - TOP + 8];
    const inside = svg("svg", { x, y, width: across, height: up, viewBox: `${x} ${y} ${across} ${up}` });
    inside.append(...this.gaps(frame));
    spec.lines.forEach((line) => inside.append(...this.line(line, frame)));
    parts.push(inside, ...this.endNames(frame));
    if (this.drag && known(this.drag.to)) {
      const [from, to] = [this.drag.from, this.drag.to].sort((one, two) => one - two);
      const place = { x: from, y: TOP, width: to - from, height: floor - TOP };
      parts.push(svg("rect", { class: "nbt-zoom", ...place }));
    }
    const at = this.group.at;
    this.tip.hidden = true;
    const read = known(at) && at >= frame.x0 && at <= frame.x1 ? this.hover(at, frame, parts) : "";
    this.picture.replaceChildren(...parts);
    const names = spec.lines.map((line) => line.label).join(", ");
    const words = `${spec.title ? `${spec.title}: ` : ""}${names} by ${spec.xName}${read ? `. ${read}` : ""}`;
    if (this.said !== words) this.picture.setAttribute("aria-label", words);
    this.said = words;
  }

  /** Return the labels of the x axis; the last label includes the name of the axis. */
  xAxis({ xLabels, X }, right) {
    const parts = [], y = this.height - 6, name = this.spec.xName;
    let room = right + 4;
    [...xLabels].reverse().forEach(([x, label], at) => {
      const words = at === 0 && name ? `${name} ${label}` : label, half = 3 * words.length;
      const ends = X(x) + half > right, edge = ends ? right : X(x) + half;
      if (edge > room) return;
      room = edge - 2 * half - 10;
      const place = ends ? { x: right, "text-anchor": "end" } : { x: X(x), "text-anchor": "middle" };
      parts.push(svg("text", { class: at === 0 ? "nbt-x nbt-axis" : "nbt-x", y, ...place }, words));
    });
    return parts;
  }

  /** Return the names at the ends of the lines; [] if the chart has no room for them. */
  endNames(frame) {
    const { spec } = this;
    if (!spec.endNames || frame.right === frame.width - RIGHT) return [];
    const ends = spec.lines.flatMap((line) => {
      const drawn = this.parts(line, smoothed(line.y, line.dots ? 0 : spec.smoothing || 0), frame).flat();
      const last = drawn.filter(([x]) => x <= frame.right + 1).pop();
      return last ? [{ line, x: last[0], y: Math.min(Math.max(last[1], TOP), this.height - BOTTOM) }] : [];
    });
    const place = { right: frame.right, width: frame.width, top: TOP + 2, floor: this.height - BOTTOM };
    return endNames(ends, place, stroke).map(([tag, attributes, text, title]) => {
      const node = svg(tag, attributes, text);
      if (title) node.append(svg("title", {}, title));
      return node;
    });
  }

  /** Return marked areas for the ranges in which a line is NaN or Inf. */
  gaps({ x0, x1, X }) {
    const ranges = this.spec.lines.flatMap((line) => (line.bad || []).map(([from, to]) => ({ line, from, to })));
    const seen = ranges.filter(({ from, to }) => to >= x0 && from <= x1);
    return seen.flatMap(({ line, from, to }, at) => {
      const left = X(Math.max(from, x0)), width = Math.max(GAP_PIXELS, X(Math.min(to, x1)) - left);
      const place = { x: left - GAP_PIXELS / 2, y: TOP, width, height: this.height - TOP - BOTTOM };
      const area = svg("rect", { class: "nbt-gap", ...place });
      const where = (x) => tickLabel(this.spec.xForm, x, 1), until = to > from ? ` to ${where(to)}` : "";
      area.append(svg("title", {}, `${line.label} is NaN or Inf at ${this.spec.xName} ${where(from)}${until}`));
      const middle = { class: "nbt-gap-label", x: left + width / 2, y: TOP + 9, "text-anchor": "middle" };
      return seen.length - at <= MOST_GAP_LABELS ? [area, svg("text", middle, "NaN")] : [area];
    });
  }

  /**
   * Return the visible parts of a line, each a list of points without a gap, with one more point on each side of the
   * visible range. `values` are the line's values, its smoothed values, or one end of its band.
   */
  parts(line, values, { x0, x1, X, Y }) {
    const breaks = new Set((line.bad || []).map(([from]) => line.x.findIndex((x) => x >= from)));
    const found = [[]];
    line.x.forEach((x, at) => {
      const outside = (line.x[at + 1] ?? x) < x0 || (line.x[at - 1] ?? x) > x1, value = values[at];
      const drawn = finite(value) && !(this.log && value <= 0);
      if ((!drawn || breaks.has(at)) && found[found.length - 1].length) found.push([]);
      if (drawn && !outside) found[found.length - 1].push([X(x), Y(value)]);
    });
    return found.filter((part) => part.length);
  }

  line(line, frame) {
    const raw = this.parts(line, line.y, frame), all = raw.flat();
    const text = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    const dash = line.dash ? `;stroke-dasharray:${line.dash}` : "";
    const color = `stroke:${stroke(line)}${dash}`, shape = "fill:none;stroke-linejoin:round";
    const fill = `fill:${stroke(line)}`, drawn = [];
    const lines = (parts, attributes) => parts.filter((part) => part.length > 1).forEach((part) =>
      drawn.push(svg("polyline", { points: text(part), ...attributes })));
    if (line.high && line.high.some((high, at) => high > line.low[at])) {
      // On a log axis or at a gap, an end of the band may be missing. This part of the line then has no band.
      const above = this.parts(line, line.high, frame), below = this.parts(line, line.low, frame);
      above.forEach((part, at) => below[at] && below[at].length === part.length && drawn.push(
        svg("polygon", { class: "nbt-band", points: `${text(part)} ${text([...below[at]].reverse())}`, style: fill })));
    }
    const weight = line.dots ? 0 : this.spec.smoothing || 0;
    if (weight > 0 && all.length > 2) {
      lines(raw, { class: "nbt-raw", style: `${shape};${color}` });
      const calm = this.parts(line, smoothed(line.y, weight), frame);
      lines(calm, { style: `${shape};${color};stroke-width:1.8` });
    } else lines(raw, { style: `${shape};${color};stroke-width:1.6` });
    const dots = line.dots && all.length < 80 ? all : raw.filter((part) => part.length === 1).flat();
    for (const [cx, cy] of dots)
      drawn.push(svg("circle", { cx, cy, r: all.length === 1 ? 3 : 2.4, style: fill }));
    return drawn;
  }

  // --- the pointer and the keys ---

  moved(event) {
    this.group.active = this;
    const pixel = event.clientX - this.picture.getBoundingClientRect().left;
    if (!this.now) return;
    if (this.drag) this.drag.to = Math.min(Math.max(pixel, this.now.left), this.now.right);
    const at = this.now.valueAt(pixel);
    if (this.drag || this.group.at !== at) {
      this.group.at = at;
      this.group.draw();
    }
  }

  pressed(event) {
    if (event.button !== 0 || !this.now) return;
    const pixel = event.clientX - this.picture.getBoundingClientRect().left;
    if (pixel < this.now.left) return;
    this.drag = { from: pixel, to: null };
    this.picture.setPointerCapture(event.pointerId);
  }

  released() {
    const drag = this.drag;
    this.drag = null;
    if (!drag || !known(drag.to) || Math.abs(drag.to - drag.from) < DRAG_PIXELS) return this.draw();
    const ends = [drag.from, drag.to].map(this.now.valueAt).sort((one, two) => one - two);
    this.group.zoom(ends);
  }

  /** Handle keys: Left and Right go to the previous and next point, + and - zoom around the point, and 0 or Escape shows
   *  the whole range. */
  key(event) {
    const line = this.spec && this.spec.lines.find((one) => one.x.length);
    if (!line || !this.now || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x0, x1 } = this.now, at = this.group.at ?? x1;
    const here = nearest(line.x, at), last = line.x.length - 1;
    const zoomed = (factor) => [at - (at - x0) * factor, at + (x1 - at) * factor];
    const acts = {
      ArrowLeft: () => this.group.hover(line.x[Math.max(0, here - 1)]),
      ArrowRight: () => this.group.hover(line.x[Math.min(last, here + 1)]),
      Home: () => this.group.hover(line.x[0]),
      End: () => this.group.hover(line.x[last]),
      "+": () => this.group.zoom(zoomed(0.5)),
      "-": () => this.group.zoom(this.group.range && zoomed(2)),
      0: () => this.group.zoom(null),
      Escape: () => this.group.zoom(null),
    };
    // Escape closes an enlarged chart that is not zoomed.
    if (!acts[event.key] || (event.key === "Escape" && this.isLarge && !this.group.range)) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  }

  /** Mark the points nearest to `wanted` and show their values. Returns the values in words, "" without points. */
  hover(wanted, frame, parts) {
    const { spec } = this, { X, Y } = frame, rows = [];
    const points = spec.lines.flatMap((line) => {
      const at = nearest(line.x, wanted), value = line.y[at];
      return !finite(value) || (this.log && value <= 0) ? [] : [{ line, at, x: line.x[at], value }];
    });
    if (!points.length) return "";
    const closer = (one, two) => (Math.abs(two.x - wanted) < Math.abs(one.x - wanted) ? two : one);
    const nearestPoint = points.reduce(closer), { x } = nearestPoint;
    for (const { line, at, x: near, value } of points) {
      // The line has no value here, for example because its run is shorter or its validation comes later.
      if (beyond(line.x, x, NEAR_PIXELS * (frame.valueAt(1) - frame.valueAt(0)))) {
        rows.push([line, "\u2013", ""]);
        continue;
      }
      rows.push([line, ...this.readings(line, at, value)]);
      const style = `fill:${stroke(line)};stroke:var(--nbt-bg)`;
      parts.push(svg("circle", { cx: X(near), cy: Y(value), r: 3.2, style }));
    }
    parts.unshift(svg("line", { class: "nbt-cross", x1: X(x), x2: X(x), y1: TOP, y2: this.height - BOTTOM }));
    const place = known(spec.begin) ? stamp(spec.begin + x) : `${spec.xName} ${tickLabel(spec.xForm, x, 1)}`;
    const values = rows.slice(0, MOST_READ).map(([, value]) => value);
    const words = `${place}: ${values.join(" / ")}`;
    if (this.group.active === this) {
      this.showTip(spec.where ? spec.where(nearestPoint.line, nearestPoint.at) : place, rows, X(x), frame.width);
    } else {
      const corner = { x: frame.width - RIGHT, y: 9, "text-anchor": "end" };
      parts.push(svg("text", { class: "nbt-read", ...corner }, words));
    }
    return words;
  }

  /** Return a point's value, and its range and smoothed value if the line has them. */
  readings(line, at, value) {
    const read = (number) => readLabel(this.spec.yForm, number), more = [];
    if (line.low && line.high[at] > line.low[at]) more.push(`${read(line.low[at])} to ${read(line.high[at])}`);
    const weight = line.dots ? 0 : this.spec.smoothing || 0;
    if (weight > 0) more.push(`smoothed ${read(smoothed(line.y, weight)[at])}`);
    return [line.words ? line.words[at] : read(value), more.join(", ")];
  }

  /** Show the readout next to the pointer: the place, and a row for each line. */
  showTip(place, rows, x, width) {
    const table = element("table");
    table.append(...rows.slice(0, MOST_TIP_ROWS).map(([line, value, more]) => {
      const row = element("tr"), name = element("th", "", line.label);
      name.style.setProperty("--c", stroke(line));
      row.append(name, element("td", "", value), element("td", "", more));
      return row;
    }));
    const rest = rows.length - MOST_TIP_ROWS;
    const more = rest > 0 ? [element("small", "", `and ${rest} more`)] : [];
    this.tip.replaceChildren(element("b", "", place), table, ...more);
    this.tip.hidden = false;
    const within = this.node.getBoundingClientRect(), own = this.picture.getBoundingClientRect();
    this.tip.style.top = `${own.top - within.top + TOP}px`;
    const left = own.left - within.left + x, right = within.width - left;
    Object.assign(this.tip.style, x < width / 2
      ? { left: `${left + TIP_PIXELS}px`, right: "auto" }
      : { left: "auto", right: `${right + TIP_PIXELS}px` });
  }
}
