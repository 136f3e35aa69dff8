"""Downsampled curves of a run for display: few points that include spikes, and ranges read in detail.

    CurveReader(folder)  ->  series: {tag: Curve}, at most MOST_POINTS each, however long the run
                         ->  detail(tags, first, last): as many points of only these steps, from the files

A Curve keeps every point until there are MOST_POINTS. Then it keeps the lowest and the highest of every
`width` consecutive points together with their mean, and doubles the width whenever it is full again. Steps
with NaN or Inf are kept as ranges, because NaN is neither the lowest nor the highest value.

band() reduces a curve further, to the points of one chart: means with the lowest and highest value.
"""

import bisect
import functools
import itertools
import math
import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Gaps

# A chart is 300 to 1,400 pixels wide. 24 bytes each: a run with 60 curves takes 3 MB.
MOST_POINTS = 2048
MOST_DRAWN = 2000
"""Points of a line in a picture: the lowest and the highest of each of 1,000 columns, about a pixel wide."""

Point = tuple[int, float, float]
"""Step, value, wall time."""


class Curve:
    """Points of one tag, thinned while they are read. Of points at one step, the later is kept."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.width = 1
        """Number of points that each pair represents; 1 if every point is kept."""
        self.gaps = Gaps()
        """Ranges of steps whose value is NaN or Inf."""
        self._steps, self._values, self._walls = array("q"), array("d"), array("d")
        # The mean of the points that a point stands for; both points of a pair have the same.
        self._means = array("d")
        # The pair in progress: number of points, the lowest, the highest, the newest, and the sum
        # and number of its finite values.
        self._num = 0
        self._sum, self._num_finite = 0.0, 0
        self._low: Point = (0, math.nan, 0.0)
        self._high = self._newest = self._low

    def __len__(self) -> int:
        """Return the number of points that the curve represents."""
        kept = len(self._steps)
        return kept if self.width == 1 else kept // 2 * self.width + self._num

    @property
    def steps(self) -> array:
        return self._all(self._steps, 0)

    @property
    def values(self) -> array:
        return self._all(self._values, 1)

    @property
    def wall_times(self) -> array:
        return self._all(self._walls, 2)

    @property
    def means(self) -> array:
        """For each point, the mean of the points that it stands for; NaN and Inf do not count."""
        if self._num == 0:
            return self._means
        mean = self._sum / self._num_finite if self._num_finite else math.nan
        return self._means + array("d", [mean] * len({self._low, self._high, self._newest}))

    @property
    def last(self) -> float | None:
        """Value of the highest step, or None."""
        values = self.values
        return values[-1] if len(values) else None

    def put(self, step: int, value: float, wall_time: float) -> None:
        """Add a point."""
        self.gaps.note(step, value)
        self._put(step, value, wall_time)

    def _put(self, step: int, value: float, wall_time: float) -> None:
        if self.width == 1:
            self._put_one(step, value, wall_time)
            if len(self._steps) > self._most:
                self._widen()
            return
        point = (step, value, wall_time)
        if (self._num or self._steps) and step <= (self._newest[0] if self._num else self._steps[-1]):
            self._put_again(point)
            return
        if self._num == 0:
            self._low = self._high = point
        else:
            if not self._low[1] <= value:
                self._low = self._low if value != value else point
            if not self._high[1] >= value:
                self._high = self._high if value != value else point
        self._newest = point
        self._num += 1
        if math.isfinite(value):
            self._sum, self._num_finite = self._sum + value, self._num_finite + 1
        if self._num == self.width:
            mean = self._sum / self._num_finite if self._num_finite else math.nan
            self._store(mean, *sorted((self._low, self._high)))
            self._num, self._sum, self._num_finite = 0, 0.0, 0
            if len(self._steps) > self._most:
                self._widen()

    def put_many(self, steps: Sequence[int], values: Sequence[float], wall_times: Sequence[float]) -> None:
        """Add points whose steps rise, with the same result as put() for each, in a tenth of the time."""
        at, num = 0, len(steps)
        self.gaps.note_many(steps, values)
        while at < num:
            # Until the curve has one more point than `most` and widens; later the points of one pair.
            size = self._most + 1 - len(self._steps) if self.width == 1 else self.width
            end = min(at + size, num)
            part = values[at:end]
            if self._num or (self._steps and steps[at] <= self._steps[-1]):
                size = 0
            elif self.width == 1:
                self._steps.extend(steps[at:end])
                self._values.extend(part)
                self._means.extend(part)
                self._walls.extend(wall_times[at:end])
            elif len(part) == size:
                mean = finite_mean(part)
                for index in _ends(part):
                    self._means.append(mean)
                    self._steps.append(steps[at + index])
                    self._values.append(part[index])
                    self._walls.append(wall_times[at + index])
            else:
                # An incomplete pair.
                size = 0
            if size == 0:
                end = at + 1
                self._put(steps[at], values[at], wall_times[at])
            elif len(self._steps) > self._most:
                self._widen()
            at = end

    def keep(self, wanted: Iterable[bool]) -> None:
        """Drop the points whose flag is false, in the order of `steps`."""
        flags = list(wanted)
        points, means = list(zip(self.steps, self.values, self.wall_times)), self.means
        kept = len(self._steps)
        # The rest of the pair in progress.
        rest = [point for point, flag in zip(points[kept:], flags[kept:]) if flag]
        group = 1 if self.width == 1 else 2
        self._clear()
        for at in range(0, kept, group):
            left = [point for point, flag in zip(points[at : at + group], flags[at : at + group]) if flag]
            if left:
                self._store(means[at], *(left * group)[:group])
        # The highest step that is kept is now the newest.
        self._num = min(len(rest), self.width - 1) if self.width > 1 else 0
        if self._num:
            self._low, self._high = min(rest, key=_value), max(rest, key=_value)
            self._newest = rest[-1]
            # Of the points that were dropped, only the lowest and the highest are known.
            self._begin_sum(finite_mean([value for _, value, _ in rest]), self._num)

    def _all(self, kept: array, field: int) -> array:
        if self._num == 0:
            return kept
        shown = sorted({self._low, self._high, self._newest})
        return kept + array(kept.typecode, [point[field] for point in shown])

    def _put_one(self, step: int, value: float, wall_time: float) -> None:
        steps = self._steps
        at = len(steps) if not steps or step > steps[-1] else bisect.bisect_left(steps, step)
        if at == len(steps) or steps[at] != step:
            steps.insert(at, step)
            self._values.insert(at, value)
            self._means.insert(at, value)
            self._walls.insert(at, wall_time)
        else:
            self._values[at] = self._means[at] = value
            self._walls[at] = wall_time

    def _begin_sum(self, mean: float, num: int) -> None:
        """Begin the mean of a pair with `num` points whose mean is known."""
        self._sum, self._num_finite = (mean * num, num) if math.isfinite(mean) else (0.0, 0)

    def _put_again(self, point: Point) -> None:
        """Add a point of a step repeated without a restart's mark; it counts if that step was kept."""
        step, value, wall_time = point
        if self._num and step == self._newest[0]:
            self._newest = point
        at = bisect.bisect_left(self._steps, step)
        while at < len(self._steps) and self._steps[at] == step:
            self._values[at], self._walls[at] = value, wall_time
            at += 1

    def _widen(self) -> None:
        """Keep the lowest and the highest of four points: each pair then represents twice as many points."""
        steps, values, walls = self._steps, self._values, self._walls
        size = 2 if self.width == 1 else 4
        whole = len(steps) - len(steps) % size
        starts = range(0, whole, size)
        chosen = [at + index for at in starts for index in _ends(values[at : at + size])]
        means = [finite_mean(self._means[at : at + size]) for at in starts]
        rest = list(zip(steps[whole:], values[whole:], walls[whole:]))
        rest_mean = finite_mean(self._means[whole:])
        self._means = array("d", [mean for mean in means for _ in range(2)])
        self._steps = array("q", [steps[at] for at in chosen])
        self._values = array("d", [values[at] for at in chosen])
        self._walls = array("d", [walls[at] for at in chosen])
        self._num, self._sum, self._num_finite = 0, 0.0, 0
        before, self.width = self.width, self.width * 2
        if rest:
            self._num = before if self.width > 2 else 1
            self._low, self._high = min(rest, key=_value), max(rest, key=lambda one: _value(one, -math.inf))
            self._newest = rest[-1]
            self._begin_sum(rest_mean, self._num)

    def _store(self, mean: float, *points: Point) -> None:
        for step, value, wall_time in points:
            self._steps.append(step)
            self._means.append(mean)
            self._values.append(value)
            self._walls.append(wall_time)

    def _clear(self) -> None:
        self._steps, self._values, self._walls = array("q"), array("d"), array("d")
        self._means = array("d")
        self._num, self._sum, self._num_finite = 0, 0.0, 0


