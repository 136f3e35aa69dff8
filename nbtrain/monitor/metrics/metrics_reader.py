"""Reads the scalars of a run from its metrics.jsonl files while they grow.

base/run_directory/metrics_files.py describes the format. A restarted run writes some steps again into a new
file, whose header contains the step that it resumed from. Later steps in older files then no longer count.

The first read takes about 1.5 microseconds per scalar; later reads parse only appended lines. At most
BLOCK_BYTES of a file are in memory, unless a line is longer.
"""

import functools
import itertools
import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base.run_directory.metrics_files import (
    FORMAT,
    FORMAT_VERSION,
    KEYS,
    NOT_FINITE,
    file_name,
    metrics_files,
)
from nbtrain.base.text import amounts
from nbtrain.monitor.metrics.series import Points, Series

# Number of bytes read at a time.
BLOCK_BYTES = 1 << 20
# Maximum size of a header, which is normally much shorter.
_HEADER_BYTES = 4096

Row = dict[str, Any]
"""A line of a metrics file."""


@dataclass
class _OpenFile:
    """Reading position in one metrics file."""

    path: Path
    header: bytes
    """First line, which contains the time of writing. If it changes, the file was replaced."""
    offset: int = 0
    """Number of bytes read so far, up to the last complete line."""
    seen_bytes: int = 0
    """Size of the file when it was last read to the end."""
    resumed_from_step: int = 0
    last_step: float = math.inf
    """Last step that counts: the step that a later file resumed from; infinity without a later file."""
    skipped_lines: int = 0
    first_skipped: int = 0
    """Offset of the first skipped line."""
    refused: str | None = None
    """Reason why the file is not read; None if it is read."""
    highest_step: int = 0
    """Highest step that was read and counts.

    Steps may be slightly out of order, because a GPU's values are written when a log line is due, after lines
    of later steps.
    """
    places: list[tuple[int, int]] = field(default_factory=list)
    """(offset, highest step before it) about every BLOCK_BYTES, used to read only a range of steps."""


