"""Scalars out of TensorBoard event files: ours, Megatron-DeepSpeed's, anybody's.

    record := uint64 length | uint32 masked crc of the length | length bytes of Event | uint32 crc of them

A restarted run opens a new event file and writes some steps again. As in TensorBoard, the newest value of a
step wins, and a SessionLog START (what `purge_step` writes) drops everything older at or after its step; so
does the mark of a resumed run, metrics.RESUMED.
Unlike TensorBoard, a purge step is not compared with tags whose "step" counts tokens or samples ("... vs
tokens"): of such tags, the points that were written together with the dropped steps are dropped.

Only TensorBoard's Event message is imported (30 ms), so neither torch nor TensorFlow is ever loaded.
Price: about 3 microseconds an event at the first look; later looks read only what was appended.
"""

import bisect
import functools
import itertools
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.metrics import BY_NAME, RESUMED

FILE_GLOB = "*tfevents*"
COUNTED_BY_OTHERS = (" vs tokens", " vs samples")
LOSS_TAG = BY_NAME["loss"].tag

_LENGTH = struct.Struct("<QI")
_FOOTER_BYTES = 4
# A scalar event has about 100 bytes; one with an image or a graph may have megabytes.
_LARGEST_RECORD_BYTES = 1 << 31
_SCALAR_BYTES = 400
_COUNTED = re.compile("|".join(COUNTED_BY_OTHERS).encode())


@dataclass
class Series:
    """One tag: points by ascending step, one per step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    wall_times: list[float] = field(default_factory=list)
    """Seconds since the epoch."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """Value of the highest step, or None."""
        return self.values[-1] if self.values else None

    def put(self, step: int, value: float, wall_time: float) -> None:
        """Add a point; of two points at one step, the later one by clock stays."""
        at = bisect.bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            self.steps.insert(at, step)
            self.values.insert(at, value)
            self.wall_times.insert(at, wall_time)
        elif wall_time >= self.wall_times[at]:
            self.values[at], self.wall_times[at] = value, wall_time

    def keep(self, wanted: Iterable[bool]) -> None:
        """Drop the points whose flag is false."""
        chosen = [at for at, flag in enumerate(wanted) if flag]
        self.steps = [self.steps[at] for at in chosen]
        self.values = [self.values[at] for at in chosen]
        self.wall_times = [self.wall_times[at] for at in chosen]


@dataclass
class _OpenFile:
    """How far one event file has been read."""

    offset: int = 0
    broken: str | None = None


class ScalarReader:
    """Scalars of one folder, read again and again while it grows. One thread at a time."""

    def __init__(self, folder: str | os.PathLike, tags: Iterable[str] | Callable[[str], bool] | None = None):
        """`tags`: the tags to read, or a function that says whether a tag is read; None reads all."""
        self.folder = Path(folder)
        self.series: dict[str, Series] = {}
        self.warnings: list[str] = []
        """What could not be read, one line per file."""
        asked = tags if tags is None or callable(tags) else frozenset(tags).__contains__
        self._wanted = functools.cache(asked) if asked is not None else lambda tag: True
        # More than half of a run's events count tokens or samples: passed over as bytes if nobody asks.
        self._all_kinds = any(self._wanted(f"{LOSS_TAG}{ending}") for ending in COUNTED_BY_OTHERS)
        self._files: dict[str, _OpenFile] = {}
        # (wall time of the session that purged, its step, first wall time that it dropped)
        self._purges: list[tuple[float, int, float]] = []

    def refresh(self) -> bool:
        """Read what was appended since the last call; whether there was anything.

        A record without its end waits for the next call; a folder that does not exist has no points.
        """
        changed = False
        for path in event_files(self.folder):
            state = self._files.setdefault(path.name, _OpenFile())
            if state.broken is None and path.stat().st_size > state.offset:
                for event in self._new_events(path, state):
                    changed |= self._take(event)
        return changed

    def _new_events(self, path: Path, state: _OpenFile) -> Iterator[Any]:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto import event_pb2

        with path.open("rb") as stream:
            stream.seek(state.offset)
            content = stream.read()
        at = 0
        while len(content) - at >= _LENGTH.size:
            length, check = _LENGTH.unpack_from(content, at)
            if check != _length_check(content[at : at + 8]) or length > _LARGEST_RECORD_BYTES:
                self._give_up(path, state, "the length of a record fails its check")
                return
            start, end = at + _LENGTH.size, at + _LENGTH.size + length
            if end + _FOOTER_BYTES > len(content):
                return
            at = end + _FOOTER_BYTES
            if not self._all_kinds and length < _SCALAR_BYTES and _COUNTED.search(content, start, end):
                state.offset += length + _LENGTH.size + _FOOTER_BYTES
                continue
            try:
                event = event_pb2.Event.FromString(content[start:end])
            except DecodeError:
                self._give_up(path, state, "a record is no TensorBoard event")
                return
            state.offset += length + _LENGTH.size + _FOOTER_BYTES
            yield event

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
            if number is not None and not self._was_purged(value.tag, event.step, event.wall_time):
                self.series.setdefault(value.tag, Series()).put(event.step, number, event.wall_time)
                changed = True
        return changed

    def _purge(self, session_wall_time: float, step: int) -> bool:
        """Forget what an earlier session wrote at or after `step`."""
        dropped_from = session_wall_time
        for tag, series in self.series.items():
            if tag.endswith(COUNTED_BY_OTHERS):
                continue
            points = zip(series.steps, series.wall_times)
            late = [at >= step and wall < session_wall_time for at, wall in points]
            dropped_from = min([dropped_from, *itertools.compress(series.wall_times, late)])
            series.keep(not is_late for is_late in late)
        for tag, series in self.series.items():
            if tag.endswith(COUNTED_BY_OTHERS):
                series.keep(not dropped_from <= wall < session_wall_time for wall in series.wall_times)
        self._purges.append((session_wall_time, step, dropped_from))
        return dropped_from < session_wall_time

    def _was_purged(self, tag: str, step: int, wall_time: float) -> bool:
        """Whether a point of a slow older writer belongs to what a later session has dropped."""
        if tag.endswith(COUNTED_BY_OTHERS):
            return any(dropped_from <= wall_time < session for session, _, dropped_from in self._purges)
        return any(wall_time < session and step >= first for session, first, _ in self._purges)


def read_scalars(folder: str | os.PathLike, tags: Iterable[str] | None = None) -> dict[str, Series]:
    """Every scalar of a folder of event files: {tag: Series}; `tags` picks some.

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
    """Event files of a folder, oldest first; their names begin with the time they were opened."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.glob(FILE_GLOB) if path.is_file()), key=_opened_at)


def _opened_at(path: Path) -> tuple[int, str]:
    stamp = path.name.partition("tfevents.")[2].partition(".")[0]
    return (int(stamp) if stamp.isdigit() else 0, path.name)


# Of DT_FLOAT and DT_DOUBLE.
_FORMATS = {1: "<f", 2: "<d"}


def _number(value: Any) -> float | None:
    """The scalar in a Summary.Value: simple_value (torch, Megatron) or a rank 0 tensor (TensorBoard 2)."""
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
    """CRC-32C as TFRecord masks it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Most records of a file have one of a few lengths.
_length_check = functools.lru_cache(4096)(masked_crc32c)
