// One chart of a snapshot or of a job's resources. Its range, ticks and labels come from
// monitor/chart_data.py and monitor/usage_charts.py; here they are placed.

import { clock, element, known } from "./words.js";

const RIGHT = 8, TOP = 8, BOTTOM = 18;

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (known(text)) node.textContent = text;
  return node;
}

// Values that have room beside a chart's title.
const MOST_READ = 4;

const stroke = (line) => `var(--nbt-${line.color})`;

export class Chart {
  constructor(height, left = 46) {
    this.height = height;
    this.left = left;
    this.node = element("div", "nbt-chart");
    this.header = element("header");
    this.readout = element("output");
    this.picture = svg("svg", { height, role: "img" });
    this.node.append(this.header, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => {
      this.hovered = null;
      this.draw();
    });
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    this.hovered = (event.clientX - box.left - this.left) / Math.max(1, box.width - this.left - RIGHT);
    this.draw();
  }

  show(chart, curves) {
    this.chart = chart;
    this.curves = chart.lines.map((line) => curves[line.name]);
    const marks = chart.named === false
      ? [element("i", "", `${chart.lines.length} lines`)]
      : chart.lines.map((line) => {
          const mark = element("i", "", line.label);
          mark.style.setProperty("--c", stroke(line));
          return mark;
        });
    for (const bound of chart.bounds || []) marks.push(element("i", `nbt-${bound.word}`, bound.word));
    if (chart.title) marks.unshift(element("b", "", chart.title));
    this.header.replaceChildren(...marks, this.readout);
    const names = chart.lines.map((line) => line.label).join(", ");
    this.picture.setAttribute("aria-label", chart.title ? `${chart.title}: ${names}` : names);
    this.draw();
  }

  draw() {
    const chart = this.chart, height = this.height, LEFT = this.left;
    const width = this.picture.clientWidth || this.node.clientWidth - 24;
    if (!chart || width < 40) return;
    this.readout.textContent = "";
    if (!chart.x) {
      const place = { x: width / 2, y: height / 2, "text-anchor": "middle" };
      this.picture.replaceChildren(svg("text", place, "no points yet"));
      return;
    }
    const [x0, x1] = chart.x, [y0, y1] = chart.y;
    const X = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const Y = (y) => TOP + ((y1 - y) / (y1 - y0)) * (height - TOP - BOTTOM);
    const parts = [];
    for (const [y, label] of chart.y_ticks) {
      parts.push(svg("line", { class: "nbt-grid", x1: LEFT, x2: width - RIGHT, y1: Y(y), y2: Y(y) }));
      parts.push(svg("text", { x: LEFT - 6, y: Y(y) + 3, "text-anchor": "end" }, label));
    }
    for (const [x, label] of chart.x_ticks) {
      const anchor = X(x) > width - 30 ? "end" : "middle";
      parts.push(svg("text", { x: X(x), y: height - 4, "text-anchor": anchor }, label));
    }
    for (const { word, value } of chart.bounds || []) {
      const across = { x1: LEFT, x2: width - RIGHT, y1: Y(value), y2: Y(value) };
      parts.push(svg("line", { class: `nbt-bound nbt-${word}`, ...across }));
    }
    chart.lines.forEach((line, at) => parts.push(...this.line(line, this.curves[at], X, Y)));
    if (known(this.hovered) && this.hovered >= 0 && this.hovered <= 1)
      parts.push(...this.hover(x0 + this.hovered * (x1 - x0), X, Y));
    this.picture.replaceChildren(...parts);
  }

  line(line, curve, X, Y) {
    const points = curve.steps
      .map((step, at) => (known(curve.values[at]) ? [X(step), Y(curve.values[at])] : null))
      .filter(known);
    const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    const style = `fill:none;stroke:${stroke(line)};stroke-width:1.6;stroke-linejoin:round`;
    const parts = [];
    if (curve.maxima && curve.maxima.some((most, at) => most > curve.values[at])) {
      // Down-sampled: from each mean to the greatest sample of its stretch.
      const above = curve.steps.map((step, at) => `${X(step).toFixed(1)},${Y(curve.maxima[at]).toFixed(1)}`);
      const band = `${path} ${above.reverse().join(" ")}`;
      parts.push(svg("polygon", { points: band, style: `fill:${stroke(line)};opacity:.15` }));
    }
    parts.push(svg("polyline", { points: path, style }));
    if (line.dots && points.length < 80)
      for (const [cx, cy] of points)
        parts.push(svg("circle", { cx, cy, r: 2.4, style: `fill:${stroke(line)}` }));
    return parts;
  }

  /** Marks the points nearest to the step under the pointer and reads their values out. */
  hover(wanted, X, Y) {
    const values = [], parts = [];
    let step = null;
    this.curves.forEach((curve, at) => {
      if (!curve.steps.length) return;
      const near = nearest(curve.steps, wanted), value = curve.values[near];
      if (!known(value)) return;
      if (at === 0) step = curve.steps[near];
      values.push(curve.words ? curve.words[near] : value);
      const style = `fill:${stroke(this.chart.lines[at])};stroke:var(--nbt-bg)`;
      parts.push(svg("circle", { cx: X(curve.steps[near]), cy: Y(value), r: 3.2, style }));
    });
    const { begin } = this.chart;
    const words = known(begin) ? clock(begin + step) : `step ${known(step) && step.toLocaleString("en-US")}`;
    this.readout.textContent = (known(step) ? `${words}  ` : "") + values.slice(0, MOST_READ).join(" / ");
    return parts;
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
