"""Curves of a run on request: scalars by step, tokens or time, in a range, with a number of points.

    metrics(view, Asked(("loss",), "tokens", 1e6, 2e6))  ->  {"tags", "charts", "series", "marks", "reading"}

If there are too many points, the lowest and highest of each interval are kept, so that spikes are visible at
any zoom.
"""

import bisect
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.metrics import BY_NAME, name_of, scalar
from nbtrain.base.order import natural
from nbtrain.base.records import JobRecord
from nbtrain.base.rundir import RunDir
from nbtrain.base.terminal import nearest
from nbtrain.monitor.advice import marks
from nbtrain.monitor.curves import Curve, CurveReader
from nbtrain.monitor.metric_charts import OF_DATASETS, OF_TASKS, how_drawn, metric_charts
from nbtrain.monitor.resources import ProcessTable
from nbtrain.monitor.run_view import RunView
from nbtrain.monitor.snapshot import six_digits, thin
from nbtrain.monitor.tfevents import ScalarReader, Series, event_files

# Names as on the tiles of a run (shown.py).
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
# An answer takes at most a second; files not read in this time are in the next answer.
READ_SECONDS = 0.15
DETAIL_SECONDS = 2.0
# Seconds of reading at a time for a download.
PIECE_SECONDS = 0.05
PROCESSES = ProcessTable(age_seconds=0.9)
"""Process table shared by all views of a server: panels ask once a second."""
# Number of tokens at each step; event files of other programs have none.
TOKENS_TAG = BY_NAME["steps_vs_tokens"].tag


@dataclass(frozen=True)
class Asked:
    """A request for curves: names, range of x, and number of points."""

    names: tuple[str, ...]
    x: str = "step"
    first: float | None = None
    last: float | None = None
    points: int = POINTS


def curve_view(run: RunDir) -> RunView:
    """Return a view that keeps few points, for a process that reads many runs."""
    reader = CurveReader(run.tensorboard, lambda tag: name_of(tag) is not None)
    return RunView(run, reader, READ_SECONDS, PROCESSES)


def metrics(view: RunView, asked: Asked) -> dict[str, Any]:
    """Return the scalars of the requested range.

    {"tags", "charts", "series": {name: {step, time, tokens, value, num_points}}, "marks", "reading"}

    `tags` lists all scalars, and `charts` groups those that are drawn together. `reading` is the fraction of
    the event files that was read: it is below 1 for a moment after the first request. Raises ConfigError for
    an unknown scalar.
    """
    tags = {name: _tag(name) for name in asked.names}
    with view.lock:
        reader = view.reader
        reader.refresh(READ_SECONDS)
        known = {name: reader.series.get(tag, Series()) for name, tag in tags.items()}
        tokens = reader.series.get(TOKENS_TAG, Series())
        to_tokens = _Steps(list(tokens.steps), list(tokens.values))
        found = {name: _inside(points, asked, to_tokens) for name, points in known.items()}
        coarse = {
            tags[name]: (points[0][0], points[0][-1])
            for name, points in found.items()
            if points[0] and _width(known[name]) > 1 and len(points[0]) < asked.points
        }
        if coarse and isinstance(reader, CurveReader) and (asked.first, asked.last) != (None, None):
            # The kept points are too far apart for this range.
            first, last = min(one for one, _ in coarse.values()), max(one for _, one in coarse.values())
            detail = reader.detail(coarse, first, last, DETAIL_SECONDS)
            found |= {
                name: _inside(detail[tag], asked, to_tokens) for name, tag in tags.items() if tag in detail
            }
        total = sum(path.stat().st_size for path in event_files(reader.folder))
        read = 1.0 - reader.behind_bytes / total if total else 1.0
        there = _known_tags(reader)
    records = (JobRecord.read(view.run.job(job_id).job_json) for job_id in view.run.job_ids())
    return {
        "tags": there,
        "charts": metric_charts(there),
        "series": {
            name: _series(points, known[name], asked.points, to_tokens) for name, points in found.items()
        },
        "marks": marks(view.run, [record for record in records if record]),
        "reading": round(read, 3),
    }


def whole_metrics(view: RunView, asked: Asked, seconds: float) -> dict[str, Any]:
    """Return metrics() once the event files are read, or after `seconds`."""
    deadline = time.monotonic() + seconds
    answer = metrics(view, asked)
    while answer["reading"] < 1 and time.monotonic() < deadline:
        answer = metrics(view, asked)
    return answer


def _tag(name: str) -> str:
    try:
        return scalar(name).tag
    except KeyError:
        raise ConfigError(f"{name[:80]!r} is not a scalar of nbtrain.{nearest(name, BY_NAME)}") from None


def _title(name: str) -> str:
    """Return the title of a curve; names of datasets and tasks stay as they are."""
    for before, words in OF_DATASETS.items():
        if name.startswith(before):
            return f"{words} of {name.removeprefix(before)}"
    if name.startswith(OF_TASKS):
        return name.removeprefix(OF_TASKS)
    return TITLES.get(name) or name.removesuffix("_bytes").replace("_", " ")


