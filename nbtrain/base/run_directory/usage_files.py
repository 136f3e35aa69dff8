"""Files resources/<node>.jsonl of a job: a node's resource usage over time, as lines of JSON.

    {"format": "nbtrain usage", "version": 1, "node": 0, "host": "n1", "boot_id": "5f", "time": 1764391200,
     "stamp": 60000.0, "columns": [["replica", ["cpu_cores", "memory_bytes"]]], "about": {}}
    {"at": 60002.0, "mean": [1.25, 104857600]}
    {"at": 60062.0, "samples": 30, "mean": [1.5, 104857600], "max": [2.0, null]}

A header (one line) begins a section: the columns of the lines after it, and the clock: `time` in seconds
since the epoch at `stamp` in seconds since boot. Other lines are points: `at` is the stamp of a sample, or of
the last of the `samples` that were merged into their mean and maximum. null means not known. Points are
ordered by their lines and never by a clock, because clocks of different hosts differ.

One process owns a node's file. It appends a line per sample, and once an hour it replaces the file with one
in which older points are merged (usage.RESOLUTIONS), so that a month takes 2 MB. A line that a kill or a full
disk cut off does not count; a new owner begins a new section.
"""

import contextlib
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base import files
from nbtrain.base.run_directory.records import Stamp, host_name
from nbtrain.base.run_directory.usage import RESOLUTIONS, SAMPLE_SECONDS
from nbtrain.base.text.terminal import shortened

FORMAT, FORMAT_VERSION = "nbtrain usage", 1
# Maximum number of sections, because a job may be restarted very often.
MOST_SECTIONS = 64
# Number of last bytes read by which a file is recognized again: about one line, whose stamp is unique.
TAIL_BYTES = 256
# Samples in an hour, after which older samples are merged.
SAMPLES_BETWEEN_MERGES = int(3600 / SAMPLE_SECONDS)
_NAME = re.compile(r"(\d{1,6})\.jsonl")

Sample = Mapping[str, Mapping[str, float | None]]
Columns = list[tuple[str, str]]
"""(subject, metric) of each column."""
Values = list[float | None]


class Point(NamedTuple):
    """A sample, or several samples that were merged. None means not known."""

    stamp: float
    """Seconds since boot of the last sample."""
    num_samples: int
    means: Values
    maxima: Values


@dataclass
class Section:
    """Points with the same columns, from one owner and one boot."""

    head: dict[str, Any]
    columns: Columns
    points: list[Point] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.head["host"]

    @property
    def boot_id(self) -> str:
        return self.head["boot_id"]

    @property
    def about(self) -> dict[str, Any]:
        """Constants of the node, such as memory limits."""
        return self.head["about"]

    @property
    def clock_offset(self) -> float:
        """Time of the boot in seconds since the epoch, by the host's clock when the header was written."""
        return self.head["time"] - self.head["stamp"]

    def continues(self, other: "Section") -> bool:
        """Return whether this section continues `other`, the section before it. If so, they can be merged."""
        return all(self.head[key] == other.head[key] for key in ("host", "boot_id", "columns", "about"))


