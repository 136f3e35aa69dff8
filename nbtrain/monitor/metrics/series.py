"""The points of a scalar by step, and the ranges of steps at which it is NaN or Inf."""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Points(Protocol):
    """Interface of a container for the points of one tag."""

    @property
    def steps(self) -> Any: ...

    @property
    def values(self) -> Any: ...

    @property
    def wall_times(self) -> Any: ...

    def put(self, step: int, value: float, wall_time: float) -> None: ...

    def put_many(
        self, steps: Sequence[int], values: Sequence[float], wall_times: Sequence[float]
    ) -> None: ...

    def keep(self, wanted: Iterable[bool]) -> None: ...

    def __len__(self) -> int: ...

    @property
    def gaps(self) -> "Gaps": ...

    @property
    def means(self) -> Any: ...


class Gaps:
    """The ranges of steps at which a curve is NaN or Inf, in reading order."""

    # Maximum number of ranges; the last one is then extended to cover all later steps with NaN or Inf.
    MOST = 200

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []
        """[first step, last step] for each range."""
        self._open = False

    def note(self, step: int, value: float) -> None:
        """Record whether the next point of the curve is NaN or Inf."""
        if math.isfinite(value):
            self._open = False
        elif (self._open or len(self.ranges) == self.MOST) and step > self.ranges[-1][1]:
            self.ranges[-1][1] = step
        elif len(self.ranges) < self.MOST:
            self.ranges.append([step, step])
            self._open = True

    def note_many(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Record points with ascending steps.

        If the sum of the values is finite, all values are; checking the sum takes a tenth
        of the time of checking each value.
        """
        if math.isfinite(sum(values)):
            self._open = False
            return
        for step, value in zip(steps, values):
            self.note(step, value)

    def drop_from(self, step: int) -> None:
        """Drop the ranges from `step` on, because these steps are trained again."""
        self.ranges = [[first, min(last, step - 1)] for first, last in self.ranges if first < step]
        self._open = False


@dataclass
class Series:
    """The points of one tag in ascending order of steps, one point per step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    wall_times: list[float] = field(default_factory=list)
    """Times of the points, in seconds since the epoch."""
    gaps: Gaps = field(default_factory=Gaps, compare=False, repr=False)
    """Ranges of steps whose value is NaN or Inf."""

    @property
    def means(self) -> list[float]:
        """Means of the represented points: the values themselves, because a Series is never thinned."""
        return self.values

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """Value at the highest step; None without points."""
        return self.values[-1] if self.values else None

    def put(self, step: int, value: float, wall_time: float) -> None:
        """Add a point. It replaces an earlier point at the same step."""
        self.gaps.note(step, value)
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
            self.values.append(value)
            self.wall_times.append(wall_time)
            return
        at = bisect.bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            self.steps.insert(at, step)
            self.values.insert(at, value)
            self.wall_times.insert(at, wall_time)
        else:
            self.values[at], self.wall_times[at] = value, wall_time

    def put_many(self, steps: Sequence[int], values: Sequence[float], wall_times: Sequence[float]) -> None:
        """Add points with ascending steps."""
        if self.steps and steps[0] <= self.steps[-1]:
            for point in zip(steps, values, wall_times):
                self.put(*point)
            return
        self.gaps.note_many(steps, values)
        self.steps.extend(steps)
        self.values.extend(values)
        self.wall_times.extend(wall_times)

    def keep(self, wanted: Iterable[bool]) -> None:
        """Keep only the points whose flag is true; `wanted` has one flag per point."""
        chosen = [at for at, flag in enumerate(wanted) if flag]
        self.steps = [self.steps[at] for at in chosen]
        self.values = [self.values[at] for at in chosen]
        self.wall_times = [self.wall_times[at] for at in chosen]
