"""Files resources/<node>.<number>.<level>.bin of a job, which hold a node's resource usage over time.

A file is a segment: one line of JSON (its columns, clock and level), then frames of one size:

    stamp      float64   seconds since boot of the period's last sample
    means      float32   one a column; NaN: not known
    maxima     float32   one a column; not at the first level
    checksum   uint32    CRC-32 of all before

Numbers rise by one for each new file of a node, whatever its level; order is by number and place, never by a
clock, so that clocks of different hosts cannot mix up what happened. One process owns a node's files. A frame
that was torn by a kill does not count, and a new owner begins new files. Numbers are little-endian.
"""

import contextlib
import json
import math
import re
import struct
import sys
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.records import Stamp, host_name
from nbtrain.base.usage import LEVELS

FORMAT, FORMAT_VERSION = "nbtrain usage", 1
# Maximum number of files per level and node, however short they are, as a job may be restarted very often.
MOST_FILES = 64
_NAME = re.compile(r"(\d{1,6})\.(\d{1,9})\.(\d)\.bin")
_STAMP, _CHECKSUM = struct.Struct("<d"), struct.Struct("<I")
NAN = math.nan

Sample = Mapping[str, Mapping[str, float | None]]
Columns = tuple[tuple[str, str], ...]
"""The (subject, figure) of each column."""


def file_name(node: int, number: int, level: int) -> str:
    return f"{node}.{number}.{level}.bin"


@dataclass
class _File:
    """One file of this owner."""

    path: Path
    frames: int


@dataclass
class _Period:
    """Samples of an unfinished period, from which its means and maxima will be computed."""

    number: int
    """Number of periods of this length since boot."""
    stamp: float
    sums: list[float]
    counts: list[int]
    maxima: list[float]

    def add(self, stamp: float, sums: list[float], counts: list[int], maxima: list[float]) -> None:
        self.stamp = stamp
        self.sums = [one + other for one, other in zip(self.sums, sums)]
        self.counts = [one + other for one, other in zip(self.counts, counts)]
        # A comparison with NaN is false, so `other` is used unless it is NaN itself or smaller.
        self.maxima = [
            one if other != other or one > other else other for one, other in zip(self.maxima, maxima)
        ]

    def means(self) -> list[float]:
        return [total / count if count else NAN for total, count in zip(self.sums, self.counts)]


class UsageWriter:
    """Writes the usage files of one node of a job. On a full or read-only disk frames are lost, and no error
    is raised.
    """

    def __init__(self, folder: Path, node: int):
        self._folder, self.node = folder, node
        self._columns: Columns = ()
        self._about: Mapping[str, Any] = {}
        self._head: dict[str, Any] = {}
        self._periods: list[_Period | None] = [None] * len(LEVELS)
        self._files: list[list[_File]] = [[] for _ in LEVELS]
        self._open: list[_File | None] = [None] * len(LEVELS)
        self._next_number = 0
        for number, level, path in listed(folder, node):
            frames = len(segment.stamps) if (segment := read_segment(path)) else 0
            self._files[level].append(_File(path, frames))
            self._next_number = number + 1

    def add(
        self,
        sample: Sample,
        about: Mapping[str, Any] | None = None,
        stamp: Stamp | None = None,
        now: float | None = None,
    ) -> None:
        """Store a sample of the current values. `about` holds constants, such as limits, for the header of
        each file.
        """
        stamp = stamp or Stamp.now()
        about = about or {}
        columns = tuple((subject, name) for subject, figures in sample.items() for name in figures)
        if columns != self._columns or about != self._about or stamp.boot_id != self._head.get("boot_id"):
            self.close()
            self._columns, self._about = columns, about
            self._head = {"boot_id": stamp.boot_id}
        self._head |= {"time": time.time() if now is None else now, "stamp": stamp.seconds}
        found = (sample[subject][name] for subject, name in columns)
        values = [NAN if value is None else float(value) for value in found]
        self._write(0, stamp.seconds, values, [])
        known = [value == value for value in values]
        sums = [value if there else 0.0 for value, there in zip(values, known)]
        self._collect(1, stamp.seconds, sums, [int(there) for there in known], values)

    def close(self) -> None:
        """Write the unfinished periods."""
        for level in range(1, len(LEVELS)):
            self._end_period(level)
        self._open = [None] * len(LEVELS)

    def _collect(
        self, level: int, stamp: float, sums: list[float], counts: list[int], maxima: list[float]
    ) -> None:
        if level == len(LEVELS):
            return
        number = int(stamp // LEVELS[level].seconds)
        period = self._periods[level]
        if period is not None and period.number != number:
            self._end_period(level)
            period = None
        if period is None:
            self._periods[level] = _Period(number, stamp, sums, counts, maxima)
        else:
            period.add(stamp, sums, counts, maxima)

    def _end_period(self, level: int) -> None:
        period, self._periods[level] = self._periods[level], None
        if period is not None:
            self._write(level, period.stamp, period.means(), period.maxima)
            self._collect(level + 1, period.stamp, period.sums, period.counts, period.maxima)

    def _write(self, level: int, stamp: float, means: list[float], maxima: list[float]) -> None:
        content = _STAMP.pack(stamp) + packed(means) + packed(maxima)
        content += _CHECKSUM.pack(zlib.crc32(content))
        file = self._open[level]
        try:
            if file is None or file.frames >= LEVELS[level].segment:
                self._open[level] = None
                file, content = self._begin(level, content)
            with file.path.open("ab") as stream:
                stream.write(content)
            file.frames += 1
        except OSError:
            # A partly written frame would shift all later frames, so writing continues in a new file.
            self._give_up(level)

    def _begin(self, level: int, content: bytes) -> tuple[_File, bytes]:
        """Begin a new file and write its header, then remove the oldest files above the limit."""
        self._folder.mkdir(parents=True, exist_ok=True)
        files, limit = self._files[level], LEVELS[level]
        while files and (sum(file.frames for file in files[1:]) >= limit.keep or len(files) >= MOST_FILES):
            files[0].path.unlink(missing_ok=True)
            del files[0]
        file = _File(self._folder / file_name(self.node, self._next_number, level), 0)
        self._next_number += 1
        head = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "node": self.node,
            "host": host_name(),
            "level": level,
            "period_seconds": limit.seconds,
            **self._head,
            "columns": _by_subject(self._columns),
            "about": dict(self._about),
        }
        files.append(file)
        self._open[level] = file
        return file, json.dumps(head, ensure_ascii=False).encode() + b"\n" + content

    def _give_up(self, level: int) -> None:
        """Stop writing to the open file, and remove it if it is empty."""
        file, self._open[level] = self._open[level], None
        if file is not None and file.frames == 0:
            self._files[level].remove(file)
            with contextlib.suppress(OSError):
                file.path.unlink(missing_ok=True)