class ScalarReader:
    """Reads the scalars in a folder while its files grow. Not thread-safe."""

    def __init__(
        self,
        folder: str | os.PathLike,
        tags: Iterable[str] | Callable[[str], bool] | None = None,
        points: Callable[[], Points] = Series,
    ):
        """Create a reader.

        `tags` are the tags to read, or a function that returns whether to read a tag; None means all tags.
        `points` creates the container for a tag's points; by default, it keeps all points.
        """
        self.folder = Path(folder)
        self.series: dict[str, Any] = {}
        self.behind_bytes = 0
        """Number of bytes that refresh() did not have time to read."""
        self._points = points
        wanted = tags if tags is None or callable(tags) else frozenset(tags).__contains__
        self._wanted = functools.cache(wanted) if wanted is not None else lambda tag: True
        self.files: dict[int, _OpenFile] = {}
        """{number of a file: its reading position}."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about parts that cannot be read, one per file."""
        found = []
        for number, file in sorted(self.files.items()):
            name = file_name(number)
            if file.refused:
                found.append(f"{name} is not shown: {file.refused}.")
            if file.skipped_lines:
                lines = amounts.counted(file.skipped_lines, "line")
                found.append(
                    f"{name}: skipped {lines} without valid JSON scalars, the first at byte "
                    f"{file.first_skipped}; all other lines are shown."
                )
        return found

    @property
    def total_bytes(self) -> int:
        """Current total size of the opened files."""
        return sum(file.path.stat().st_size for file in self.files.values() if file.path.exists())

    def refresh(self, seconds: float | None = None) -> bool:
        """Read the lines appended since the last call, and return whether the points have changed.

        An incomplete line, and data not read within `seconds`, is left to the next call. A folder that does
        not exist has no points.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        sizes = {number: (path, path.stat().st_size) for number, path in metrics_files(self.folder)}
        changed = self._start_again(sizes) | self._open(sizes)
        self.behind_bytes = 0
        for number, (_, size) in sizes.items():
            file = self.files.get(number)
            if file is None or file.refused or size <= file.seen_bytes:
                continue
            if self.behind_bytes == 0:
                changed |= self._read(file, deadline)
            late = deadline is not None and time.monotonic() > deadline
            if late or self.behind_bytes:
                self.behind_bytes += max(0, size - max(file.offset, file.seen_bytes))
        return changed

    def _start_again(self, sizes: dict[int, tuple[Path, int]]) -> bool:
        """Drop all points if files were removed or replaced: the folder then has another run's data.

        Return whether the points were dropped.
        """

        def continues(number: int, file: _OpenFile) -> bool:
            if number not in sizes:
                return False
            path, size = sizes[number]
            return size >= file.offset and (size <= file.seen_bytes or _first_line(path)[0] == file.header)

        if all(continues(number, file) for number, file in self.files.items()):
            return False
        self.files.clear()
        self.series.clear()
        return True

    def _open(self, sizes: dict[int, tuple[Path, int]]) -> bool:
        """Read the headers of new files, and drop the points of steps that their jobs train again.

        Return whether points were dropped.
        """
        changed = False
        for number, (path, _) in sizes.items():
            if number in self.files:
                continue
            line, is_complete = _first_line(path)
            if not is_complete:
                # The header is still being written.
                continue
            step = _resumed_from_step(line)
            if step is None:
                self.files[number] = _OpenFile(
                    path, line, refused=f"the first line is not a header of version {FORMAT_VERSION}"
                )
                continue
            later = [file for other, file in self.files.items() if other > number and not file.refused]
            last_step = min((file.resumed_from_step for file in later), default=math.inf)
            self.files[number] = _OpenFile(path, line, len(line) + 1, 0, step, last_step)
            for other, file in self.files.items():
                if other < number:
                    file.last_step = min(file.last_step, step)
            if not later:
                changed |= self._drop_after(step)
        return changed

    def _drop_after(self, step: int) -> bool:
        """Drop the points after a step, because those steps are trained again.

        Return whether there were points after the step.
        """
        changed = False
        for series in self.series.values():
            if len(series) and series.steps[-1] > step:
                series.keep(at <= step for at in series.steps)
                series.gaps.drop_from(step + 1)
                changed = True
        return changed

    def _read(self, file: _OpenFile, deadline: float | None) -> bool:
        changed, num_bytes = False, BLOCK_BYTES
        with file.path.open("rb") as stream:
            while True:
                stream.seek(file.offset)
                content, before = stream.read(num_bytes), file.offset
                changed |= self._take_block(file, content)
                if file.offset - (file.places[-1][0] if file.places else 0) >= BLOCK_BYTES // 2:
                    file.places.append((file.offset, file.highest_step))
                if len(content) < num_bytes:
                    file.seen_bytes = before + len(content)
                    return changed
                # If a line is longer than a block, double the size until the line fits.
                num_bytes = BLOCK_BYTES if file.offset > before else 2 * num_bytes
                if deadline is not None and time.monotonic() > deadline:
                    return changed

    def read_range(self, file: _OpenFile, begin: int, end: int, deadline: float) -> None:
        """Read the lines of a file between two offsets, both at line boundaries, until `deadline`."""
        part = _OpenFile(file.path, file.header, begin, last_step=file.last_step)
        num_bytes = BLOCK_BYTES
        with part.path.open("rb") as stream:
            while part.offset < end and time.monotonic() <= deadline:
                before = part.offset
                stream.seek(before)
                self._take_block(part, stream.read(min(num_bytes, end - before)))
                num_bytes = BLOCK_BYTES if part.offset > before else 2 * num_bytes

    def _take_block(self, file: _OpenFile, content: bytes) -> bool:
        """Read the complete lines of a block, and return whether a scalar was added."""
        rows, at = [], file.offset
        for line in content.split(b"\n")[:-1]:
            row = parsed(line)
            if row is None:
                file.first_skipped = file.first_skipped if file.skipped_lines else at
                file.skipped_lines += 1
            elif row["step"] <= file.last_step:
                rows.append(row)
            at += len(line) + 1
        file.offset = at
        if not rows:
            return False
        file.highest_step = max(file.highest_step, max(row["step"] for row in rows))
        return self._take_rows(rows)

    def _take_rows(self, rows: list[Row]) -> bool:
        """Add the scalars of lines, tag by tag. Return whether a scalar was added."""
        by_keys: dict[tuple[str, ...], list[int]] = {}
        for number, row in enumerate(rows):
            by_keys.setdefault(tuple(row), []).append(number)
        kinds_of_tag: dict[str, int] = {}
        for tag in itertools.chain.from_iterable(by_keys):
            kinds_of_tag[tag] = kinds_of_tag.get(tag, 0) + 1
        changed = False
        for keys, numbers in by_keys.items():
            same = [rows[number] for number in numbers]
            columns = dict(zip(keys, zip(*(row.values() for row in same))))
            changed |= self._take_columns(
                columns, [tag for tag in keys if tag not in KEYS and kinds_of_tag[tag] == 1]
            )
        # Tags that only some lines have, such as the gradient norm, which overflow steps lack.
        for tag, kinds in kinds_of_tag.items():
            if kinds > 1 and tag not in KEYS:
                with_tag = [row for row in rows if tag in row]
                columns = {key: tuple(row[key] for row in with_tag) for key in ("step", "wall_time", tag)}
                changed |= self._take_columns(columns, [tag])
        return changed

    def _take_columns(self, columns: Mapping[str, Sequence[Any]], tags: list[str]) -> bool:
        steps, wall_times = columns["step"], columns["wall_time"]
        rising = all(map(operator.lt, steps, steps[1:]))
        wanted = [tag for tag in tags if self._wanted(tag)]
        for tag in wanted:
            values = _numbers(columns[tag])
            series = self.series.get(tag)
            if series is None:
                series = self.series[tag] = self._points()
            if rising:
                series.put_many(steps, values, wall_times)
                continue
            for point in zip(steps, values, wall_times):
                series.put(*point)
        return bool(wanted)


_NUMBERS = {int, float}


def parsed(line: bytes) -> Row | None:
    """Parse a line; return None if it does not contain valid scalars."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if (
        type(row) is not dict
        or type(row.get("step")) is not int
        or type(row.get("wall_time")) not in _NUMBERS
    ):
        return None
    if not _NUMBERS.issuperset(map(type, row.values())):
        for value in row.values():
            if type(value) not in _NUMBERS and value not in NOT_FINITE:
                return None
    return row


def _numbers(values: Sequence[Any]) -> Sequence[float]:
    """Return the values of a tag as floats. In the file, NaN and infinities are strings."""
    return values if set(map(type, values)) == {float} else list(map(float, values))


def _first_line(path: Path) -> tuple[bytes, bool]:
    """Return (first line of a file, whether the line is complete or too long for a header)."""
    with path.open("rb") as stream:
        line, newline, _ = stream.read(_HEADER_BYTES).partition(b"\n")
    return line, bool(newline) or len(line) == _HEADER_BYTES


def resumed_from_step(path: Path) -> int | None:
    """Return the step that the job of a metrics file resumed from.

    None if the header is incomplete, or not a header of a known version.
    """
    line, is_complete = _first_line(path)
    return _resumed_from_step(line) if is_complete else None


def _resumed_from_step(header: bytes) -> int | None:
    """Return the step in a header; None if the line is not a header of a known version."""
    try:
        value = orjson.loads(header)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or (value.get("format"), value.get("version")) != (FORMAT, FORMAT_VERSION):
        return None
    step = value.get("resumed_from_step")
    return step if type(step) is int else None
