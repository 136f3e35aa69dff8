"""Reads scalars from TensorBoard event files of other programs, such as Megatron-DeepSpeed.

nbtrain's own runs are read from metrics.jsonl (metrics_reader.py). TensorBoard's loader checks every record's
checksum in Python, which takes about 25 microseconds per scalar, so a progress bar is shown for a large
folder.
"""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.monitor.metrics.series import Series

FILE_GLOB = "*tfevents*"
COUNTED_BY_OTHERS = (" vs tokens", " vs samples")
"""Suffixes of tags whose "step" counts tokens or samples."""
# Bytes of a record besides its content: the length, and the checksums of length and content.
_FRAME_BYTES = 16
# Up to this size, reading takes less than two seconds, so no progress bar is shown.
_QUIET_BYTES = 8 << 20


def read_event_files(folder: Path) -> dict[str, Series]:
    """Return the scalars in a folder of event files as {tag: Series}.

    Files are read in the order in which they were created, and the newest value of a step counts. A
    SessionLog START, which `purge_step` of torch's SummaryWriter writes, replaces all points of the earlier
    files from its step on: these points are dropped (see _purge()). Warns if only a part of a file can be
    read.

    Raises DataError, which names subfolders with event files, if the folder contains no event file.
    """
    files = event_files(folder)
    if not files:
        below = sorted({path.parent.relative_to(folder).as_posix() for path in folder.rglob(FILE_GLOB)})
        hint = f" These subfolders do: {', '.join(below[:5])}." if below else ""
        raise DataError(f"{folder} contains no TensorBoard event file (*tfevents*).{hint}")
    series: dict[str, Series] = {}
    num_bytes = sum(path.stat().st_size for path in files)
    if num_bytes < _QUIET_BYTES:
        for path in files:
            for _ in _read_file(path, series):
                pass
        return series
    with Progress(f"reading event files of {folder.name}", num_bytes, "B") as progress:
        for path in files:
            for record_bytes in _read_file(path, series):
                progress.update(record_bytes)
    return series


def event_files(folder: Path) -> list[Path]:
    """Return the event files in a folder, oldest first by the time in their names."""
    return sorted((path for path in folder.glob(FILE_GLOB) if path.is_file()), key=_opened_at)


def _opened_at(path: Path) -> tuple[int, str]:
    stamp = path.name.partition("tfevents.")[2].partition(".")[0]
    return (int(stamp) if stamp.isdigit() else 0, path.name)


def _read_file(path: Path, series: dict[str, Series]) -> Iterator[int]:
    """Add the scalars of a file to `series`, and yield the size of each record."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    num_bytes, read_bytes = path.stat().st_size, 0
    try:
        for record in RawEventFileLoader(str(path)).Load():
            _add_event(Event.FromString(record), series)
            read_bytes += _FRAME_BYTES + len(record)
            yield _FRAME_BYTES + len(record)
    except DecodeError:
        # The unread bytes are reported below.
        pass
    if read_bytes < num_bytes:
        warnings.warn(
            f"{path}: only {read_bytes:,} of {num_bytes:,} bytes were read, because the next record is "
            "incomplete or damaged. If no program is writing the file, restore it from a copy.",
            stacklevel=4,
        )


def _add_event(event: Any, series: dict[str, Series]) -> None:
    if event.HasField("session_log"):
        if event.session_log.status == event.session_log.START:
            _purge(event.step, series)
        return
    for value in event.summary.value:
        number = _number(value)
        if number is not None:
            series.setdefault(value.tag, Series()).put(event.step, number, event.wall_time)


def _number(value: Any) -> float | None:
    """Return the scalar in a Summary.Value (a simple_value or a rank-0 tensor); None for anything else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    number = make_ndarray(value.tensor)
    return float(number) if number.dtype.kind == "f" else None


def _purge(step: int, series: dict[str, Series]) -> None:
    """Drop the points at or after `step`.

    The "step" of some tags counts tokens or samples and cannot be compared with `step`. Their points are
    dropped by time: from the time at which the first of the other dropped points was written.
    """
    by_step = [points for tag, points in series.items() if not tag.endswith(COUNTED_BY_OTHERS)]
    late = [at for points in by_step for own, at in zip(points.steps, points.wall_times) if own >= step]
    for points in by_step:
        points.keep(own < step for own in points.steps)
        points.gaps.drop_from(step)
    first = min(late, default=math.inf)
    for tag, points in series.items():
        if tag.endswith(COUNTED_BY_OTHERS):
            points.keep(at < first for at in points.wall_times)
