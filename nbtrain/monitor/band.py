"""A curve reduced to few points, with the lowest and highest value of each interval, as a chart draws it."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.monitor.curves import finite_mean
from nbtrain.monitor.series import Gaps


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
