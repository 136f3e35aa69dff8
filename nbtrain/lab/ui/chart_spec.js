// The specs for chart.js: charts of a snapshot, of a job's resources and of metrics.

/** The charts of a snapshot (monitor/chart_data.py) by step. */
export const snapSpecs = (snap) =>
  snap.shown.charts.map((chart) => ({
    title: "",
    lines: chart.lines.map((line) => {
      const curve = snap.curves[line.name];
      return { ...line, x: curve.steps, y: curve.values.map((value) => value ?? NaN) };
    }),
    marks: snap.shown.marks.map(({ step, ...mark }) => ({ ...mark, x: step })),
    xName: "step",
    xForm: "whole",
    yName: chart.y_name,
    yForm: chart.form,
    fromZero: chart.from_zero,
    smoothing: chart.smoothing,
  }));

/** A chart of a job's resources (monitor/usage_charts.py) by the time since it was submitted. */
export const usageSpec = (chart) => ({
  title: chart.title,
  begin: chart.begin,
  named: chart.named,
  bounds: chart.bounds,
  lines: toldApart(chart.lines.map((line) => {
    const curve = chart.curves[line.name];
    return { ...line, x: curve.steps, y: curve.values, maxima: curve.maxima, words: curve.words };
  })),
  xName: "time",
  xForm: "seconds",
  yName: "",
  yForm: chart.form,
  fromZero: true,
  // A utilization is drawn on a scale up to 100 %.
  top: chart.form === "share" ? 1 : null,
});

const MOST_NAMED = 8;
const X_FORMS = { step: "whole", tokens: "count", time: "seconds" };

/**
 * The spec of a chart from an answer of the route metrics (monitor/metric_charts.py).
 *
 * chart    {title, names}; a comparison's names are runs, and `of` is the scalar that they show
 */
export function metricSpec(chart, { tags, series, marks }, { axis, begin, smoothing }) {
  const rows = new Map(tags.map((row) => [row.tag, row]));
  const first = rows.get(chart.of || chart.names[0]), named = chart.names.length <= MOST_NAMED;
  const x = (part) => (axis === "time" ? part.time.map((at) => at - begin) : part[axis]);
  const longer = (one, two) => (two.step.length > one.step.length ? two : one);
  const longest = Object.values(series).reduce(longer, { step: [], tokens: [] });
  const placed = ({ step, time }) => {
    if (axis === "step") return step;
    if (axis === "time") return time - begin;
    return longest.tokens.length ? longest.tokens[nearestStep(longest.step, step)] : NaN;
  };
  const lines = chart.names.flatMap((name, at) => {
    const part = series[name], row = chart.of ? { ...first, title: name } : rows.get(name);
    if (!part || !x(part).length) return [];
    const look = { label: row.title, color: named ? `c${at}` : "c0", dots: row.dots };
    return [{ name, ...look, x: x(part), y: part.value }];
  });
  return {
    title: chart.title,
    lines,
    named,
    marks: marks.map((mark) => ({ ...mark, x: placed(mark) })),
    begin: axis === "time" ? begin : undefined,
    xName: axis,
    xForm: X_FORMS[axis],
    yName: first.y_name,
    yForm: first.form,
    fromZero: first.from_zero,
    smoothing: first.smooth ? smoothing : 0,
  };
}

function nearestStep(steps, step) {
  const at = steps.findIndex((one) => one >= step);
  return at < 0 ? steps.length - 1 : at;
}

// The note of a curve that is identical to another one and therefore covers it.
const DASH_PIXELS = 6;

/** Return how many points two lines share if one is the beginning of the other, else 0. */
function commonPoints(one, two) {
  const length = Math.min(one.x.length, two.x.length);
  const same = (at) => one.x[at] === two.x[at] && Object.is(one.y[at], two.y[at]);
  return length > 1 && Array.from({ length }, (_, at) => at).every(same) ? length : 0;
}

/** Dash lines that cover an earlier one exactly, so that both are visible, and explain it in `note`. */
export function toldApart(lines) {
  return lines.map((line, at) => {
    const below = lines.slice(0, at).filter((one) => commonPoints(one, line));
    if (!below.length) return line;
    const whole = below.find((one) => one.x.length === line.x.length);
    const note = whole ? `equal to ${whole.label}` : `equal to ${below[0].label} while both last`;
    return { ...line, dash: `${DASH_PIXELS} ${DASH_PIXELS * below.length}`, note };
  });
}