def finite_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are neither NaN nor Inf; NaN without any."""
    total, num = sum(values), len(values)
    if not math.isfinite(total):
        finite = [value for value in values if math.isfinite(value)]
        total, num = sum(finite), len(finite)
    return total / num if num else math.nan


def _ends(values: Sequence[float]) -> list[int]:
    """Return the indices of the lowest and the highest value, in order; NaN is neither if possible."""
    low, high = min(values), max(values)
    if low != low or high != high:
        # If the first value is NaN, min and max return it.
        numbers = [value for value in values if value == value]
        if not numbers:
            return [0, 0]
        low, high = min(numbers), max(numbers)
    return sorted((values.index(low), values.index(high)))


def _value(point: Point, of_nan: float = math.inf) -> float:
    """Return the value of a point, or `of_nan` for NaN, which must never be the lowest or highest value."""
    return of_nan if point[1] != point[1] else point[1]


class CurveReader(ScalarReader):
    """Scalars of one folder, thinned. One thread at a time."""

    series: dict[str, Curve]

    def __init__(self, folder: str | os.PathLike, tags: Iterable[str] | Callable[[str], bool] | None = None):
        super().__init__(folder, tags, Curve)

    def detail(self, tags: Iterable[str], first: int, last: int, seconds: float) -> dict[str, Curve]:
        """Read the points of `tags` at steps first to last again from the files, for at most `seconds`."""
        inside = ScalarReader(self.folder, tags, lambda: _Range(first, last))
        deadline = time.monotonic() + seconds
        for _, file in sorted(self.files.items()):
            # The parts before and after the range are skipped. Steps are slightly out of order, so one more
            # block is read after the first line with a later step.
            begin = max((offset for offset, step in file.places if step < first), default=0)
            after = [offset for offset, step in file.places if step > last and offset > begin]
            inside.read_range(file, begin, after[1] if len(after) > 1 else file.offset, deadline)
        return {tag: curve for tag, curve in inside.series.items() if len(curve)}


class _Range(Curve):
    """A curve of some steps only."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._first, self._last = first, last

    def put_many(self, steps: Sequence[int], values: Sequence[float], wall_times: Sequence[float]) -> None:
        begin, end = bisect.bisect_left(steps, self._first), bisect.bisect_right(steps, self._last)
        super().put_many(steps[begin:end], values[begin:end], wall_times[begin:end])

    def put(self, step: int, value: float, wall_time: float) -> None:
        if self._first <= step <= self._last:
            super().put(step, value, wall_time)