class UsageWriter:
    """Writer of the usage file of one node of a job.

    On a full or read-only disk, samples are lost, and no error is raised.
    """

    def __init__(self, folder: Path, node: int):
        self._path, self.node = folder / f"{node}.jsonl", node
        self._columns: Columns = []
        self._about: Mapping[str, Any] = {}
        self._boot_id = ""
        # A file of an earlier owner is merged before the first sample.
        self._until_merge = 0
        # A sampler's thread may be blocked by a slow disk here while the next sampler already writes.
        self._lock = threading.Lock()

    def add(
        self,
        sample: Sample,
        about: Mapping[str, Any] | None = None,
        stamp: Stamp | None = None,
        now: float | None = None,
    ) -> None:
        """Append a sample of the current values. `about` holds constants, such as limits, for the header."""
        stamp, about = stamp or Stamp.now(), about or {}
        columns = [(subject, name) for subject, figures in sample.items() for name in figures]
        values = [sample[subject][name] for subject, name in columns]
        clock = {"time": time.time() if now is None else now, "stamp": stamp.seconds}
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if self._until_merge == 0:
                    self._until_merge = SAMPLES_BETWEEN_MERGES
                    # A disk without room for the new file may have room for samples until the next merge.
                    with contextlib.suppress(OSError):
                        self._merge(clock)
                self._append(Point(stamp.seconds, 1, values, values), columns, about, stamp, clock)
                self._until_merge -= 1
            except OSError:
                # A new section begins after a line that may be incomplete.
                self._columns = []

    def _append(
        self,
        point: Point,
        columns: Columns,
        about: Mapping[str, Any],
        stamp: Stamp,
        clock: Mapping[str, float],
    ) -> None:
        """Append the line of a sample, after a header if a section begins. Raises OSError."""
        text, exists = encoded(point), self._path.exists()
        if (columns, about, stamp.boot_id) != (self._columns, self._about, self._boot_id) or not exists:
            # An empty line ends a line that a kill or a full disk cut off.
            text = ("\n" if exists else "") + self._header(columns, about, stamp, clock) + text
        content = text.encode()
        with self._path.open("ab", buffering=0) as stream:
            if stream.write(content) < len(content):
                raise OSError(f"{self._path}: the disk is full")
        self._columns, self._about, self._boot_id = columns, about, stamp.boot_id

    def _header(
        self, columns: Columns, about: Mapping[str, Any], stamp: Stamp, clock: Mapping[str, float]
    ) -> str:
        # [[subject, [figures]], ...] takes a fifth of the bytes of the pairs.
        by_subject = [
            [subject, [name for _, name in pairs]]
            for subject, pairs in itertools.groupby(columns, key=lambda column: column[0])
        ]
        head = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "node": self.node,
            "host": host_name(),
            "boot_id": stamp.boot_id,
            **clock,
            "columns": by_subject,
            "about": dict(about),
        }
        return json.dumps(head, ensure_ascii=False) + "\n"

    def _merge(self, clock: Mapping[str, float]) -> None:
        """Replace the file with one whose older points are merged."""
        if not self._path.exists():
            return
        sections = merged(read_sections(self._path))
        if sections and self._columns and sections[-1].boot_id == self._boot_id:
            # This owner's section: its clock may have been set since its header was written.
            sections[-1].head |= clock
        lines = (
            json.dumps(section.head, ensure_ascii=False) + "\n" + "".join(map(encoded, section.points))
            for section in sections
        )
        files.write_text(self._path, "".join(lines))


def encoded(point: Point) -> str:
    """Return the line of a point.

    Values of samples have six digits, as in tables, and values of merged points have four.
    """
    digits = 6 if point.num_samples == 1 else 4
    means = ",".join(_number(value, digits) for value in point.means)
    if point.num_samples == 1:
        return f'{{"at":{point.stamp},"mean":[{means}]}}\n'
    maxima = ",".join(_number(value, digits) for value in point.maxima)
    return f'{{"at":{point.stamp},"samples":{point.num_samples},"mean":[{means}],"max":[{maxima}]}}\n'


def _number(value: float | None, digits: int) -> str:
    """Return a value as JSON text with `digits` significant digits. Whole numbers keep all digits."""
    if value is None or not math.isfinite(value):
        return "null"
    return str(int(value)) if value == int(value) else f"{value:.{digits}g}"


def merged(sections: list[Section]) -> list[Section]:
    """Return the newest sections, with the points of each period merged as far as their age allows.

    The age of a point is the total time covered by the points after it, so the clocks of two boots are never
    compared.
    """
    joined: list[Section] = []
    for section in sections:
        if joined and section.continues(joined[-1]):
            section.points = joined.pop().points + section.points
        if section.points:
            joined.append(section)
    newest, later_seconds = [], 0.0
    for section in reversed(joined[-MOST_SECTIONS:]):
        first, last = section.points[0].stamp, section.points[-1].stamp
        section.points = list(_merged_points(section.points, last + later_seconds))
        later_seconds += last - first
        if section.points:
            newest.append(section)
    return newest[::-1]


