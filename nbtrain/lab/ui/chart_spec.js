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
