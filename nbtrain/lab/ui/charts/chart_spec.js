// The specs that chart.js draws, for the charts of a snapshot, of a job's resources and of metrics.

import { count, nearest, whole } from "./numbers.js";
import { known, stamp } from "../elements/dom.js";


/** The place of a point in words: "step 1,200 \u00b7 2.5M tokens \u00b7 2026-11-23 14:02:11 GMT+1". */
const placeWords = ({ step, tokens, time }) => [
  `step ${whole(step, 1)}`,
  ...(known(tokens) ? [`${count(tokens)} tokens`] : []),
  ...(known(time) ? [stamp(time)] : []),
].join(" \u00b7 ");

/** The legend's note about a line's NaN: "NaN since step 121". `last` is the last step of the curve. */
function gapNote(bad, last) {
  if (!bad || !bad.length) return {};
  const [from, to] = bad[bad.length - 1], steps = to > from ? `steps ${whole(from, 1)} to ${whole(to, 1)}` : `step ${whole(from, 1)}`;
  if (to >= last) return { note: `NaN since step ${whole(from, 1)}` };
  return { note: `NaN at ${bad.length > 1 ? `${bad.length} places, the last at ` : ""}${steps}` };
}

const numbers = (values) => values && values.map((value) => value ?? NaN);

/** Return the specs of a snapshot's charts (monitor/metrics/chart_data.py), by step. */
export const snapSpecs = (snap) =>
  snap.shown.charts.map((chart) => ({
    title: "",
    lines: chart.lines.map((line) => {
      const { steps, values, low, high, bad } = snap.curves[line.name];
      const note = gapNote(bad, steps[steps.length - 1]);
      return { ...line, x: steps, y: numbers(values), low: numbers(low), high: numbers(high), bad, ...note };
    }),
    where: (line, at) => {
      // Only the loss has times and tokens; other curves are logged at the same steps.
      const { steps, tokens = [], times = [] } = snap.curves.loss, step = line.x[at], near = nearest(steps, step);
      const same = steps[near] === step;
      return placeWords({ step, tokens: same ? tokens[near] : null, time: same ? times[near] : null });
    },
    marks: snap.shown.marks.map(({ step, ...mark }) => ({ ...mark, x: step })),
    xName: "step",
    xForm: "whole",
    yName: chart.y_name,
    yForm: chart.form,
    fromZero: chart.from_zero,
    smoothing: chart.smoothing,
  }));

/** Return the spec of a chart of a job's resources (monitor/job/usage_charts.py), by the time since the submission. */
export const usageSpec = (chart) => ({
  title: chart.title,
  begin: chart.begin,
  bounds: chart.bounds,
  lines: toldApart(equalTogether(chart.lines.map((line) => {
    const curve = chart.curves[line.name];
    // The band reaches from each mean, or from the lowest value of a group, up to the largest sample of the interval.
    const band = curve.maxima ? { low: curve.minima || curve.values, high: curve.maxima } : {};
    return { ...line, x: curve.steps, y: curve.values, ...band, words: curve.words };
  }))),
  xName: "time",
  xForm: "seconds",
  yName: "",
  yForm: chart.form,
  fromZero: true,
  // Utilization is drawn on a scale up to 100 %.
  top: chart.form === "share" ? 1 : null,
});

// Four colours that differ for colour-blind readers too; further lines repeat them with dashes (base/printing/theme.py).
const LINE_COLORS = 4;
const LINE_DASHES = ["", "7 3", "2 3"];

/** Return the colour and dashes of a chart's line by its index. */
export const lineLook = (at) => ({
  color: `c${at % LINE_COLORS}`,
  dash: LINE_DASHES[Math.floor(at / LINE_COLORS) % LINE_DASHES.length],
});

const X_FORMS = { step: "whole", tokens: "count", time: "seconds", flops: "count", cost: "number" };

/**
 * Return the spec of a chart from a response of the route metrics (monitor/metrics/metric_charts.py).
 *
 * chart    {title, names}; in a comparison {title, names, of}: the names are runs, and `of` is the scalar to show
 */
