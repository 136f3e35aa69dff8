"""A job's resources over time as a picture: which charts, colours, and the lines of requests and limits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base import amounts
from nbtrain.base.usage import FIGURES
from nbtrain.monitor.job_page import MOST_POINTS, JobPage
from nbtrain.monitor.pictures import GREY, shown_figure
from nbtrain.monitor.usage import NodeUsage, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1f77b4", "#e8710a", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22")
REQUEST_COLOR, LIMIT_COLOR = "#2ca02c", "#d62728"
# More lines than this get one colour and no names.
MOST_NAMED = len(COLORS)
# A line that lies higher than so many times the greatest value would press the curves flat.
MOST_ABOVE = 5.0
# Chart: title -> (beginnings of subjects, {figure: word in the legend}).
CHARTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "CPU": (("replica", "rank"), {"cpu_cores": ""}),
    "Memory": (("replica", "rank"), {"memory_bytes": ""}),
    "GPU use": (("gpu",), {"gpu_fraction": ""}),
    "Tensor cores": (("gpu",), {"tensor_fraction": ""}),
    "GPU memory": (("gpu",), {"gpu_memory_bytes": ""}),
    "GPU temperature": (("gpu",), {"temperature_celsius": ""}),
    "GPU power": (("gpu",), {"power_watts": ""}),
    "SM clock": (("gpu",), {"sm_clock_mhz": ""}),
    "Network": (
        ("node",),
        {
            "network_received_bytes_per_second": "received",
            "network_sent_bytes_per_second": "sent",
            "rdma_received_bytes_per_second": "received, RDMA",
            "rdma_sent_bytes_per_second": "sent, RDMA",
        },
    ),
    "Disk": (
        ("replica",),
        {"disk_read_bytes_per_second": "read", "disk_write_bytes_per_second": "written"},
    ),
    "Disk operations of the node": (
        ("node",),
        {"disk_reads_per_second": "reads", "disk_writes_per_second": "writes"},
    ),
}


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    label: str
    points: Points


def usage_figure(page: JobPage) -> "Figure":
    """Every chart that has points, over the time since the job was submitted."""
    charts = {title: lines for title in CHARTS if (lines := list(_lines(page, title)))}
    rows = max(1, -(-len(charts) // 2))
    figure = shown_figure(f"{page.name}, job {page.job_id}", 2.3 * rows + 0.6)
    if not charts:
        figure.text(0.5, 0.5, "nothing was measured", ha="center", color=GREY)
        return figure
    axes = figure.subplots(rows, 2, squeeze=False)
    for place, (title, lines) in enumerate(charts.items()):
        _chart(axes[place // 2][place % 2], page, title, lines)
    if len(charts) % 2:
        axes[-1][1].set_visible(False)
    return figure


def _lines(page: JobPage, title: str) -> Iterator[Line]:
    beginnings, figures = CHARTS[title]
    for node in page.usage:
        for subject in node.subjects():
            if not subject.startswith(beginnings):
                continue
            # Ranks of several replicas are in their sums.
            if subject.startswith("rank") and len(page.usage) > 1:
                continue
            for figure, word in figures.items():
                points = node.points(subject, figure).thinned(MOST_POINTS)
                if len(points):
                    yield Line(_label(page, node, subject, word), points)


def _label(page: JobPage, node: NodeUsage, subject: str, word: str) -> str:
    if len(page.usage) == 1:
        name = "all" if subject in ("replica", "node") and not word else subject
        return word if word and subject in ("replica", "node") else name
    place = f"replica {node.node}" if subject in ("replica", "node") else f"replica {node.node}, {subject}"
    return f"{place}, {word}" if word else place


def _chart(axes: "Axes", page: JobPage, title: str, lines: list[Line]) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    figure = next(iter(CHARTS[title][1]))
    last = max(line.points.times[-1] for line in lines) - page.created_at
    seconds, unit = next(
        (size, word)
        for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
        if last >= 3 * size or size == 1
    )
    named = len(lines) <= MOST_NAMED
    for number, line in enumerate(lines):
        times = [(at - page.created_at) / seconds for at in line.points.times]
        color = COLORS[number % len(COLORS)] if named else COLORS[0]
        label = line.label if named else f"{len(lines)} lines" if not number else None
        width, opacity = (1.3, 1.0) if named else (0.6, 0.4)
        axes.plot(times, line.points.means, color=color, linewidth=width, alpha=opacity, label=label)
        if named:
            axes.fill_between(
                times, line.points.means, line.points.maxima, color=color, alpha=0.15, linewidth=0
            )
    peak = max(max(line.points.maxima) for line in lines)
    far = _bounds(axes, page, figure, peak)
    axes.set_title(f"{title}{far}", fontsize=10, loc="left", color="#1f2328")
    axes.set_xlabel(f"{unit} since it was submitted", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    if FIGURES[figure].unit.startswith("bytes"):
        # Round numbers of a binary unit.
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(axes.get_ylim()[1] / 6))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(figure, value)))
    axes.grid(True, color="#d8dce1", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)


def _bounds(axes: "Axes", page: JobPage, figure: str, peak: float) -> str:
    """Draw the request and limit of one replica, or of one GPU; returns words for those too far above."""
    found = [
        ("request", page.requests.get(figure), REQUEST_COLOR),
        ("limit", page.limits.get(figure), LIMIT_COLOR),
    ]
    if figure == "gpu_memory_bytes":
        sizes = [gpu.memory_bytes for one in page.replicas for gpu in one.gpus.values() if gpu.memory_bytes]
        found = [("limit", min(sizes, default=None), LIMIT_COLOR)]
    far = ""
    for word, value, color in found:
        if value is None:
            continue
        if value <= MOST_ABOVE * peak:
            axes.axhline(value, color=color, linewidth=1.0, linestyle="--", label=word)
        else:
            far += f", {word} {_tick(figure, value)}"
    return far


def _tick(figure: str, value: float) -> str:
    unit = FIGURES[figure].unit
    if unit == "bytes":
        return amounts.size(value)
    if unit == "bytes/s":
        return f"{amounts.size(value)}/s"
    if unit == "share":
        return f"{100 * value:.0f} %"
    return f"{amounts.count(value)}/s" if unit == "1/s" else f"{amounts.count(value)} {unit}"
