"""Downsampled curves of a run for display: few points that still show spikes, and details on request.

    CurveReader(folder).series                       {tag: Curve}, each with at most MOST_POINTS points
    CurveReader(folder).detail(tags, first, last)    the same for a range of steps, read from the files again

A Curve keeps every point until there are MOST_POINTS. From then on, it keeps only the lowest and the highest
of every `width` consecutive points, with their mean, and doubles the width whenever it is full again. Steps
with NaN or Inf are kept as ranges, because NaN is neither the lowest nor the highest value.

band() reduces a curve further for a chart: to means with their lowest and highest values.
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

# Maximum number of points of a Curve. A chart is 300 to 1,400 pixels wide. At 24 bytes per point, a run with
# 60 curves takes 3 MB.
MOST_POINTS = 2048
MOST_DRAWN = 2000
"""Maximum number of points of a line in a picture: lowest and highest in each of 1,000 columns."""

Point = tuple[int, float, float]
"""Step, value, wall time."""


class Curve:
    """The points of one tag, thinned while being read. A new point replaces an older one at the same step."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.width = 1
        """Number of points that each pair of points represents; 1 if every point is kept."""
        self.gaps = Gaps()
        """Ranges of steps whose value is NaN or Inf."""
        self._steps, self._values, self._walls = array("q"), array("d"), array("d")
        # The mean of the points that a kept point represents; both points of a pair have the same mean.
        self._means = array("d")
        # State of the pair in progress: number of points, sum and number of finite values, and the lowest,
        # highest and newest point.
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
        """Means of the points that each kept point represents, without NaN and Inf."""
        if self._num == 0:
            return self._means
        mean = self._sum / self._num_finite if self._num_finite else math.nan
        return self._means + array("d", [mean] * len({self._low, self._high, self._newest}))

    @property
    def last(self) -> float | None:
        """Value at the highest step; None without points."""
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
        """Add points with ascending steps. The result is the same as with put(), in a tenth of the time."""
        at, num = 0, len(steps)
        self.gaps.note_many(steps, values)
        while at < num:
            # Take as many points as fit until the curve must widen or, later, the points of one pair.
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
                # The points do not fill the pair, so add the next point individually.
                size = 0
            if size == 0:
                end = at + 1
                self._put(steps[at], values[at], wall_times[at])
            elif len(self._steps) > self._most:
                self._widen()
            at = end

    def keep(self, wanted: Iterable[bool]) -> None:
        """Keep only the points whose flag is true; `wanted` has a flag per point, in the order of `steps`."""
        flags = list(wanted)
        points, means = list(zip(self.steps, self.values, self.wall_times)), self.means
        kept = len(self._steps)
        # The points of the pair in progress.
        rest = [point for point, flag in zip(points[kept:], flags[kept:]) if flag]
        group = 1 if self.width == 1 else 2
        self._clear()
        for at in range(0, kept, group):
            left = [point for point, flag in zip(points[at : at + group], flags[at : at + group]) if flag]
            if left:
                self._store(means[at], *(left * group)[:group])
        # The highest remaining step is now the newest.
        self._num = min(len(rest), self.width - 1) if self.width > 1 else 0
        if self._num:
            self._low, self._high = (
                min(rest, key=_value),
                max(rest, key=lambda point: _value(point, -math.inf)),
            )
            self._newest = rest[-1]
            # Estimate the sum, because only the lowest, highest and newest point of the pair are known.
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
        """Initialize the sum of a pair from the mean of its first `num` points."""
        self._sum, self._num_finite = (mean * num, num) if math.isfinite(mean) else (0.0, 0)

    def _put_again(self, point: Point) -> None:
        """Add a point at an earlier step. It replaces the kept points of that step, or is ignored."""
        step, value, wall_time = point
        if self._num and step == self._newest[0]:
            self._newest = point
        at = bisect.bisect_left(self._steps, step)
        while at < len(self._steps) and self._steps[at] == step:
            self._values[at], self._walls[at] = value, wall_time
            at += 1

    def _widen(self) -> None:
        """Double the width: of every four points, keep only the lowest and the highest."""
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
            self._low, self._high = (
                min(rest, key=_value),
                max(rest, key=lambda point: _value(point, -math.inf)),
            )
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
    """Return the mean of the finite values; NaN if there are no finite values."""
    total, num = sum(values), len(values)
    if not math.isfinite(total):
        finite = [value for value in values if math.isfinite(value)]
        total, num = sum(finite), len(finite)
    return total / num if num else math.nan


