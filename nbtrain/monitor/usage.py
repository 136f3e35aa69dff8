"""A job's resources over time, read from the files of its nodes while it runs and afterwards.

Each node has its own file and its own clock (base/usage_files.py). Within a node, points are in the order in
which they were written; the newest hour has the finest resolution, and older data is coarser.
"""

import bisect
import itertools
import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base.usage import FIGURES
from nbtrain.base.usage_files import Section, read_sections, usage_files


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
        """Return at most `most` points, each with the mean and the maximum of an interval; all intervals have
        equal length."""
        if len(self) <= most:
            return self
        parts = self._rising(most) if self.times == sorted(self.times) else self._parts(most)
        return Points(
            [self.times[part][-1] for part in parts],
            [math.fsum(self.means[part]) / (part.stop - part.start) for part in parts],
            [max(self.maxima[part]) for part in parts],
        )

    def _rising(self, most: int) -> list[slice]:
        """Return intervals of equal length for points in rising order; each interval is found by a binary
        search."""
        begin, length = self.times[0], self.times[-1] - self.times[0]
        ends = (bisect.bisect_left(self.times, begin + length * part / most) for part in range(1, most))
        bounds = [0, *dict.fromkeys(end for end in ends if end), len(self)]
        return [slice(first, last) for first, last in itertools.pairwise(bounds)]

    def _parts(self, most: int) -> list[slice]:
        """Return intervals of equal length for points whose clock was set back."""
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

    def __init__(self, node: int, sections: list[Section]):
        self.node = node
        self._sections = sections
        self._places = [
            {column: place for place, column in enumerate(section.columns)} for section in sections
        ]
        # The clock is read once, in the newest section of a boot, so a clock that was set meanwhile does not
        # reorder anything: the stamps of one boot only rise.
        self._offsets = {section.boot_id: section.clock_offset for section in sections}
        self._by_column: dict[int, tuple[Any, Any, Any, Any]] = {}
        self._points: dict[tuple[str, str], Points] = {}
        self._num_samples: dict[tuple[str, str], list[int]] = {}

    @property
    def host(self) -> str:
        return self._sections[-1].host

    @property
    def about(self) -> dict[str, Any]:
        """Return the newest description that the node wrote of itself: requests, limits, GPUs."""
        return self._sections[-1].about

    def subjects(self) -> list[str]:
        """Return every subject that was ever measured, in the order of the newest file."""
        names = (subject for section in reversed(self._sections) for subject, _ in section.columns)
        return list(dict.fromkeys(names))

    def figures(self, subject: str) -> list[str]:
        pairs = (pair for section in reversed(self._sections) for pair in section.columns)
        return list(dict.fromkeys(name for found, name in pairs if found == subject))

    def points(self, subject: str, figure: str) -> Points:
        """Return a metric over time; empty if it was not measured."""
        key = (subject, figure)
        if key not in self._points:
            self._points[key] = self._read_points(key)
        return self._points[key]

    def _read_points(self, key: tuple[str, str]) -> Points:
        points, num_samples = Points([], [], []), self._num_samples.setdefault(key, [])
        for number, section in enumerate(self._sections):
            place, offset = self._places[number].get(key), self._offsets[section.boot_id]
            if place is None:
                continue
            stamps, samples, all_means, all_maxima = self._columns(number)
            means, maxima = all_means[place], all_maxima[place]
            if None in means or None in maxima:
                known = [at for at, mean in enumerate(means) if mean is not None and maxima[at] is not None]
                stamps, samples, means, maxima = (
                    [values[at] for at in known] for values in (stamps, samples, means, maxima)
                )
            points.times.extend([stamp + offset for stamp in stamps])
            points.means.extend(means)
            points.maxima.extend(maxima)
            num_samples.extend(samples)
        return points

    def _columns(self, number: int) -> tuple[Any, Any, Any, Any]:
        """Return a section's points as columns: stamps, numbers of samples, and means and maxima by place."""
        if number not in self._by_column:
            stamps, samples, means, maxima = zip(*self._sections[number].points)
            self._by_column[number] = stamps, samples, list(zip(*means)), list(zip(*maxima))
        return self._by_column[number]

    def mean(self, subject: str, figure: str) -> float | None:
        """Return the mean over all samples."""
        points, num_samples = self.points(subject, figure), self._num_samples[subject, figure]
        if not num_samples:
            return None
        return math.fsum(map(operator.mul, num_samples, points.means)) / sum(num_samples)

    def peak(self, subject: str, figure: str) -> float | None:
        """Return the largest value that was ever sampled."""
        return max(self.points(subject, figure).maxima, default=None)


def read_usage(folder: Path) -> list[NodeUsage]:
    """Read the measurements of each node with points in a job's `resources`, by node number."""
    nodes = []
    for node, path in usage_files(folder):
        sections = [section for section in read_sections(path, orjson.loads) if section.points]
        if sections:
            nodes.append(NodeUsage(node, sections))
    return nodes


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