def _known_tags(reader: ScalarReader) -> list[dict[str, Any]]:
    """Return every scalar with points in the order of metrics.SCALARS, the scalars of datasets last."""
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


class _Steps:
    """Number of tokens trained at a step, interpolated linearly between the known steps."""

    def __init__(self, steps: list[int], tokens: list[float]):
        self.steps, self.tokens = steps, tokens

    def tokens_at(self, steps: Sequence[int]) -> list[float | None]:
        return [self._at(step) for step in steps]

    def _at(self, step: int) -> float | None:
        if not self.steps:
            return None
        at = min(bisect.bisect_left(self.steps, step), len(self.steps) - 1)
        right = self.steps[at]
        # Before the first known step the count starts at 0.
        left, least = (self.steps[at - 1], self.tokens[at - 1]) if at else (0, 0.0)
        if right == left:
            return self.tokens[at]
        return least + (self.tokens[at] - least) * (step - left) / (right - left)


Part = tuple[list[int], list[float], list[float]]
"""Steps, values, wall times."""


def _width(points: Curve | Series) -> int:
    """Return the number of points that each pair of a curve represents; 1 if every point is kept."""
    return getattr(points, "width", 1)


def _inside(points: Curve | Series, asked: Asked, to_tokens: _Steps) -> Part:
    """Return the points of the requested range, with one more point on each side if there is one.

    A range between two points of a thinned curve has these two; the points between them are in the files.
    """
    steps, values, walls = list(points.steps), list(points.values), list(points.wall_times)
    if asked.first is None and asked.last is None:
        return steps, values, walls
    axis: Sequence[float | None] = (
        steps if asked.x == "step" else walls if asked.x == "time" else to_tokens.tokens_at(steps)
    )
    least = float("-inf") if asked.first is None else asked.first
    most = float("inf") if asked.last is None else asked.last
    inside = [number for number, at in enumerate(axis) if at is not None and least <= at <= most]
    if inside:
        part = slice(max(0, inside[0] - 1), inside[-1] + 2)
    else:
        before = [number for number, at in enumerate(axis) if at is not None and at < least]
        if _width(points) == 1 or not before or before[-1] + 1 == len(axis):
            return [], [], []
        part = slice(before[-1], before[-1] + 2)
    return steps[part], values[part], walls[part]


def _series(points: Part, kept: Curve | Series, most: int, to_tokens: _Steps) -> dict[str, Any]:
    steps, values, walls = points
    chosen, _ = thin([*range(len(steps))], values, most)
    shown = [steps[at] for at in chosen]
    return {
        "step": shown,
        "time": [round(walls[at], 3) for at in chosen],
        "tokens": [count and round(count) for count in to_tokens.tokens_at(shown)] if to_tokens.steps else [],
        "value": [six_digits(values[at]) for at in chosen],
        "num_points": len(kept),
    }


def csv_pieces(view: RunView, names: Sequence[str] | None) -> Iterator[str]:
    """Yield a CSV file piece by piece, with every point of the scalars in the order of writing.

    None means all scalars of the run. A step that a restart has trained again is written once.
    """
    tags = None if names is None else {_tag(name): name for name in names}
    with view.lock:
        while view.reader.refresh(READ_SECONDS) and view.reader.behind_bytes:
            pass
        purges = list(view.reader.purges)
        tokens = view.reader.series.get(TOKENS_TAG, Series())
        to_tokens = _Steps(list(tokens.steps), list(tokens.values))
    reader = _Lines(view.run.tensorboard, tags, to_tokens)
    reader.purges = purges
    yield "name,step,tokens,time,value\r\n"
    while True:
        reader.refresh(PIECE_SECONDS)
        yield "".join(reader.lines)
        reader.lines.clear()
        if not reader.behind_bytes:
            return


class _Lines(ScalarReader):
    """A reader that turns points into CSV lines and keeps nothing."""

    # Lines are in the order of the file.
    by_steps = False

    def __init__(self, folder: Any, tags: dict[str, str] | None, to_tokens: _Steps):
        super().__init__(folder)
        self.lines: list[str] = []
        name_in = name_of if tags is None else tags.get
        self._name = functools.cache(lambda tag: name_in(tag.decode()))
        self._to_tokens = to_tokens

    def _take_scalar(self, tag: bytes, step: int, wall_time: float, value: float) -> bool:
        name = self._name(tag)
        if name is None or self._was_purged(tag.decode(), step, wall_time):
            return False
        (tokens,) = self._to_tokens.tokens_at([step])
        at = datetime.fromtimestamp(wall_time, UTC).isoformat(timespec="milliseconds")
        count = "" if tokens is None else f"{tokens:.0f}"
        self.lines.append(f"{name},{step},{count},{at},{value:.7g}\r\n")
        return True