export function metricSpec(chart, { tags, series, marks }, { axis, begin, smoothing }) {
  const rows = new Map(tags.map((row) => [row.tag, row]));
  const first = rows.get(chart.of || chart.names[0]);
  const x = (part) => (axis === "time" ? part.time.map((at) => at - begin) : part[axis]);
  const longer = (one, two) => (two.step.length > one.step.length ? two : one);
  const longest = Object.values(series).reduce(longer, { step: [], tokens: [] });
  const placed = ({ step, time }) => {
    if (axis === "step") return step;
    if (axis === "time") return time - begin;
    return longest.tokens.length ? longest.tokens[nearestStep(longest.step, step)] : NaN;
  };
  // A step that is not among the points of a thinned curve is placed at the nearest one.
  const xOf = (part) => (step) => (axis === "step" ? step : x(part)[nearest(part.step, step)]);
  const lines = chart.names.flatMap((name, at) => {
    const part = series[name], row = chart.of ? { ...first, title: name } : rows.get(name);
    if (!part || !x(part).length) return [];
    const look = { label: row.title, ...lineLook(at), dots: row.dots };
    const last = part.step[part.step.length - 1], bad = part.bad && part.bad.map((ends) => ends.map(xOf(part)));
    const band = { low: numbers(part.low), high: numbers(part.high), bad, ...gapNote(part.bad, last) };
    return [{ name, ...look, x: x(part), y: numbers(part.value), part, ...band }];
  });
  return {
    title: chart.title,
    lines,
    marks: marks.map((mark) => ({ ...mark, x: placed(mark) })),
    begin: axis === "time" ? begin : undefined,
    xName: axis,
    xForm: X_FORMS[axis],
    yName: first.y_name,
    yForm: first.form,
    fromZero: first.from_zero,
    smoothing: first.smooth ? smoothing : 0,
    where: ({ part }, at) =>
      placeWords({ step: part.step[at], tokens: part.tokens && part.tokens[at], time: part.time[at] }),
  };
}

function nearestStep(steps, step) {
  const at = steps.findIndex((one) => one >= step);
  return at < 0 ? steps.length - 1 : at;
}

// Length of the dashes of a curve that covers an identical curve.
const DASH_PIXELS = 6;
const MOST_EQUAL = 3;

/** Return how many points two lines share if one is the beginning of the other; otherwise 0. */
function commonPoints(one, two) {
  const length = Math.min(one.x.length, two.x.length);
  const same = (at) => one.x[at] === two.x[at] && Object.is(one.y[at], two.y[at]);
  return length > 1 && Array.from({ length }, (_, at) => at).every(same) ? length : 0;
}

/** Draw more than MOST_EQUAL lines with the same points as one, such as the idle GPUs of eight replicas. */
export function equalTogether(lines) {
  const groups = [];
  for (const line of lines) {
    const same = groups.find(([first]) => first.x.length === line.x.length && commonPoints(first, line));
    if (same) same.push(line);
    else groups.push([line]);
  }
  return groups.flatMap((group) => {
    if (group.length <= MOST_EQUAL) return group;
    const names = group.map(({ label }) => label), rest = names.length - 2;
    return [{ ...group[0], label: `${names.length} equal lines: ${names[0]}, ${names[1]} and ${rest} more` }];
  });
}

/** Dash the lines that exactly cover an earlier line, so that both are visible, and explain this in their `note`. */
export function toldApart(lines) {
  return lines.map((line, at) => {
    const below = lines.slice(0, at).filter((one) => commonPoints(one, line));
    if (!below.length) return line;
    const whole = below.find((one) => one.x.length === line.x.length);
    const note = whole ? `equal to ${whole.label}` : `equal to ${below[0].label} where both have points`;
    return { ...line, dash: `${DASH_PIXELS} ${DASH_PIXELS * below.length}`, note };
  });
}
