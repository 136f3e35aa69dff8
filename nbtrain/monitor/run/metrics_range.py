"""Curves of a run on request: scalars by step, tokens or time, in a given range and number of points.

    metrics(view, CurvesRequest(("loss",), "tokens", 1e6, 2e6))
        ->  {"tags", "charts", "series", "marks", "reading"}

If a range has too many points, each interval is reduced to its mean, lowest and highest value, so that both
the trend and the spikes stay visible at any zoom.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.metrics import BY_NAME, name_of, scalar
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.nearest import nearest
from nbtrain.base.text.order import natural
from nbtrain.monitor.metrics.curves import Curve, CurveReader, band, curve_part, thinned_means
from nbtrain.monitor.metrics.metric_charts import OF_CODE, OF_DATASETS, OF_TASKS, how_drawn, metric_charts
from nbtrain.monitor.metrics.metrics_reader import Row, ScalarReader
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.metrics.tokens import TokensBySteps
from nbtrain.monitor.run.advice import marks
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.usage.resources import ProcessTable

# The same names as on the tiles of a run (run_description.py).
TITLES = {
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "tokens_per_second": "throughput",
    "mfu": "MFU",
    "hfu": "HFU",
}
AXES = ("step", "tokens", "time")
MOST_TAGS = 64
POINTS = 500
MOST_POINTS = 2000
# Time limit for reading files in one response; files that were not read in time are in the next response.
READ_SECONDS = 0.15
DETAIL_SECONDS = 2.0
# Seconds of reading for each piece of a download.
PIECE_SECONDS = 0.05
PROCESSES = ProcessTable(age_seconds=0.9)
"""Process table that all views of a server share, because each open panel asks once a second."""


@dataclass(frozen=True)
class CurvesRequest:
    """A request for curves: names of scalars, range on the x axis, and maximum number of points."""

    names: tuple[str, ...]
    x: str = "step"
    first: float | None = None
    last: float | None = None
    points: int = POINTS


def curve_view(run: RunDir) -> RunView:
    """Return a view with thinned curves, for a process that reads many runs."""
    reader = CurveReader(run.tensorboard, lambda tag: name_of(tag) is not None)
    return RunView(run, reader, READ_SECONDS, PROCESSES)


def metrics(view: RunView, request: CurvesRequest) -> dict[str, Any]:
    """Return the scalars of the requested range.

    {"tags", "charts", "series": {name: {step, time, tokens, value, num_points}}, "marks", "reading"}

    If a series has too many points, `value` is the mean of each interval, and the series also has "low" and
    "high". A series with NaN or Inf has "bad": [[first step, last step], ...].

    `tags` lists all scalars of the run, and `charts` groups those that are drawn together. `reading` is the
    fraction of the metrics files that has been read, which is below 1 shortly after the first request. Raises
    ConfigError for an unknown scalar.
    """
    tags = {name: _tag(name) for name in request.names}
    with view.lock:
        reader = view.reader
        reader.refresh(READ_SECONDS)
        known = {name: reader.series.get(tag, Series()) for name, tag in tags.items()}
        to_tokens = TokensBySteps.of(reader)
        found = {name: _inside(points, request, to_tokens) for name, points in known.items()}
        coarse = {
            tags[name]: (points[0][0], points[0][-1])
            for name, points in found.items()
            if points[0] and _width(known[name]) > 1 and len(points[0]) < request.points
        }
        if coarse and isinstance(reader, CurveReader) and (request.first, request.last) != (None, None):
            # The thinned points are too far apart for this range, so read the range from the files.
            first, last = min(one for one, _ in coarse.values()), max(one for _, one in coarse.values())
            detail = reader.detail(coarse, first, last, DETAIL_SECONDS)
            found |= {
                name: _inside(detail[tag], request, to_tokens) for name, tag in tags.items() if tag in detail
            }
        read = view.read_fraction()
        there = _known_tags(reader)
    records = (JobRecord.read(view.run.job(job_id).job_json) for job_id in view.run.job_ids())
    return {
        "tags": there,
        "charts": metric_charts(there),
        "series": {
            name: _series(points, known[name], request.points, to_tokens) for name, points in found.items()
        },
        "marks": marks(view.run, [record for record in records if record], view.events()),
        "reading": read,
    }


def whole_metrics(view: RunView, request: CurvesRequest, seconds: float) -> dict[str, Any]:
    """Call metrics() until all files are read or `seconds` have passed, and return its last result."""
    deadline = time.monotonic() + seconds
    answer = metrics(view, request)
    while answer["reading"] < 1 and time.monotonic() < deadline:
        answer = metrics(view, request)
    return answer


def _tag(name: str) -> str:
    try:
        return scalar(name).tag
    except KeyError:
        raise ConfigError(f"{name[:80]!r} is not one of nbtrain's scalars.{nearest(name, BY_NAME)}") from None


def _title(name: str) -> str:
    """Return a curve's title. Names of datasets, tasks and user-defined scalars appear unchanged."""
    for before, words in OF_DATASETS.items():
        if name.startswith(before):
            return f"{words} of {name.removeprefix(before)}"
    for before in (OF_TASKS, OF_CODE):
        if name.startswith(before):
            return name.removeprefix(before)
    return TITLES.get(name) or name.removesuffix("_bytes").replace("_", " ")


