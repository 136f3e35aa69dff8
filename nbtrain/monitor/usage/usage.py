"""A job's resource use over time, read from the files of its nodes while the job runs and afterwards.

Each node has its own file and clock (base/run_directory/usage_files.py). A node's points are in the order in
which they were written. The newest hour has the finest resolution, and older data is coarser.
"""

import bisect
import itertools
import math
import operator
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base.run_directory.usage import FIGURES
from nbtrain.base.run_directory.usage_files import FORMAT_VERSION, Section, UsageReader, usage_files
from nbtrain.base.text import amounts

# Total size of the files whose points are cached, as columns of numbers. A month of a node with 8 GPUs is a
# file of 3 MB, and its columns take about twice as much memory.
MOST_KEPT_BYTES = 64 << 20
# Files that were not used for this long may be dropped from the cache. An open page uses its files every few
# seconds.
UNUSED_SECONDS = 120.0
RESOURCES = "resources"


@dataclass(frozen=True)
class Points:
    """The values of a metric over time, oldest first. Unknown values are omitted."""

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
        """Return at most `most` points, each with the mean and maximum of an interval of equal length."""
        if len(self) <= most:
            return self
        parts = self._rising(most) if self.times == sorted(self.times) else self._parts(most)
        return Points(
            [self.times[part][-1] for part in parts],
            [sum(self.means[part]) / (part.stop - part.start) for part in parts],
            [max(self.maxima[part]) for part in parts],
        )

    def _rising(self, most: int) -> list[slice]:
        """Divide points in ascending order into intervals of equal length, by binary search."""
        begin, length = self.times[0], self.times[-1] - self.times[0]
        ends = (bisect.bisect_left(self.times, begin + length * part / most) for part in range(1, most))
        bounds = [0, *dict.fromkeys(end for end in ends if end), len(self)]
        return [slice(first, last) for first, last in itertools.pairwise(bounds)]

    def _parts(self, most: int) -> list[slice]:
        """Divide points into intervals of equal length. Times may decrease, as after a clock was set back."""
        begin, length = self.times[0], max(self.times) - self.times[0]
        parts: list[slice] = []
        first = place = 0
        for number, at in enumerate(self.times):
            # The position must not decrease, although the clock of a later boot may be behind that of an
            # earlier one.
            here = max(place, min(most - 1, int((at - begin) / length * most))) if length > 0 else 0
            if here != place and number:
                parts.append(slice(first, number))
                first = number
            place = here
        parts.append(slice(first, len(self)))
        return parts


@dataclass(frozen=True)
class _Columns:
    """The points of a section of a file, as columns. Unknown values are NaN."""

    section: Section
    stamps: "array[float]"
    num_samples: "array[int]"
    means: "list[array[float]]"
    maxima: "list[array[float]]"

    @classmethod
    def of(cls, section: Section) -> "_Columns":
        empty = [array("d") for _ in section.columns]
        return cls(section, array("d"), array("q"), empty, empty)

    def with_new(self) -> "_Columns":
        """Return the columns extended by the section's new points, which are removed from the section."""
        points, self.section.points = self.section.points, []
        if not points:
            return self
        stamps, num_samples, means, maxima = zip(*points)
        return _Columns(
            self.section,
            self.stamps + array("d", stamps),
            self.num_samples + array("q", num_samples),
            [before + _numbers(column) for before, column in zip(self.means, zip(*means))],
            [before + _numbers(column) for before, column in zip(self.maxima, zip(*maxima))],
        )


def _numbers(column: Sequence[Any]) -> "array[float]":
    """Return the values of a column, with NaN for values that are unknown or not numbers."""
    try:
        return array("d", column)
    except (TypeError, OverflowError):
        return array("d", [value if isinstance(value, float) else _number(value) for value in column])


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int) else math.nan
    except OverflowError:
        return math.nan


