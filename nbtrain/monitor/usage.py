"""A job's resources over time, read from the files of its nodes while it runs and afterwards.

Each node has its own files and its own clock (base/usage_files.py). Within a node, points are in the order in
which they were written; the newest hour has the finest resolution, and older data is coarser.
"""

import bisect
import itertools
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.usage import FIGURES, LEVELS
from nbtrain.base.usage_files import Segment, listed, nodes_in, read_segment


@dataclass(frozen=True)
class Points:
    """Values of one metric of one subject, oldest first. Unknown values are omitted."""

    times: list[float]
    """Seconds since the epoch, by the clock of the node."""
    means: list[float]
    maxima: list[float]

    def __len__(self) -> int:
        return len(self.times)

    @property
    def newest(self) -> float | None:
        return self.means[-1] if self.means else None

    def thinned(self, most: int) -> "Points":
        """Return at most `most` points, each for an equal part of the time: its mean and its maximum."""
        if len(self) <= most:
            return self
        parts = self._rising(most) if self.times == sorted(self.times) else self._parts(most)
        return Points(
            [self.times[part][-1] for part in parts],
            [math.fsum(self.means[part]) / (part.stop - part.start) for part in parts],
            [max(self.maxima[part]) for part in parts],
        )

    def _rising(self, most: int) -> list[slice]:
        """Return equal parts of the time for points in rising order, with a search for each part."""
        begin, length = self.times[0], self.times[-1] - self.times[0]
        ends = (bisect.bisect_left(self.times, begin + length * part / most) for part in range(1, most))
        bounds = [0, *dict.fromkeys(end for end in ends if end), len(self)]
        return [slice(first, last) for first, last in itertools.pairwise(bounds)]

    def _parts(self, most: int) -> list[slice]:
        """Return equal parts of the time for points whose clock was set back."""
        begin, length = self.times[0], max(self.times) - self.times[0]
        parts: list[slice] = []
        first = place = 0
        for number, at in enumerate(self.times):
            # The position never decreases: the clock of a second boot may be behind the clock of the first.
            here = max(place, min(most - 1, int((at - begin) / length * most))) if length > 0 else 0
            if here != place and number:
                parts.append(slice(first, number))
                first = number
            place = here
        parts.append(slice(first, len(self)))
        return parts


class NodeUsage:
    """Measurements of one node."""

    def __init__(self, node: int, segments: list[Segment]):
        self.node = node
        self._segments = segments
        self._pieces = list(_pieces(segments))
        self._points: dict[tuple[str, str], Points] = {}

    @property
    def host(self) -> str:
        return self._segments[-1].host

    @property
    def about(self) -> dict[str, Any]:
        """Return the node's latest description of itself: requests, limits, GPUs."""
        return self._segments[-1].about

    def subjects(self) -> list[str]:
        """Return everything that was ever measured, in the order of the newest file."""
        names = (subject for segment in reversed(self._segments) for subject, _ in segment.columns)
        return list(dict.fromkeys(names))

    def figures(self, subject: str) -> list[str]:
        pairs = (pair for segment in reversed(self._segments) for pair in segment.columns)
        return list(dict.fromkeys(name for found, name in pairs if found == subject))

    def points(self, subject: str, figure: str) -> Points:
        """Return a metric over time; empty if it was never measured."""
        key = (subject, figure)
        if key not in self._points:
            self._points[key] = self._read_points(key)
        return self._points[key]

    def _read_points(self, key: tuple[str, str]) -> Points:
        found = Points([], [], [])
        for segment, last, offset in self._pieces:
            place = segment.columns.get(key)
            if place is None:
                continue
            means = _column(segment, segment.means, place)[:last]
            maxima = _column(segment, segment.maxima, place)[:last] if segment.level else means
            if not math.isnan(sum(means)):
                # All values are known, as for most metrics.
                found.times.extend([stamp + offset for stamp in segment.stamps[:last]])
                found.means.extend(means)
                found.maxima.extend(maxima)
                continue
            for stamp, mean, most in zip(segment.stamps, means, maxima):
                if mean == mean:
                    found.times.append(stamp + offset)
                    found.means.append(mean)
                    found.maxima.append(most)
        return found

    def mean(self, subject: str, figure: str) -> float | None:
        """Return the mean over all stored points, weighted by the length of their periods."""
        total = weight = 0.0
        for segment, last, _ in self._pieces:
            if (place := segment.columns.get((subject, figure))) is not None:
                known = [v for v in _column(segment, segment.means, place)[:last] if v == v]
                total += math.fsum(known) * LEVELS[segment.level].seconds
                weight += len(known) * LEVELS[segment.level].seconds
        return total / weight if weight else None

    def peak(self, subject: str, figure: str) -> float | None:
        """Return the largest sample ever."""
        found = [
            value
            for segment in self._segments
            if (place := segment.columns.get((subject, figure))) is not None
            for value in _column(segment, segment.maxima if segment.level else segment.means, place)
            if value == value
        ]
        return max(found, default=None)


def _column(segment: Segment, values: array, place: int) -> array:
    return values[place :: len(segment.columns)]


def _pieces(segments: list[Segment]) -> Iterator[tuple[Segment, int, float]]:
    """Yield (segment, number of its frames, seconds of its clock at boot), oldest first.

    For each boot these are the finest level from its beginning, and before that the next coarser one. Stamps
    of one boot only rise. The clock is read once, in the newest file of the boot, so a clock that was set
    meanwhile does not reorder anything.
    """
    boots = list(dict.fromkeys(segment.boot_id for segment in segments))
    for boot in boots:
        own = [segment for segment in segments if segment.boot_id == boot and segment.stamps]
        if not own:
            continue
        offset = own[-1].clock_offset
        bound = math.inf
        chosen: list[tuple[Segment, int, float]] = []
        for level in range(len(LEVELS)):
            same = [segment for segment in own if segment.level == level]
            counted = [(segment, sum(stamp < bound for stamp in segment.stamps)) for segment in same]
            chosen[:0] = [(one, count, offset) for one, count in counted if count]
            bound = min([bound, *(segment.stamps[0] for segment in same)])
        yield from chosen


def read_usage(folder: Path) -> list[NodeUsage]:
    """Read the measurements of each node with complete files in a job's `resources`, by node number."""
    found = []
    for node in nodes_in(folder):
        read = (read_segment(path) for _, _, path in listed(folder, node))
        if segments := [segment for segment in read if segment is not None]:
            found.append(NodeUsage(node, segments))
    return found


def usage_part(node: NodeUsage, most_points: int) -> dict[str, Any]:
    """Return the curves of one replica: {subject: {metric: {unit, times, mean, max}}}."""
    curves: dict[str, Any] = {}
    for subject in node.subjects():
        for name in node.figures(subject):
            points = node.points(subject, name).thinned(most_points)
            if not len(points):
                continue
            curves.setdefault(subject, {})[name] = {
                "unit": FIGURES[name].unit if name in FIGURES else "",
                "times": [round(at, 1) for at in points.times],
                # A picture shows at most six digits.
                "mean": [float(f"{value:.6g}") for value in points.means],
                "max": [float(f"{value:.6g}") for value in points.maxima],
            }
    about = {key: node.about.get(key) or {} for key in ("requests", "limits", "gpus")}
    return {"replica": node.node, "host": node.host, **about, "curves": curves}
