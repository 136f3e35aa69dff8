"""A job's resources over time as charts, with lines, limits, ticks and all labels.

The picture of `nbtrain job -o`, the panel and the static picture draw these charts without computing numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.usage import FIGURES
from nbtrain.monitor.chart_data import LEAST_BYTES, byte_ticks, share, ticks
from nbtrain.monitor.job_page import MOST_POINTS, JobPage
from nbtrain.monitor.usage import NodeUsage, Points

# More lines than this get one colour and no names.
MOST_NAMED = 8
# A bound higher than this many times the largest value is not drawn, because it would flatten the curves.
MOST_ABOVE = 5.0
# Margin above the highest point or bound, as a fraction of it.
MARGIN_FRACTION = 0.06
# Chart: title -> (beginnings of subjects, {metric: word in the legend}).
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
# Seconds between two ticks.
TIME_STEPS = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400),
    *(172_800, 432_000, 864_000, 1_728_000, 4_320_000, 8_640_000),
)


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    label: str
    points: Points


@dataclass(frozen=True)
class Bound:
    """The request or limit of one replica, or of one GPU; "request = limit" if they are equal."""

    word: str
    value: float


@dataclass(frozen=True)
class UsageChart:
    """One chart that has points."""

    title: str
    figure: str
    """Metric of base/usage.py; all lines have its unit."""
    lines: list[Line]
    bounds: list[Bound]
    """Bounds close enough to the curves to be drawn."""
    far: list[Bound]
    """Bounds that are not drawn."""

    @property
    def heading(self) -> str:
        """Return the title with the bounds that are not drawn."""
        words = [f"{bound.word} {axis_label(self.figure, bound.value)}" for bound in self.far]
        return ", ".join([self.title, *words])

    @property
    def top(self) -> float:
        """Return the greatest value that is drawn."""
        peak = max(max(line.points.maxima) for line in self.lines)
        return max([peak, *(bound.value for bound in self.bounds)])


def usage_charts(page: JobPage, most_points: int = MOST_POINTS) -> list[UsageChart]:
    """Return every chart that has a line, in the order of CHARTS."""
    found = []
    for title, (_, figures) in CHARTS.items():
        lines = list(_lines(page, title, most_points))
        # A single point is not a line; the second values come a second after a job's first ones.
        if any(len(line.points) > 1 for line in lines):
            figure = next(iter(figures))
            peak = max(max(line.points.maxima) for line in lines)
            bounds = list(_bounds(page, figure))
            near = [bound for bound in bounds if bound.value <= MOST_ABOVE * peak]
            found.append(
                UsageChart(title, figure, lines, near, [bound for bound in bounds if bound not in near])
            )
    return found


def _lines(page: JobPage, title: str, most_points: int) -> Iterator[Line]:
    beginnings, figures = CHARTS[title]
    for node in page.usage:
        for subject in node.subjects():
            if not subject.startswith(beginnings):
                continue
            # The sums include the ranks of several replicas.
            if subject.startswith("rank") and len(page.usage) > 1:
                continue
            for figure, word in figures.items():
                points = node.points(subject, figure).thinned(most_points)
                if len(points):
                    yield Line(_label(page, node, subject, word), points)


def _label(page: JobPage, node: NodeUsage, subject: str, word: str) -> str:
    if len(page.usage) == 1:
        name = "all" if subject in ("replica", "node") and not word else subject
        return word if word and subject in ("replica", "node") else name
    place = f"replica {node.node}" if subject in ("replica", "node") else f"replica {node.node}, {subject}"
    return f"{place}, {word}" if word else place


def _bounds(page: JobPage, figure: str) -> Iterator[Bound]:
    found = [("request", page.requests.get(figure)), ("limit", page.limits.get(figure))]
    if figure == "gpu_memory_bytes":
        sizes = [
            gpu.memory_bytes for replica in page.replicas for gpu in replica.gpus.values() if gpu.memory_bytes
        ]
        found = [("limit", min(sizes, default=None))]
    if found[0][1] is not None and found[0][1] == found[-1][1] and len(found) > 1:
        # One line, because the second would be hidden under it.
        found = [("request = limit", found[0][1])]
    for word, value in found:
        if value is not None:
            yield Bound(word, float(value))


def axis_label(figure: str, value: float, step: float = 1.0) -> str:
    """Format a value with its unit, as short as possible on an axis with ticks `step` apart."""
    unit = FIGURES[figure].unit
    if unit == "bytes":
        return amounts.size(value)
    if unit == "bytes/s":
        return f"{amounts.size(value)}/s"
    if unit == "share":
        return share(value, step)
    if unit == "cores" and value == 1:
        return "1 core"
    return f"{amounts.count(value)}/s" if unit == "1/s" else f"{amounts.count(value)} {unit}"


def drawn(chart: UsageChart, begin: float) -> dict[str, Any]:
    """Return a chart for a panel, in the form of chart_data.charts() with its curves and times since `begin`.

    title    includes the bounds that are not drawn
    form     the unit, a form of lab/ui/numbers.js
    begin    seconds since the epoch
    bounds   [{"word", "value"}]: lines across
    lines    [{"name", "label", "color": c0 to c7}]
    curves   {name: {"steps": seconds since begin, "values", "maxima", "words": each value with its unit}}
    x, y     [lowest, highest value]; x_ticks, y_ticks: [[value, label], ...]
    """
    last = max(line.points.times[-1] for line in chart.lines) - begin
    top = (chart.top or 1.0) * (1 + MARGIN_FRACTION)
    binary = FIGURES[chart.figure].unit.startswith("bytes")
    top = max(top, LEAST_BYTES) if binary else top
    named = len(chart.lines) <= MOST_NAMED
    lines, curves = [], {}
    for number, line in enumerate(chart.lines):
        color = f"c{number}" if named else "c0"
        lines.append({"name": str(number), "label": line.label, "color": color, "dots": False})
        curves[str(number)] = {
            "steps": [round(at - begin, 1) for at in line.points.times],
            # A picture shows at most six digits.
            "values": [float(f"{value:.6g}") for value in line.points.means],
            "maxima": [float(f"{value:.6g}") for value in line.points.maxima],
            "words": [value_label(chart.figure, value) for value in line.points.means],
        }
    at = byte_ticks(top) if binary else ticks(0.0, top, 4)
    labels = [axis_label(chart.figure, value, at[1] - at[0]) for value in at]
    return {
        "title": chart.heading,
        "form": FIGURES[chart.figure].unit,
        "begin": begin,
        "bounds": [{"word": bound.word, "value": bound.value} for bound in chart.bounds],
        "lines": lines,
        "named": named,
        "curves": curves,
        "x": [0.0, max(last, 1.0)],
        "y": [0.0, top],
        "x_ticks": time_ticks(max(last, 1.0), 5),
        "y_ticks": [
            [value, label.replace(".0 ", " ") if binary else label] for value, label in zip(at, labels)
        ],
    }


def value_label(figure: str, value: float) -> str:
    """Format a value for the pointer: cores with two digits, the rest as on the axis."""
    if FIGURES[figure].unit == "cores":
        return f"{value:.2f} cores"
    rounded = value if FIGURES[figure].unit in ("bytes", "bytes/s", "share") else round(value)
    return axis_label(figure, rounded)


def time_ticks(last: float, count: int) -> list[list[Any]]:
    """Return about `count` round times from 0 to `last` seconds, with labels such as "10 min"."""
    step = next((seconds for seconds in TIME_STEPS if last / seconds <= count), TIME_STEPS[-1])
    size, unit = next((size, unit) for size, unit in TIME_UNITS if step >= size)
    numbers = range(int(last / step) + 1)
    return [
        [float(number * step), f"{number * step / size:g} {unit}" if number else "0"] for number in numbers
    ]


TIME_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
