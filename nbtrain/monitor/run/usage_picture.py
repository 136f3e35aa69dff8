"""Picture of a job's life and resource use over time, drawn from the charts of usage_charts.py."""

import math
from typing import TYPE_CHECKING

from nbtrain.base.printing.theme import GREEN, GREY, RED, plot_look, themed
from nbtrain.base.run_directory.usage import FIGURES
from nbtrain.monitor.job.job_description import JobDescription
from nbtrain.monitor.job.usage_charts import UsageChart, axis_label, usage_charts
from nbtrain.monitor.run.pictures import shown_figure
from nbtrain.monitor.status.life import COLORS as LIFE_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Height of the bar with the job's life, as a fraction of a chart's height.
LIFE_HEIGHT = 0.16
BOUND_COLORS = {"request": GREEN, "limit": RED, "request = limit": RED}


def usage_figure(page: JobDescription) -> "Figure":
    """Draw the job's life, then every chart that has points, by time since submission."""
    charts = usage_charts(page)
    rows = max(1, -(-len(charts) // 2))
    figure = shown_figure(f"{page.name}, job {page.job_id}", 2.3 * rows + 1.3)
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[LIFE_HEIGHT, *[1.0] * rows])
    for place, chart in enumerate(charts):
        _chart(figure.add_subplot(grid[1 + place // 2, place % 2]), page, chart)
    _life(figure.add_subplot(grid[0, :]), page)
    if not charts:
        figure.text(0.5, 0.3, "no measurements", ha="center", color=GREY)
    return themed(figure)


def _life(axes: "Axes", page: JobDescription) -> None:
    """Draw the spans of the job's life as one bar, with the total time of each kind in the legend."""
    begin, end = page.life["begin"], page.life["end"]
    seconds, unit = unit_of(end - begin)
    names = {kind: f"{name} {words}" for kind, name, words in page.life["totals"]}
    for kind, first, last in page.life["spans"]:
        # Each kind appears in the legend only once.
        label = names.pop(kind, None)
        place = {"left": (first - begin) / seconds, "width": (last - first) / seconds}
        axes.barh(0.0, height=1.0, color=LIFE_COLORS[kind], label=label, linewidth=0, **place)
    axes.set_title("Life of the job", fontsize=10, loc="left")
    axes.set_xlabel(f"{unit} since it was submitted", fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    axes.set_xlim(0, max(end - begin, 1e-9) / seconds)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.9), ncols=5)


def unit_of(seconds: float) -> tuple[int, str]:
    """Return (length in seconds, name) of the largest unit in which a time is at least 3."""
    units = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
    return next((size, word) for size, word in units if seconds >= 3 * size or size == 1)


def _chart(axes: "Axes", page: JobDescription, chart: UsageChart) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    last = max(line.points.times[-1] for line in chart.lines) - page.created_at
    seconds, unit = unit_of(last)
    for number, line in enumerate(chart.lines):
        times = [(at - page.created_at) / seconds for at in line.points.times]
        look = plot_look(number)
        axes.plot(times, line.points.means, linewidth=1.3, label=line.label, **look)
        low = line.minima or line.points.means
        axes.fill_between(times, low, line.points.maxima, color=look["color"], alpha=0.15, linewidth=0)
    for bound in chart.bounds:
        axes.axhline(
            bound.value, color=BOUND_COLORS[bound.word], linewidth=1.0, linestyle="--", label=bound.word
        )
    axes.set_title(chart.heading, fontsize=10, loc="left")
    axes.set_xlabel(f"{unit} since it was submitted", fontsize=8)
    labels = axes.get_legend_handles_labels()[1]
    # Leave space for the legend above the curves.
    axes.set_ylim(0, (chart.top or 1.0) * (1.25 if len(labels) > 1 else 1.05))
    axes.tick_params(labelsize=8)
    if FIGURES[chart.figure].unit.startswith("bytes"):
        # Place ticks at round numbers of a binary unit.
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(axes.get_ylim()[1] / 6))))

    def tick_label(value: float, _: int | None) -> str:
        first, second = axes.yaxis.get_majorticklocs()[:2]
        return axis_label(chart.figure, value, second - first)

    axes.yaxis.set_major_formatter(FuncFormatter(tick_label))
    axes.grid(True, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(labels) > 1:
        axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=4)
