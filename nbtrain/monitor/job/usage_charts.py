"""Charts of a job's resource use over time, complete with lines, limits, ticks and labels.

`nbtrain job --picture`, the panel and the static picture only draw these charts and compute nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbtrain.base.printing.theme import line_look
from nbtrain.base.run_directory.usage import FIGURES, rank_subject
from nbtrain.base.text import amounts
from nbtrain.monitor.job.job_description import MOST_POINTS, JobDescription
from nbtrain.monitor.metrics.chart_data import LEAST_BYTES, byte_ticks, share, ticks
from nbtrain.monitor.usage.usage import NodeUsage, Points

# If a chart has more lines than this, each group of lines is replaced by its mean with a band, and by its
# highest and lowest line.
MOST_NAMED = 8
# Groups with at most this many lines are not replaced.
MOST_IN_GROUP = 3
GROUPS = {"replica": "replicas", "rank": "ranks", "gpu": "GPUs", "node": "machines"}
# A bound more than this many times above the largest value is not drawn, because it would flatten the curves.
MOST_ABOVE = 5.0
# Margin above the highest point or bound, as a fraction of its value.
MARGIN_FRACTION = 0.06
# {title of a chart: (prefixes of its subjects, {metric: word in the legend})}
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
# Possible distances between two ticks, in seconds.
TIME_STEPS = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400),
    *(172_800, 432_000, 864_000, 1_728_000, 4_320_000, 8_640_000),
)


@dataclass(frozen=True)
class Curve:
    """A line in a chart: a metric of one rank or replica over time, or the mean of a group of lines."""

    label: str
    points: Points
    group: str = ""
    """Group of lines that may be replaced by their mean, such as "ranks" or "machines, received"."""
    minima: list[float] | None = None
    """Lowest values of the group, if the line is a group's mean; the maxima are then the group's highest."""


@dataclass(frozen=True)
class Bound:
    """A request or limit of a replica or GPU, drawn as a horizontal line."""

    word: str
    value: float


@dataclass(frozen=True)
class UsageChart:
    """A chart with at least one line."""

    title: str
    figure: str
    """Metric in base/run_directory/usage.py whose unit applies to all lines."""
    lines: list[Curve]
    bounds: list[Bound]
    """Bounds close enough to the curves to be drawn."""
    far: list[Bound]
    """Bounds too far from the curves to be drawn."""

    @property
    def heading(self) -> str:
        """Title of the chart, followed by the bounds that are not drawn."""
        words = [f"{bound.word} {axis_label(self.figure, bound.value)}" for bound in self.far]
        return ", ".join([self.title, *words])

    @property
    def top(self) -> float:
        """Largest value that is drawn."""
        peak = max(max(line.points.maxima) for line in self.lines)
        return max([peak, *(bound.value for bound in self.bounds)])


def usage_charts(
    page: JobDescription, most_points: int = MOST_POINTS, rank: int | None = None
) -> list[UsageChart]:
    """Return every chart that has a line, in the order of CHARTS.

    With `rank`, the charts show only that rank.
    """
    found = []
    for title, (_, figures) in CHARTS.items():
        every = _lines(page, title, most_points)
        lines = list(every if rank is None else _of_rank(page, title, rank, most_points))
        if len(lines) > MOST_NAMED:
            lines = _grouped(lines, most_points)
        # A single point cannot be drawn as a line; the second point follows one second later.
        if any(len(line.points) > 1 for line in lines):
            figure = next(iter(figures))
            peak = max(max(line.points.maxima) for line in lines)
            bounds = list(_bounds(page, figure))
            near = [bound for bound in bounds if bound.value <= MOST_ABOVE * peak]
            found.append(
                UsageChart(title, figure, lines, near, [bound for bound in bounds if bound not in near])
            )
    return found


def _lines(page: JobDescription, title: str, most_points: int) -> Iterator[Curve]:
    beginnings, figures = CHARTS[title]
    for node in page.usage:
        for subject in node.subjects():
            if not subject.startswith(beginnings):
                continue
            # With several replicas, show only the replicas, whose values include the values of their ranks.
            if subject.startswith("rank") and len(page.usage) > 1:
                continue
            for figure, word in figures.items():
                points = node.points(subject, figure).thinned(most_points)
                if len(points):
                    kind = next(words for begin, words in GROUPS.items() if subject.startswith(begin))
                    group = f"{kind}, {word}" if word else kind
                    yield Curve(_label(page, node, subject, word), points, group)


def _of_rank(page: JobDescription, title: str, rank: int, most_points: int) -> Iterator[Curve]:
    """Yield the lines of a rank. If it is the only rank of its replica, its values are the replica's."""
    beginnings, figures = CHARTS[title]
    replica = next((one for one in page.replicas if rank in [row.rank for row in one.ranks]), None)
    if replica is None or "rank" not in beginnings:
        return
    subject = rank_subject(rank) if len(replica.ranks) > 1 else "replica"
    for node in page.usage:
        for figure, word in figures.items() if node.node == replica.index else ():
            points = node.points(subject, figure).thinned(most_points)
            if len(points):
                yield Curve(", ".join(filter(None, (f"rank {rank}", word))), points)