def _merged_points(points: Iterable[Point], end: float) -> Iterator[Point]:
    """Merge the points of each period; `end` is the stamp at which a point would have the age 0."""

    def period(point: Point) -> tuple[float, float] | None:
        age = end - point.stamp
        for resolution in RESOLUTIONS:
            if age <= resolution.age_seconds:
                seconds = resolution.period_seconds
                return (seconds, point.stamp if seconds <= SAMPLE_SECONDS else point.stamp // seconds)
        return None

    for key, group in itertools.groupby(points, key=period):
        if key is None:
            continue
        same = list(group)
        yield same[0] if len(same) == 1 else _one_point(same)


def _one_point(points: list[Point]) -> Point:
    means: Values = []
    maxima: Values = []
    for place in range(len(points[0].means)):
        known = [
            (point.num_samples, mean, most)
            for point in points
            if (mean := point.means[place]) is not None and (most := point.maxima[place]) is not None
        ]
        num_samples = sum(num for num, _, _ in known)
        if known:
            means.append(sum(num * mean for num, mean, _ in known) / num_samples)
            maxima.append(max(most for _, _, most in known))
        else:
            means.append(None)
            maxima.append(None)
    return Point(points[-1].stamp, sum(point.num_samples for point in points), means, maxima)


def usage_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (node, path) of the files of all nodes, by node."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.jsonl"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def read_sections(path: Path) -> list[Section]:
    """Return a file's sections, without lines that were cut off. [] if the file was removed meanwhile.

    Raises OSError if the file exists and cannot be read.
    """
    reader = UsageReader(path)
    reader.refresh()
    return reader.sections


class UsageReader:
    """Reader for a usage file that is read repeatedly. Each refresh parses only the appended lines."""

    def __init__(self, path: Path, loads: Callable[[bytes], Any] = json.loads):
        """Create a reader of the file at `path`, whose lines `loads` parses."""
        self.path = path
        self._loads = loads
        self._forget()

    def _forget(self) -> None:
        self.sections: list[Section] = []
        """Sections of the file, oldest first. A caller may take the points out of a section."""
        self.refused: list[str] = []
        """Versions of the sections that this nbtrain cannot read, as text; "" for a damaged header."""
        self.num_bytes = 0
        """Number of bytes that were read. Only complete lines count."""
        # The end of what was read. Another end at this place means that the file was replaced.
        self._tail = b""
        self._section: Section | None = None

    def refresh(self) -> bool:
        """Read the appended lines, or all lines of a file that was replaced.

        Return whether lines were read, or the lines of a removed file were dropped. Raises OSError if the
        file exists and cannot be read.
        """
        begin = self.num_bytes - len(self._tail)
        try:
            content = files.read_current(self.path, begin)
            if content.startswith(self._tail):
                content = content[len(self._tail) :]
            else:
                # The owner, perhaps on another host, replaces the file at each merge.
                self._forget()
                content = files.read_current(self.path)
        except FileNotFoundError:
            changed = self.num_bytes > 0
            self._forget()
            return changed
        content = content[: content.rfind(b"\n") + 1]
        if not content:
            return False
        self.num_bytes += len(content)
        self._tail = (self._tail + content)[-TAIL_BYTES:]
        for line in content.split(b"\n")[:-1]:
            self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        try:
            value = self._loads(line)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        if "format" in value:
            self._section = _section(value)
            if self._section is not None:
                self.sections.append(self._section)
            else:
                is_other = value.get("version") != FORMAT_VERSION
                self.refused.append(shortened(str(value.get("version"))) if is_other else "")
        elif self._section is not None:
            point = _point(value, len(self._section.columns))
            if point is not None:
                self._section.points.append(point)


def _point(value: dict[str, Any], num_columns: int) -> Point | None:
    """Return the point in a line. None if the line does not have a stamp and a value for each column."""
    at, num_samples = value.get("at"), value.get("samples", 1)
    if not isinstance(at, int | float) or not isinstance(num_samples, int) or num_samples < 1:
        return None
    means: Any = value.get("mean")
    maxima: Any = value.get("max", means)
    for values in (means, maxima):
        if not isinstance(values, list) or len(values) != num_columns:
            return None
    return Point(at, num_samples, means, maxima)


def _section(head: dict[str, Any]) -> Section | None:
    """Return an empty section for a header. None for another version or values of other types."""
    if (head["format"], head.get("version")) != (FORMAT, FORMAT_VERSION):
        return None
    if not {"host", "boot_id", "time", "stamp", "columns", "about"} <= head.keys():
        return None
    if not all(isinstance(head[key], int | float) for key in ("time", "stamp")):
        return None
    try:
        columns = [(subject, name) for subject, names in head["columns"] for name in names]
    except (TypeError, ValueError):
        return None
    return Section(head, columns)
