"""Scalars from TensorBoard event files: ours, Megatron-DeepSpeed's, or any other program's.

    record := uint64 length | uint32 masked crc of the length | length bytes of Event | uint32 crc of them

A restarted run opens a new event file and writes some steps again. As in TensorBoard, the newest value of a
step wins, and a SessionLog START (what `purge_step` writes) drops everything older at or after its step; so
does the mark of a resumed run, metrics.RESUMED.
Unlike TensorBoard, a purge step is not compared with tags whose "step" counts tokens or samples ("... vs
tokens"): of such tags, the points that were written together with the dropped steps are dropped.

Only TensorBoard's Event message is imported (30 ms), so neither torch nor TensorFlow is ever loaded; an event
that holds one scalar is taken apart without it, and steps that look like the step before are taken apart at
once (event_steps.py). Price: about 0.5 microseconds an event at the first look, 2 if no step looks like the
one before; later looks read only what was appended. At most BLOCK_BYTES of a file are held.
"""

import bisect
import functools
import itertools
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbtrain.base.errors import DataError
from nbtrain.base.metrics import RESUMED
from nbtrain.monitor.event_steps import Found, Shape

FILE_GLOB = "*tfevents*"
COUNTED_BY_OTHERS = (" vs tokens", " vs samples")
COUNTED_BYTES = tuple(tag.encode() for tag in COUNTED_BY_OTHERS)

_LENGTH = struct.Struct("<QI")
_FOOTER_BYTES = 4
# A scalar event has about 100 bytes; one with an image or a graph may have megabytes.
_LARGEST_RECORD_BYTES = 1 << 31
_SCALAR_BYTES = 400
# Bytes of a file that are read at a time.
BLOCK_BYTES = 1 << 20

# An Event with one Summary.Value with tag and simple_value, as torch and Megatron write it: wall_time (1),
# step (2), summary (5) with value (1) with tag (1) and simple_value (2); event.proto, summary.proto.
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_ONE_SCALAR = re.compile(
    rb"(?s)\x09.{8}(?:\x10(%b))?\x2a%b\x0a%b\x0a(%b)(.*)\x15.{4}" % (_VARINT, _VARINT, _VARINT, _VARINT)
)
_WALL = struct.Struct("<d")
_VALUE = struct.Struct("<f")


