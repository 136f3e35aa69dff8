"""A comparison of runs as a report: overlaid curves drawn with matplotlib, and tables."""

import functools
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.report import Block, Picture, Pictures, Report, Sentence, Table
from nbtrain.base.printing.theme import plot_look, themed
from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.metrics.curves import drawn_points
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.run.pictures import scalars_of, shown_figure
from nbtrain.monitor.runs.compare import MOST_RUNS
from nbtrain.monitor.status.run_status import UNKNOWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("loss", "validation_loss", "tokens_per_second")
# Sizes in inches: height of the curves, height of each run's name below them, width of a picture in a
# notebook.
FIGURE_HEIGHT, LEGEND_HEIGHT, PICTURE_WIDTH = 2.7, 0.19, 2.9
# Marks the best value of a row, as on the live page.
BEST = " \u2605"


def comparison_figure(runs: Sequence[RunDir]) -> "Figure | None":
    """Draw each metric in DRAWN over the steps, with one line per run; None if no run has a point.

    Raises ConfigError for more than MOST_RUNS runs.
    """
    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"{len(runs)} runs are too many: a picture shows at most {MOST_RUNS}. Choose fewer runs, or draw "
            "a sweep's settings with `nbtrain sweep NAME --status -o FILE`."
        )
    found = {run.name: scalars_of(run) for run in runs}
    return _figure(found, _drawn(found), 11.0)


def _drawn(found: Mapping[str, Mapping[str, Series]]) -> list[str]:
    return [name for name in DRAWN if any(name in series for series in found.values())]


def _figure(found: Mapping[str, Mapping[str, Series]], names: Sequence[str], width: float) -> "Figure | None":
    """Draw the metrics next to each other, with the names of the runs below; None without a metric."""
    if not names:
        return None
    figure = shown_figure("", FIGURE_HEIGHT + LEGEND_HEIGHT * len(found), width)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        for at, (run, series) in enumerate(found.items()):
            points = series.get(name) or Series()
            shown = drawn_points(points.values)
            steps = [points.steps[index] for index in shown]
            values = [points.values[index] for index in shown]
            marker = "o" if 0 < len(steps) < 20 else None
            axes.plot(steps, values, label=run, linewidth=1.3, marker=marker, ms=3, **plot_look(at))
        axes.set_title(f"{name.replace('_', ' ')} ({BY_NAME[name].unit})", fontsize=10, loc="left")
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(True)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=8, frameon=False)
    return themed(figure)


def comparison_report(runs: Sequence[RunDir], tables: Mapping[str, Any]) -> Report:
    """Return a report with curves and the tables of compare.compared().

    With more than MOST_RUNS runs, the report is a single table with one row per run.
    """
    figures, settings = tables["figures"], tables["settings"]
    if len(runs) > MOST_RUNS:
        return _report_by_run(tables)
    names = ", ".join(tables["names"])
    read = functools.cache(lambda: {run.name: scalars_of(run) for run in runs})
    curves = Pictures([Picture(functools.partial(_png, read, name), f"{name} of {names}") for name in DRAWN])
    rows, has_best = [], False
    for row, values, better in zip(figures["rows"], figures["values"], figures["better"]):
        best = best_of(values, better)
        marks = [BEST if best is not None and value == best else "" for value in values]
        rows.append([row[0], *(f"{text}{mark}" for text, mark in zip(row[1:], marks))])
        has_best = has_best or any(marks)
    blocks: list[Block] = [curves, Table(figures["heads"], rows, "Results")]
    if has_best:
        blocks.append(Sentence(f"{BEST.strip()} marks the best value of a row."))
    if settings["rows"]:
        return Report("", [*blocks, Table(settings["heads"], settings["rows"], "Settings that differ")])
    return Report("", [*blocks, Sentence("The runs have the same settings.")])


def _report_by_run(tables: Mapping[str, Any]) -> Report:
    """Return a report with one table: a row per run and published entry, a column per difference.

    The columns are the settings and the results that differ.
    """
    figures, settings = tables["figures"], tables["settings"]
    names = [*tables["names"], *tables["published"]]
    # A published entry usually lacks most figures, so ignore its unknown values here.
    end = 1 + len(tables["names"])
    differing = [
        row
        for row in figures["rows"]
        if len({*row[1:end], *(words for words in row[end:] if words != UNKNOWN)}) > 1
    ]
    rows = [*settings["rows"], *differing]
    marked = dict(zip((row[0] for row in figures["rows"]), zip(figures["values"], figures["better"])))
    columns, has_best = [], False
    for name, *texts in rows:
        values, better = marked.get(name, ((), ""))
        best = best_of(values, better)
        has_best = has_best or best is not None
        marks = [BEST if best is not None and value == best else "" for value in values] or [""] * len(texts)
        # Published figures have no settings.
        texts += [""] * (len(names) - len(texts))
        columns.append([f"{text}{mark}" for text, mark in itertools.zip_longest(texts, marks, fillvalue="")])
    table = [[name, *(column[at] for column in columns)] for at, name in enumerate(names)]
    blocks: list[Block] = [Table(["run", *(row[0] for row in rows)], table, "Runs and their differences")]
    if has_best:
        blocks.append(Sentence(f"{BEST.strip()} marks the best value of a column."))
    return Report("", blocks)


def best_of(values: Sequence[float | None], better: str) -> float | None:
    """Return the best number of a row: the lowest if `better` is "low", the highest if it is "high".

    Returns None if `better` is "" or if fewer than two different numbers are known.
    """
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if not better or len(set(numbers)) < 2:
        return None
    return min(numbers) if better == "low" else max(numbers)


def _png(read: Callable[[], dict[str, dict[str, Series]]], name: str) -> bytes:
    found = read()
    if (figure := _figure(found, [name] if name in _drawn(found) else [], PICTURE_WIDTH)) is None:
        return b""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
