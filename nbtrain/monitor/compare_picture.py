"""A comparison of runs for a report: overlaid curves with matplotlib, tables as HTML and text."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtrain.base.html_table import html_table
from nbtrain.base.look import SERIES, themed
from nbtrain.base.metrics import BY_NAME
from nbtrain.base.rundir import RunDir
from nbtrain.base.table import aligned
from nbtrain.monitor.pictures import scalars_of, shown_figure

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


def comparison_html(runs: Sequence[RunDir], tables: Mapping[str, Any]) -> str:
    """Return the tables of compare.compared() below the curves, for an output without a live front end."""
    figure = comparison_figure(runs)
    picture = ""
    if figure is not None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        data = base64.b64encode(buffer.getvalue()).decode()
        title = html.escape(f"curves of {', '.join(tables['names'])}")
        picture = f'<img alt="{title}" style="max-width:100%" src="data:image/png;base64,{data}">'
    figures, settings = tables["figures"], tables["settings"]
    parts = [picture, html_table(figures["heads"], figures["rows"], "Figures")]
    if settings["rows"]:
        parts.append(html_table(settings["heads"], settings["rows"], "Settings that differ"))
    else:
        parts.append("<p>The runs have the same settings.</p>")
    return "".join(parts)


def comparison_text(tables: Mapping[str, Any]) -> str:
    """Return the tables of compare.compared() as text for a terminal."""
    parts = []
    for title, name in (("Figures", "figures"), ("Settings that differ", "settings")):
        table = tables[name]
        if table["rows"]:
            parts.append("\n".join([title, *aligned([table["heads"], *table["rows"]])]))
    return "\n\n".join(parts)
