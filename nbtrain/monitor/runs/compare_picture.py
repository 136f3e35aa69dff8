"""A comparison of runs for readers: overlaid curves with matplotlib, and tables."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.look import SERIES, themed
from nbtrain.base.printing.report import Picture, Report, Sentence, Table
from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.pictures import scalars_of, shown_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("loss", "validation_loss", "tokens_per_second")


def comparison_figure(runs: Sequence[RunDir]) -> "Figure | None":
    """Draw each metric of DRAWN over the steps, one line per run; None if no run has a point."""
    found = {run.name: scalars_of(run) for run in runs}
    drawn = [name for name in DRAWN if any(name in series for series in found.values())]
    if not drawn:
        return None
    figure = shown_figure("", 3.4)
    for axes, name in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn):
        for at, (run, series) in enumerate(found.items()):
            if points := series.get(name):
                marker = "o" if len(points.steps) < 20 else None
                color = SERIES[at % len(SERIES)]
                axes.plot(
                    points.steps, points.values, color=color, label=run, linewidth=1.3, marker=marker, ms=3
                )
        axes.set_title(f"{name.replace('_', ' ')} ({BY_NAME[name].unit})", fontsize=10, loc="left")
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(True)
        axes.legend(fontsize=8, frameon=False)
    return themed(figure)


def comparison_report(runs: Sequence[RunDir], tables: Mapping[str, Any]) -> Report:
    """Return the tables of compare.compared() below the curves."""
    figures, settings = tables["figures"], tables["settings"]
    curves = Picture(lambda: _png(runs), f"curves of {', '.join(tables['names'])}")
    shown = Table(figures["heads"], figures["rows"], "Results")
    if settings["rows"]:
        return Report("", [curves, shown, Table(settings["heads"], settings["rows"], "Settings that differ")])
    return Report("", [curves, shown, Sentence("The runs have the same settings.")])


def _png(runs: Sequence[RunDir]) -> bytes:
    if (figure := comparison_figure(runs)) is None:
        return b""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