class Points(Protocol):
    """Points of one tag that a reader keeps."""

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
    """Ranges of steps at which a curve is NaN or Inf, in the order in which they were read."""

    # A curve with more ranges is broken at so many places that one range covers the newest.
    MOST = 200

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []
        """[first step, last step] of each range."""
        self._open = False

    def note(self, step: int, value: float) -> None:
        """Note the next point of the curve."""
        if math.isfinite(value):
            self._open = False
        elif (self._open or len(self.ranges) == self.MOST) and step > self.ranges[-1][1]:
            self.ranges[-1][1] = step
        elif len(self.ranges) < self.MOST:
            self.ranges.append([step, step])
            self._open = True

    def note_many(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Note points whose steps rise; a sum tells in a tenth of the time that all of them are finite."""
        if math.isfinite(sum(values)):
            self._open = False
            return
        for step, value in zip(steps, values):
            self.note(step, value)

    def drop_from(self, step: int) -> None:
        """Forget the steps from `step` on, which are trained again."""
        self.ranges = [[first, min(last, step - 1)] for first, last in self.ranges if first < step]
        self._open = False


@dataclass
class Series:
    """One tag: points by ascending step, one per step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    wall_times: list[float] = field(default_factory=list)
    """Seconds since the epoch."""
    gaps: Gaps = field(default_factory=Gaps, compare=False, repr=False)
    """Ranges of steps whose value is NaN or Inf."""

    @property
    def means(self) -> list[float]:
        """Return the values: each point stands for itself."""
        return self.values

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """Value of the highest step, or None."""
        return self.values[-1] if self.values else None

    def put(self, step: int, value: float, wall_time: float) -> None:
        """Add a point; of two points at one step, the later one by clock stays."""
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
        elif wall_time >= self.wall_times[at]:
            self.values[at], self.wall_times[at] = value, wall_time

    def put_many(self, steps: Sequence[int], values: Sequence[float], wall_times: Sequence[float]) -> None:
        """Add points whose steps rise."""
        if self.steps and steps[0] <= self.steps[-1]:
            for point in zip(steps, values, wall_times):
                self.put(*point)
            return
        self.gaps.note_many(steps, values)
        self.steps.extend(steps)
        self.values.extend(values)
        self.wall_times.extend(wall_times)

    def keep(self, wanted: Iterable[bool]) -> None:
        """Drop the points whose flag is false."""
        chosen = [at for at, flag in enumerate(wanted) if flag]
        self.steps = [self.steps[at] for at in chosen]
        self.values = [self.values[at] for at in chosen]
        self.wall_times = [self.wall_times[at] for at in chosen]


@dataclass
class _OpenFile:
    """Reading position in one event file."""

    offset: int = 0
    broken: str | None = None
    places: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (offset, a step just before it) about every BLOCK_BYTES, for a reader of a range of steps."""


class ScalarReader:
    """A reader of the scalars of one folder while it grows. One thread at a time."""

    by_steps = True
    """Whether several steps may be read at once, tag by tag."""

    def __init__(
        self,
        folder: str | os.PathLike,
        tags: Iterable[str] | Callable[[str], bool] | None = None,
        points: Callable[[], Points] = Series,
    ):
        """Create a reader.

        `tags` are the tags to read, or a function that says whether a tag is read; None reads all. `points`
        makes the container of a tag's points, by default one that keeps all.
        """
        self.folder = Path(folder)
        self.series: dict[str, Any] = {}
        self.warnings: list[str] = []
        """Warnings about unreadable parts, one line per file."""
        self.behind_bytes = 0
        """Number of bytes that refresh() did not have time to read."""
        self._points = points
        asked = tags if tags is None or callable(tags) else frozenset(tags).__contains__
        self._wanted = functools.cache(asked) if asked is not None else lambda tag: True
        # {tag in a file: its points, None if it was not requested}
        self._by_tag: dict[bytes, Points | None] = {}
        self._step = 0
        self._shape: Shape | None = None
        self.files: dict[str, _OpenFile] = {}
        # (wall time of the session that purged, its step, first wall time that it dropped)
        self.purges: list[tuple[float, int, float]] = []

    def refresh(self, seconds: float | None = None) -> bool:
        """Read the data appended since the last call, and return whether there was any.

        An incomplete record is read in the next call, and so is data that is not read after `seconds`. A
        folder that does not exist has no points.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        changed, self.behind_bytes = False, 0
        for path in event_files(self.folder):
            state = self.files.setdefault(path.name, _OpenFile())
            if state.broken is None and (size := path.stat().st_size) > state.offset:
                if self.behind_bytes == 0:
                    changed |= self._read(path, state, deadline)
                late = deadline is not None and time.monotonic() > deadline
                self.behind_bytes += max(0, size - state.offset) if late or self.behind_bytes else 0
        return changed

    def _read(self, path: Path, state: _OpenFile, deadline: float | None) -> bool:
        changed, asked_bytes, whole = False, BLOCK_BYTES, True
        with path.open("rb") as stream:
            while whole and state.broken is None:
                stream.seek(state.offset)
                content = stream.read(asked_bytes)
                whole, before = len(content) == asked_bytes, state.offset
                changed |= self._take_block(path, state, content)
                # A record that is longer than a block is read separately.
                longer = _LENGTH.size + _FOOTER_BYTES + (_LENGTH.unpack_from(content)[0] if whole else 0)
                asked_bytes = BLOCK_BYTES if state.offset > before else max(BLOCK_BYTES, longer)
                if state.offset - (state.places[-1][0] if state.places else 0) >= BLOCK_BYTES // 2:
                    state.places.append((state.offset, self._step))
                if deadline is not None and time.monotonic() > deadline:
                    break
        return changed

    def read_piece(self, path: Path, begin: int, end: int, deadline: float) -> None:
        """Read the records from one offset to another, which another reader has found."""
        state = _OpenFile(begin)
        with path.open("rb") as stream:
            while state.offset < end and time.monotonic() <= deadline:
                before = state.offset
                stream.seek(before)
                self._take_block(path, state, stream.read(min(BLOCK_BYTES, end - before)))
                if state.offset == before:
                    # A record that is longer than a block holds no scalar to draw.
                    stream.seek(before)
                    length = _LENGTH.unpack(stream.read(_LENGTH.size))[0]
                    state.offset += _LENGTH.size + length + _FOOTER_BYTES

    def _take_block(self, path: Path, state: _OpenFile, content: bytes) -> bool:
        """Read the complete records of a piece of a file, and return whether any changed a series."""
        at, changed, first = 0, False, state.offset
        # The records of one step so far: the step is complete when the tag of its first record repeats.
        records: list[Found] = []
        while len(content) - at >= _LENGTH.size:
            length, check = _LENGTH.unpack_from(content, at)
            if check != _length_check(content[at : at + 8]) or length > _LARGEST_RECORD_BYTES:
                self._give_up(path, state, "the length of a record fails its check")
                break
            start = at + _LENGTH.size
            end = start + length
            if end + _FOOTER_BYTES > len(content):
                break
            if length < _SCALAR_BYTES and (found := _ONE_SCALAR.fullmatch(content, start, end)):
                step, size, tag = found.groups()
                if _varint(size) == len(tag):
                    if self.by_steps:
                        if (done := self._take_steps(content, at, tag, records)) > at:
                            at, changed = done, True
                            state.offset = first + at
                            continue
                        records.append(Found(at, start + 9, found.end(1) if step else start + 9, end, tag))
                    changed |= self._take_scalar(
                        tag,
                        _varint(step) if step else 0,
                        _WALL.unpack_from(content, start + 1)[0],
                        _VALUE.unpack_from(content, end - 4)[0],
                    )
                    at = end + _FOOTER_BYTES
                    state.offset = first + at
                    continue
            records.clear()
            event = _event(content[start:end])
            if event is None:
                self._give_up(path, state, "a record is no TensorBoard event")
                break
            changed |= self._take(event)
            at = end + _FOOTER_BYTES
            state.offset = first + at
        return changed

    def _take_steps(self, content: bytes, at: int, tag: bytes, records: list[Found]) -> int:
        """Read the steps from `at` on that have the shape of an earlier step, and return their end.

        `tag` is the tag of the record at `at`. `records` are the records before it; a step's end clears them.
        """
        ends = bool(records) and records[0].tag == tag
        shape = self._shape if self._shape and self._shape.first_tag == tag else None
        done = at if shape is None else self._take_shape(shape, content, at)
        # The points of a tag that occurs twice are not in the order of their columns.
        if ends and done == at and len({record.tag for record in records}) == len(records):
            self._shape = Shape(content, records, lambda tag: self._by_tag.get(tag) is not None)
            done = self._take_shape(self._shape, content, at)
        if ends or done > at:
            records.clear()
        return done

    def _take_shape(self, shape: Shape, content: bytes, at: int) -> int:
        try:
            columns, end = shape.take(content, at)
        except ValueError:
            return at
        if self.purges and columns:
            session = max(purge[0] for purge in self.purges)
            if min(min(column.wall_times) for column in columns) < session:
                # Points of an older, slower writer: each point is checked.
                return at
        for column in columns:
            series = self._by_tag[column.tag]
            assert series is not None, "a shape has columns of wanted tags alone"
            if column.rising:
                series.put_many(column.steps, column.values, column.wall_times)
            else:
                for point in zip(column.steps, column.values, column.wall_times):
                    series.put(*point)
            if not column.tag.endswith(COUNTED_BYTES):
                self._step = column.steps[-1]
        return end

    def _take_scalar(self, tag: bytes, step: int, wall_time: float, value: float) -> bool:
        if (series := self._by_tag.get(tag)) is None:
            if tag in self._by_tag:
                return False
            name = tag.decode("utf-8", "replace")
            if not self._wanted(name):
                self._by_tag[tag] = None
                return False
        if self.purges and self._was_purged(tag.decode("utf-8", "replace"), step, wall_time):
            return False
        if series is None:
            series = self._by_tag[tag] = self.series.setdefault(name, self._points())
        if not tag.endswith(COUNTED_BYTES):
            self._step = step
        series.put(step, value, wall_time)
        return True

    def _give_up(self, path: Path, state: _OpenFile, reason: str) -> None:
        state.broken = reason
        self.warnings.append(f"{path.name}: {reason} at byte {state.offset}; everything before it is shown.")

    def _take(self, event: Any) -> bool:
        if event.HasField("session_log"):
            log = event.session_log
            if log.status == log.START or (log.status == log.CHECKPOINT and log.msg == RESUMED):
                return self._purge(event.wall_time, event.step)
            return False
        changed = False
        for value in event.summary.value:
            number = _number(value) if self._wanted(value.tag) else None
            if number is not None:
                changed |= self._take_scalar(value.tag.encode(), event.step, event.wall_time, number)
        return changed

    def _purge(self, session_wall_time: float, step: int) -> bool:
        """Drop the points that an earlier session wrote at or after `step`."""
        dropped_from = session_wall_time
        for tag, series in self.series.items():
            if tag.endswith(COUNTED_BY_OTHERS):
                continue
            points = zip(series.steps, series.wall_times)
            late = [at >= step and wall < session_wall_time for at, wall in points]
            dropped_from = min([dropped_from, *itertools.compress(series.wall_times, late)])
            series.keep(not is_late for is_late in late)
            series.gaps.drop_from(step)
        for tag, series in self.series.items():
            if tag.endswith(COUNTED_BY_OTHERS):
                series.keep(not dropped_from <= wall < session_wall_time for wall in series.wall_times)
        self.purges.append((session_wall_time, step, dropped_from))
        return dropped_from < session_wall_time

    def _was_purged(self, tag: str, step: int, wall_time: float) -> bool:
        """Return whether a later session has dropped a point of a slow older writer."""
        if tag.endswith(COUNTED_BY_OTHERS):
            return any(dropped_from <= wall_time < session for session, _, dropped_from in self.purges)
        return any(wall_time < session and step >= first for session, first, _ in self.purges)


def read_scalars(folder: str | os.PathLike, tags: Iterable[str] | None = None) -> dict[str, Series]:
    """Return the scalars of a folder of event files as {tag: Series}; `tags` selects some of them.

    Raises DataError if the folder is missing or holds no event file, and names subfolders that hold some.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; a folder of TensorBoard event files is needed.")
    if not event_files(folder):
        below = sorted({path.parent.relative_to(folder).as_posix() for path in folder.rglob(FILE_GLOB)})
        hint = f" These folders below it do: {', '.join(below[:5])}." if below else ""
        raise DataError(f"{folder}: holds no TensorBoard event file (*tfevents*).{hint}")
    reader = ScalarReader(folder, tags)
    reader.refresh()
    return reader.series


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a folder, oldest first; their names begin with the time they were opened."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.glob(FILE_GLOB) if path.is_file()), key=_opened_at)


def _opened_at(path: Path) -> tuple[int, str]:
    stamp = path.name.partition("tfevents.")[2].partition(".")[0]
    return (int(stamp) if stamp.isdigit() else 0, path.name)


# Codes of DT_FLOAT and DT_DOUBLE.
_FORMATS = {1: "<f", 2: "<d"}


def _number(value: Any) -> float | None:
    """Return the scalar in a Summary.Value: simple_value, or a rank 0 tensor (TensorBoard 2)."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return None
    tensor = value.tensor
    if numbers := tensor.float_val or tensor.double_val:
        return numbers[0]
    if tensor.tensor_content and tensor.dtype in _FORMATS:
        return struct.unpack(_FORMATS[tensor.dtype], tensor.tensor_content)[0]
    return None


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc_table()


def masked_crc32c(content: bytes) -> int:
    """Return the CRC-32C masked as in TFRecord (tensorflow/core/lib/hash/crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Most records of a file have one of a few lengths.
_length_check = functools.lru_cache(4096)(masked_crc32c)


@functools.lru_cache(4096)
def _varint(content: bytes) -> int:
    """Decode a protobuf number: seven bits in each byte, the lowest first; int64 as two's complement."""
    value = 0
    for place, byte in enumerate(content):
        value |= (byte & 0x7F) << 7 * place
    return value if value < 1 << 63 else value - (1 << 64)


def _event(content: bytes) -> Any:
    """Return the Event message of a record; None if it is not an event."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        return event_pb2.Event.FromString(content)
    except DecodeError:
        return None