def _ends(values: Sequence[float]) -> list[int]:
    """Return the indices of the lowest and highest value, in ascending order. NaN is ignored if possible."""
    low, high = min(values), max(values)
    if low != low or high != high:
        # min() and max() return NaN if the first value is NaN.
        numbers = [value for value in values if value == value]
        if not numbers:
            return [0, 0]
        low, high = min(numbers), max(numbers)
    return sorted((values.index(low), values.index(high)))


def _value(point: Point, of_nan: float = math.inf) -> float:
    """Return a point's value, or `of_nan` for NaN, so that NaN never is the lowest or highest value."""
    return of_nan if point[1] != point[1] else point[1]


class CurveReader(ScalarReader):
    """Reads the scalars of a folder as thinned curves. Not thread-safe."""

    series: dict[str, Curve]

    def __init__(self, folder: str | os.PathLike, tags: Iterable[str] | Callable[[str], bool] | None = None):
        super().__init__(folder, tags, Curve)

    def detail(self, tags: Iterable[str], first: int, last: int, seconds: float) -> dict[str, Curve]:
        """Read the points at steps `first` to `last` from the files again, for at most `seconds`."""
        inside = ScalarReader(self.folder, tags, lambda: _Range(first, last))
        deadline = time.monotonic() + seconds
        for _, file in sorted(self.files.items()):
            # Skip the parts before and after the range. Steps may be slightly out of order, so read one more
            # block after the first line with a later step.
            begin = max((offset for offset, step in file.places if step < first), default=0)
            after = [offset for offset, step in file.places if step > last and offset > begin]
            inside.read_range(file, begin, after[1] if len(after) > 1 else file.offset, deadline)
        return {tag: curve for tag, curve in inside.series.items() if len(curve)}


class _Range(Curve):
    """A curve that keeps only a range of steps."""

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
    """A curve reduced to few points: the means of intervals, with their lowest and highest values.

    The lowest and highest values are None if the curve was not reduced.
    """

    at: list[int]
    """Index of each interval's middle point in the original curve."""
    values: list[float]
    lows: list[float] | None = None
    highs: list[float] | None = None


def band(values: Sequence[float], most: int, means: Sequence[float] | None = None) -> Band:
    """Reduce a curve to at most `most` points. The first and the last point stay unchanged.

    If the curve was thinned when it was read, `means` has the mean of the points that each value represents.
    NaN and Inf are ignored, unless an interval contains nothing else.
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
    """Return the indices of at most `most` + 2 points that draw the same line as all points.

    These are the first and the last point, and the lowest and the highest in each of `most` / 2 intervals
    with equal numbers of points. NaN is ignored, unless an interval contains only NaN; the line then has a
    gap.
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
    """Return the means of a curve that was thinned while it was read; None for any other curve."""
    return points.means if getattr(points, "width", 1) > 1 else None


def curve_part(key: str, found: Band, gaps: Gaps) -> dict[str, Any]:
    """Return a curve as JSON: values under `key`, "low" and "high" if reduced, "bad" if it has NaN or Inf."""
    # A picture shows at most six digits, and more digits would triple the bytes sent each second.
    part: dict[str, Any] = {key: [six_digits(value) for value in found.values]}
    if found.lows is not None and found.highs is not None:
        part["low"] = [six_digits(value) for value in found.lows]
        part["high"] = [six_digits(value) for value in found.highs]
    return part | ({"bad": [list(steps) for steps in gaps.ranges]} if gaps.ranges else {})


@functools.lru_cache(1 << 15)
def six_digits(value: float) -> float:
    """Round a value to six significant digits. A picture shows no more, and curves are sent at each poll."""
    return float(f"{value:.6g}")