def _by_subject(columns: Columns) -> list[list[Any]]:
    """Return the columns as [[subject, [figures]], ...]: a fifth of the bytes of a list of pairs."""
    found: list[list[Any]] = []
    for subject, name in columns:
        if not found or found[-1][0] != subject:
            found.append([subject, []])
        found[-1][1].append(name)
    return found


def packed(values: Iterable[float]) -> bytes:
    """Return values as little-endian float32."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


@dataclass
class Segment:
    """Contents of one file."""

    number: int
    level: int
    host: str
    boot_id: str
    clock_offset: float
    """Seconds since the epoch at boot, by the host's clock when the file was created."""
    columns: dict[tuple[str, str], int]
    """{(subject, figure): its column index}."""
    about: dict[str, Any]
    stamps: list[float] = field(default_factory=list)
    means: array = field(default_factory=lambda: array("f"))
    maxima: array = field(default_factory=lambda: array("f"))


def listed(folder: Path, node: int | None = None) -> Iterator[tuple[int, int, Path]]:
    """Return (number, level, path) of a node's files, sorted by number; of all nodes if `node` is None."""
    found = []
    for path in folder.glob("*.bin") if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and node in (None, int(match[1])) and int(match[3]) < len(LEVELS):
            found.append((int(match[2]), int(match[3]), path))
    return iter(sorted(found))


def nodes_in(folder: Path) -> list[int]:
    """Return the numbers of the nodes that have files."""
    return sorted({int(path.name.partition(".")[0]) for _, _, path in listed(folder)})


def read_segment(path: Path) -> Segment | None:
    """Return a file's complete frames; None if the file was removed meanwhile or its header is incomplete."""
    try:
        head, newline, body = path.read_bytes().partition(b"\n")
        found = json.loads(head) if newline else {}
        match = _NAME.fullmatch(path.name)
        if match is None or found.get("format") != FORMAT or found["version"] != FORMAT_VERSION:
            return None
        columns = [(subject, name) for subject, names in found["columns"] for name in names]
        segment = Segment(
            number=int(match[2]),
            level=int(match[3]),
            host=str(found["host"]),
            boot_id=str(found["boot_id"]),
            clock_offset=float(found["time"]) - float(found["stamp"]),
            columns={column: place for place, column in enumerate(columns)},
            about=found["about"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    _read_frames(segment, body)
    return segment


def _read_frames(segment: Segment, body: bytes) -> None:
    values = 4 * len(segment.columns)
    size = _STAMP.size + values * (2 if segment.level else 1) + _CHECKSUM.size
    means, maxima = bytearray(), bytearray()
    for start in range(0, len(body) - size + 1, size):
        end = start + size - _CHECKSUM.size
        if _CHECKSUM.unpack_from(body, end)[0] != zlib.crc32(body[start:end]):
            continue
        segment.stamps.append(_STAMP.unpack_from(body, start)[0])
        middle = start + _STAMP.size + values
        means += body[start + _STAMP.size : middle]
        maxima += body[middle:end]
    segment.means.frombytes(bytes(means))
    segment.maxima.frombytes(bytes(maxima))
    if sys.byteorder == "big":
        segment.means.byteswap()
        segment.maxima.byteswap()