@dataclass
class Band:
    """A curve reduced to few points: means of intervals, with their lowest and highest value if it was
    thinned.
    """

    at: list[int]
    """Index of the middle point of each interval."""
    values: list[float]
    lows: list[float] | None = None
    highs: list[float] | None = None


def band(values: Sequence[float], most: int, means: Sequence[float] | None = None) -> Band:
    """Reduce a curve to at most `most` points. The first and the last point stay as they are.

    `means` has, for a curve that was thinned when it was read, the mean of the points that each value stands
    for. NaN and Inf do not count, unless an interval has nothing else.
    """
    num = len(values)
    if num <= 2 or (means is None and num <= most):
        return Band([*range(num)], list(values))
    inner = max(1, min(most - 2, num - 2, num // 2 if means is not None else num))
    ends = [0, *(1 + part * (num - 2) // inner for part in range(inner)), num - 1, num]
    known = values if means is None else means
    at, middle, lows, highs = [], [], [], []
    for first, last in itertools.pairwise(ends):
        part = values[first:last]
        if not math.isfinite(sum(part)):
            part = [value for value in part if math.isfinite(value)] or [math.nan]
        is_end = first in (0, num - 1)
        at.append((first + last) // 2)
        middle.append(values[first] if is_end else finite_mean(known[first:last]))
        lows.append(min(part))
        highs.append(max(part))
    return Band(at, middle, lows, highs)


def drawn_points(values: Sequence[float], most: int = MOST_DRAWN) -> list[int]:
    """Return the indices of the points, at most `most` + 2, that draw the same line as all of them.

    These are the first and the last point, and the lowest and the highest of each of `most` / 2 intervals
    with equal numbers of points. NaN is neither, unless an interval has nothing else: the line has a gap
    there.
    """
    num = len(values)
    if num <= most:
        return [*range(num)]
    bounds = [num * part // (most // 2) for part in range(most // 2 + 1)]
    inside = (
        first + index for first, last in itertools.pairwise(bounds) for index in _ends(values[first:last])
    )
    return sorted({0, num - 1, *inside})


def thinned_means(points: Any) -> Sequence[float] | None:
    """Return the means of a curve that was thinned while it was read (curves.py); None for other curves."""
    return points.means if getattr(points, "width", 1) > 1 else None


def curve_part(key: str, found: Band, gaps: Gaps) -> dict[str, Any]:
    """Return a curve's values under `key`; "low" and "high" if it was thinned; "bad", its ranges of NaN."""
    # A picture shows at most six digits, and more would triple the bytes sent each second.
    part: dict[str, Any] = {key: [six_digits(value) for value in found.values]}
    if found.lows is not None and found.highs is not None:
        part["low"] = [six_digits(value) for value in found.lows]
        part["high"] = [six_digits(value) for value in found.highs]
    return part | ({"bad": [list(steps) for steps in gaps.ranges]} if gaps.ranges else {})


@functools.lru_cache(1 << 15)
def six_digits(value: float) -> float:
    """Round to six digits, because a picture shows no more, and curves are sent at each poll."""
    return float(f"{value:.6g}")
