// What charts of a snapshot, of a job's resources and of metrics draw: their specs for chart.js.

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
  lines: chart.lines.map((line) => {
    const curve = chart.curves[line.name];
    return { ...line, x: curve.steps, y: curve.values, maxima: curve.maxima, words: curve.words };
  }),
  xName: "time",
  xForm: "seconds",
  yName: "",
  yForm: chart.form,
  fromZero: true,
});

// Curves that are read together stand in one chart; all others have one of their own.
const TOGETHER = [
  ["Loss", ["loss", "validation_loss", "test_loss"]],
  ["Perplexity", ["validation_perplexity", "test_perplexity"]],
  ["Learning rate", ["learning_rate"]],
  ["Gradient norm", ["grad_norm"]],
  ["Throughput", ["tokens_per_second"]],
  ["Samples per second", ["samples_per_second"]],
  ["Utilization", ["mfu", "hfu", "matmul_fraction"]],
  ["Time of a step", ["iteration_time"]],
  [
    "Parts of a step",
    [
      ...["data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "pipeline_seconds"],
      "communication_seconds",
    ],
  ],
  ["Computing, rank by rank", ["compute_max_seconds", "compute_median_seconds", "compute_min_seconds"]],
  ["Validation and checkpoints", ["evaluation_seconds", "checkpoint_seconds", "checkpoint_write_seconds"]],
  ["Memory", ["host_memory_bytes", "device_memory_bytes"]],
  ["Share of memory", ["host_memory_fraction", "device_memory_fraction"]],
  ["Steps that went wrong", ["skipped_steps", "overflow_steps", "loss_spikes", "rollbacks"]],
];
// Of no interest as curves: other curves have them as their axis.
const NO_CURVES = ["steps_vs_tokens", "steps_vs_samples"];
// These flutter; a smoothed schedule or count would be false.
const SMOOTHED = /loss|grad_norm|per_second|tflops|seconds|iteration_time|perplexity/;
const DOTTED = /validation|test_|evaluation|checkpoint/;
const SHARES = /^(mfu|hfu)$|_fraction$/;

/** Which charts there are: [{title, names, labels, unit}]; `tags` is [{tag, title, unit}]. */
export function metricCharts(tags) {
  const there = new Map(tags.filter(({ tag }) => !NO_CURVES.includes(tag)).map((row) => [row.tag, row]));
  const charts = [];
  const add = (title, names) => {
    const rows = names.map((name) => there.get(name)).filter(Boolean);
    names.forEach((name) => there.delete(name));
    if (rows.length)
      charts.push({
        title,
        names: rows.map(({ tag }) => tag),
        labels: rows.map((row) => row.title),
        unit: rows[0].unit,
      });
  };
  TOGETHER.forEach(([title, names]) => add(title, names));
  const blends = [...there.keys()].filter((name) => name.startsWith("loss/"));
  add("Loss of each dataset", blends);
  for (const [name, row] of [...there]) add(row.title[0].toUpperCase() + row.title.slice(1), [name]);
  return charts;
}

function metricForm(name, unit) {
  if (SHARES.test(name)) return "share";
  if (name === "learning_rate") return "scientific";
  if (["steps", "ranks", "sequences", "tokens"].includes(unit)) return "whole";
  return unit === "bytes" ? "bytes" : "number";
}

/** The spec of one of metricCharts() from an answer of the route metrics. */
export function metricSpec(chart, { series, marks }, { axis, begin, smoothing }) {
  // A comparison's lines have the names of runs, and say which scalar they are of.
  const first = chart.kind || chart.names[0], form = metricForm(first, chart.unit);
  const x = (part) => (axis === "time" ? part.time.map((at) => at - begin) : part[axis]);
  const longest = Object.values(series).reduce((one, two) => (two.step.length > one.step.length ? two : one));
  const placed = ({ step, time }) => {
    if (axis === "step") return step;
    if (axis === "time") return time - begin;
    return longest.tokens.length ? longest.tokens[nearestStep(longest.step, step)] : NaN;
  };
  const lines = chart.names.flatMap((name, at) => {
    const part = series[name];
    if (!part || !x(part).length) return [];
    const color = chart.names.length > 8 ? "c0" : `c${at}`;
    const dots = DOTTED.test(chart.kind || name);
    return [{ name, label: chart.labels[at], color, dots, x: x(part), y: part.value }];
  });
  return {
    title: chart.title,
    lines,
    named: lines.length <= 8,
    marks: marks.map((mark) => ({ ...mark, x: placed(mark) })),
    begin: axis === "time" ? begin : undefined,
    xName: axis,
    xForm: { step: "whole", tokens: "count", time: "seconds" }[axis],
    yName: form === "share" || form === "bytes" ? "" : chart.unit,
    yForm: form,
    fromZero: !/loss|perplexity|norm/.test(first),
    smoothing: SMOOTHED.test(first) ? smoothing : 0,
  };
}

function nearestStep(steps, step) {
  const at = steps.findIndex((one) => one >= step);
  return at < 0 ? steps.length - 1 : at;
}