def _known_tags(reader: ScalarReader) -> list[dict[str, Any]]:
    """Return a description of every scalar that has points.

    They are in the order of metrics.SCALARS; scalars of datasets, tasks and `code` follow by name.
    """
    there = {name: points for tag, points in reader.series.items() if len(points) and (name := name_of(tag))}
    order = [name for name in BY_NAME if name in there] + sorted(there.keys() - BY_NAME.keys(), key=natural)
    rows = [scalar(name) for name in order]
    return [
        {
            "tag": row.name,
            "title": _title(row.name),
            "unit": row.unit,
            "meaning": row.meaning,
            "num_points": len(there[row.name]),
            **how_drawn(row.name, row.unit),
        }
        for row in rows
    ]


Part = tuple[list[int], list[float], list[float], list[float] | None]
"""Steps, values, wall times, and means (None unless the curve was thinned)."""


def _width(points: Curve | Series) -> int:
    """Return how many logged points each pair of points of a thinned curve represents; 1 for other curves."""
    return getattr(points, "width", 1)


def _inside(points: Curve | Series, request: CurvesRequest, to_tokens: TokensBySteps) -> Part:
    """Return the points in the requested range, and the neighbouring point on each side, if any.

    For a range between two points of a thinned curve, return these two points.
    """
    steps, values, walls = list(points.steps), list(points.values), list(points.wall_times)
    thinned = thinned_means(points)
    means = None if thinned is None else list(thinned)
    if request.first is None and request.last is None:
        return steps, values, walls, means
    axis: Sequence[float | None] = (
        steps if request.x == "step" else walls if request.x == "time" else to_tokens.at(steps)
    )
    least = float("-inf") if request.first is None else request.first
    most = float("inf") if request.last is None else request.last
    inside = [number for number, at in enumerate(axis) if at is not None and least <= at <= most]
    if inside:
        part = slice(max(0, inside[0] - 1), inside[-1] + 2)
    else:
        before = [number for number, at in enumerate(axis) if at is not None and at < least]
        if _width(points) == 1 or not before or before[-1] + 1 == len(axis):
            return [], [], [], None
        part = slice(before[-1], before[-1] + 2)
    return steps[part], values[part], walls[part], None if means is None else means[part]


def _series(points: Part, kept: Curve | Series, most: int, to_tokens: TokensBySteps) -> dict[str, Any]:
    steps, values, walls, means = points
    found = band(values, most, means)
    shown = [steps[at] for at in found.at]
    return {
        "step": shown,
        "time": [round(walls[at], 3) for at in found.at],
        "tokens": [count and round(count) for count in to_tokens.at(shown)] if to_tokens.steps else [],
        **curve_part("value", found, kept.gaps),
        "num_points": len(kept),
    }


def csv_pieces(view: RunView, names: Sequence[str] | None) -> Iterator[str]:
    """Yield a CSV file in pieces, with every point of the scalars in the order of the metrics files.

    If `names` is None, the file has all scalars of the run. A step that was trained again after a restart
    appears once.
    """
    tags = None if names is None else {_tag(name): name for name in names}
    with view.lock:
        while view.reader.refresh(READ_SECONDS) and view.reader.behind_bytes:
            pass
        to_tokens = TokensBySteps.of(view.reader)
    reader = _CsvLines(view.run.tensorboard, tags, to_tokens)
    yield "name,step,tokens,time,value\r\n"
    while True:
        reader.refresh(PIECE_SECONDS)
        yield "".join(reader.lines)
        reader.lines.clear()
        if not reader.behind_bytes:
            return


class _CsvLines(ScalarReader):
    """A reader that converts points to CSV lines instead of storing them."""

    def __init__(self, folder: Any, tags: dict[str, str] | None, to_tokens: TokensBySteps):
        super().__init__(folder)
        self.lines: list[str] = []
        self._name = functools.cache(name_of if tags is None else tags.get)
        self._to_tokens = to_tokens

    def _take_rows(self, rows: list[Row]) -> bool:
        """Add a CSV line for each scalar in the rows, in the order of the file."""
        for row in rows:
            (tokens,) = self._to_tokens.at([row["step"]])
            at = datetime.fromtimestamp(row["wall_time"], UTC).isoformat(timespec="milliseconds")
            count = "" if tokens is None else f"{tokens:.0f}"
            for tag, value in row.items():
                if (name := self._name(tag)) is not None:
                    self.lines.append(f"{name},{row['step']},{count},{at},{float(value):.7g}\r\n")
        return True