class NodeUsage:
    """The measurements of one node."""

    def __init__(self, node: int, parts: list[_Columns]):
        self.node = node
        self._parts = parts
        self._places = [
            {column: place for place, column in enumerate(part.section.columns)} for part in parts
        ]
        # All sections of a boot use the clock offset of the newest section. The stamps of a boot only
        # increase, so setting the clock in between does not change the order of points.
        offsets = {part.section.boot_id: part.section.clock_offset for part in parts}
        self._times = [[stamp + offsets[part.section.boot_id] for stamp in part.stamps] for part in parts]
        self._points: dict[tuple[str, str], Points] = {}
        self._num_samples: dict[tuple[str, str], list[int]] = {}

    @property
    def host(self) -> str:
        return self._parts[-1].section.host

    @property
    def about(self) -> dict[str, Any]:
        """Newest description that the node has written of itself: requests, limits and GPUs."""
        return self._parts[-1].section.about

    def subjects(self) -> list[str]:
        """Return every subject that was ever measured, in the order of the newest section."""
        names = (subject for part in reversed(self._parts) for subject, _ in part.section.columns)
        return list(dict.fromkeys(names))

    def figures(self, subject: str) -> list[str]:
        pairs = (pair for part in reversed(self._parts) for pair in part.section.columns)
        return list(dict.fromkeys(name for found, name in pairs if found == subject))

    def points(self, subject: str, figure: str) -> Points:
        """Return a metric over time; empty if the metric was not measured."""
        key = (subject, figure)
        if key not in self._points:
            self._points[key] = self._read_points(key)
        return self._points[key]

    def _read_points(self, key: tuple[str, str]) -> Points:
        points, num_samples = Points([], [], []), self._num_samples.setdefault(key, [])
        for part, times, places in zip(self._parts, self._times, self._places):
            place = places.get(key)
            if place is None:
                continue
            means, maxima, samples = (
                part.means[place].tolist(),
                part.maxima[place].tolist(),
                part.num_samples.tolist(),
            )
            known = [math.isfinite(mean) and math.isfinite(most) for mean, most in zip(means, maxima)]
            if not all(known):
                samples = list(itertools.compress(samples, known))
                times, means, maxima = (
                    list(itertools.compress(values, known)) for values in (times, means, maxima)
                )
            points.times.extend(times)
            points.means.extend(means)
            points.maxima.extend(maxima)
            num_samples.extend(samples)
        return points

    def mean(self, subject: str, figure: str) -> float | None:
        """Return the mean over all samples; None if the metric was not measured."""
        points, num_samples = self.points(subject, figure), self._num_samples[subject, figure]
        if not num_samples:
            return None
        return math.fsum(map(operator.mul, num_samples, points.means)) / sum(num_samples)

    def peak(self, subject: str, figure: str) -> float | None:
        """Return the largest sampled value; None if the metric was not measured."""
        return max(self.points(subject, figure).maxima, default=None)


class _KeptFile:
    """A node's file with its parsed points, cached for the next request. Thread-safe."""

    def __init__(self, node: int, path: Path):
        self._node = node
        self._reader = UsageReader(path, orjson.loads)
        self._parts: list[_Columns] = []
        self._lock = threading.Lock()
        self.used_at = 0.0

    @property
    def num_bytes(self) -> int:
        return self._reader.num_bytes

    def usage(self) -> NodeUsage | None:
        """Return the node's measurements; None if there are no points.

        Raises OSError if the file is unreadable.

        Each call returns a new object, because its points take several times the memory of the columns and
        should be freed after use.
        """
        with self._lock:
            self._refresh()
            measured = [part for part in self._parts if part.stamps]
        return NodeUsage(self._node, measured) if measured else None

    def _refresh(self) -> None:
        self.used_at = time.monotonic()
        if self._reader.refresh():
            kept = {id(part.section): part for part in self._parts}
            self._parts = [
                kept.get(id(section), _Columns.of(section)).with_new() for section in self._reader.sections
            ]

    def warning(self) -> str | None:
        """Return a message about the sections that are not read; None if all sections are read.

        Raises OSError if the file is unreadable.
        """
        with self._lock:
            self._refresh()
            refused = [*self._reader.refused]
        if not refused:
            return None
        others = sorted({version for version in refused if version})
        name = f"{RESOURCES}/{self._reader.path.name}"
        what, verb = amounts.counted(len(refused), "section"), "is" if len(refused) == 1 else "are"
        if not others:
            return f"{name}: {what} with a damaged header {verb} not shown."
        reads = f"this version of nbtrain reads only format version {FORMAT_VERSION}"
        if "" in refused:
            headers = f"some headers are damaged, others name format version {', '.join(others)}"
            return f"{name}: {what} {verb} not shown: {headers}, but {reads}."
        return f"{name}: {what} in format version {', '.join(others)} {verb} not shown, because {reads}."


_kept: dict[Path, _KeptFile] = {}
_kept_lock = threading.Lock()


def _kept_file(node: int, path: Path) -> _KeptFile:
    """Return the file of a path, cached if there is room for its points."""
    with _kept_lock:
        file = _kept.get(path)
        if file is None:
            file = _KeptFile(node, path)
            if sum(other.num_bytes for other in _kept.values()) >= MOST_KEPT_BYTES:
                # Drop the files of jobs whose page was closed. Files of an open page stay: they are always
                # read in the same order, so dropping the oldest file would drop the one that is read next.
                old = time.monotonic() - UNUSED_SECONDS
                for other, known in list(_kept.items()):
                    if known.used_at < old:
                        del _kept[other]
            if sum(other.num_bytes for other in _kept.values()) < MOST_KEPT_BYTES:
                _kept[path] = file
        return file


def read_usage(folder: Path) -> list[NodeUsage]:
    """Return the measurements of each node that has points, in the order of node numbers.

    `folder` is the job's folder `resources`.
    """
    found = (_kept_file(node, path).usage() for node, path in usage_files(folder))
    return [usage for usage in found if usage is not None]


def usage_warnings(folder: Path) -> list[str]:
    """Return a message for each file with sections that are not read, for example of another version."""
    found = (_kept_file(node, path).warning() for node, path in usage_files(folder))
    return [warning for warning in found if warning]


def usage_part(node: NodeUsage, most_points: int) -> dict[str, Any]:
    """Return the JSON of a replica's resource use.

    "curves" is {subject: {metric: {"unit", "times", "mean", "max"}}}, with at most `most_points` points each.
    """
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