def _grouped(lines: list[Curve], most_points: int) -> list[Curve]:
    """Replace each large group of lines by its mean with a band, and by its highest and lowest line."""
    found = []
    for group in dict.fromkeys(line.group for line in lines):
        own = [line for line in lines if line.group == group]
        if len(own) <= MOST_IN_GROUP:
            found += own
            continue
        size = {id(line): math.fsum(line.points.means) / len(line.points) for line in own}
        highest, lowest = max(own, key=lambda line: size[id(line)]), min(own, key=lambda line: size[id(line)])
        found.append(_mean(own, f"mean of {len(own)} {group}", most_points))
        if size[id(highest)] > size[id(lowest)]:
            found += [_extreme(highest, "highest"), _extreme(lowest, "lowest")]
    return found


def _extreme(line: Curve, word: str) -> Curve:
    """Return a copy of the line that has `word` (highest or lowest) in its label and no band."""
    points = line.points
    return Curve(f"{line.label}, {word} mean", Points(points.times, points.means, points.means))


def _mean(lines: list[Curve], label: str, most_points: int) -> Curve:
    """Return the mean of several lines over intervals of equal length, with lowest and highest values."""
    begin = min(line.points.times[0] for line in lines)
    length = max(max(line.points.times) for line in lines) - begin
    count = min(most_points, max(len(line.points) for line in lines))
    parts: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    for line in lines:
        for at, mean, most in zip(line.points.times, line.points.means, line.points.maxima):
            part = min(count - 1, int((at - begin) / length * count)) if length > 0 else 0
            parts[part].append((mean, most))
    known = [number for number, part in enumerate(parts) if part]
    return Curve(
        label,
        Points(
            [begin + length * (number + 1) / count for number in known],
            [math.fsum(mean for mean, _ in parts[number]) / len(parts[number]) for number in known],
            [max(most for _, most in parts[number]) for number in known],
        ),
        minima=[min(mean for mean, _ in parts[number]) for number in known],
    )


def _label(page: JobDescription, node: NodeUsage, subject: str, word: str) -> str:
    if len(page.usage) == 1:
        name = "all ranks" if subject in ("replica", "node") and not word else subject
        return word if word and subject in ("replica", "node") else name
    place = f"replica {node.node}" if subject in ("replica", "node") else f"replica {node.node}, {subject}"
    return f"{place}, {word}" if word else place


def _bounds(page: JobDescription, figure: str) -> Iterator[Bound]:
    found = [("request", page.requests.get(figure)), ("limit", page.limits.get(figure))]
    if figure == "gpu_memory_bytes":
        sizes = [
            gpu.memory_bytes for replica in page.replicas for gpu in replica.gpus.values() if gpu.memory_bytes
        ]
        found = [("limit", min(sizes, default=None))]
    if found[0][1] is not None and found[0][1] == found[-1][1] and len(found) > 1:
        # Draw a single line, because a second one would be hidden under the first.
        found = [("request = limit", found[0][1])]
    for word, value in found:
        if value is not None:
            yield Bound(word, float(value))


def axis_label(figure: str, value: float, step: float = 1.0) -> str:
    """Format a value with its unit and enough digits for ticks that are `step` apart."""
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
    """Return a chart for the panel, in the form of chart_data.charts(), with its curves.

    title    title, with the bounds that are not drawn
    form     unit, which is also a form in lab/ui/charts/numbers.js
    begin    start of the time axis, in seconds since the epoch
    bounds   [{"word", "value"}]: horizontal lines
    lines    [{"name", "label", "color", "dash", "dots"}], styled as in base/printing/theme.py
    curves   {name: {"steps": seconds since begin, "values", "maxima", "minima" (only for a group's mean),
             "words": each value with its unit}}
    x, y     [lowest, highest value] of each axis
    x_ticks, y_ticks
             [[value, label], ...]
    """
    last = max(line.points.times[-1] for line in chart.lines) - begin
    top = (chart.top or 1.0) * (1 + MARGIN_FRACTION)
    binary = FIGURES[chart.figure].unit.startswith("bytes")
    top = max(top, LEAST_BYTES) if binary else top
    lines, curves = [], {}
    for number, line in enumerate(chart.lines):
        lines.append({"name": str(number), "label": line.label, **line_look(number), "dots": False})
        curves[str(number)] = {
            "steps": [round(at - begin, 1) for at in line.points.times],
            # A picture shows at most six digits.
            "values": [float(f"{value:.6g}") for value in line.points.means],
            "maxima": [float(f"{value:.6g}") for value in line.points.maxima],
            **({"minima": [float(f"{value:.6g}") for value in line.minima]} if line.minima else {}),
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
        "curves": curves,
        "x": [0.0, max(last, 1.0)],
        "y": [0.0, top],
        "x_ticks": time_ticks(max(last, 1.0), 5),
        "y_ticks": [
            [value, label.replace(".0 ", " ") if binary else label] for value, label in zip(at, labels)
        ],
    }


def value_label(figure: str, value: float) -> str:
    """Format a value for a tooltip: cores with two decimals, other units as on the axis."""
    if FIGURES[figure].unit == "cores":
        return f"{value:.2f} cores"
    rounded = value if FIGURES[figure].unit in ("bytes", "bytes/s", "share") else round(value)
    return axis_label(figure, rounded)


def time_ticks(last: float, count: int) -> list[list[Any]]:
    """Return about `count` ticks at round times from 0 to `last` seconds, as [seconds, label]."""
    step = next((seconds for seconds in TIME_STEPS if last / seconds <= count), TIME_STEPS[-1])
    size, unit = next((size, unit) for size, unit in TIME_UNITS if step >= size)
    numbers = range(int(last / step) + 1)
    return [
        [float(number * step), f"{number * step / size:g} {unit}" if number else "0"] for number in numbers
    ]


TIME_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
