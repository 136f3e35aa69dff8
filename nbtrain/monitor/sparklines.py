"""The loss of a run in few points for the list of runs, sampled: a long run costs as little as a short one.

    Sparklines().of(run)  ->  {"steps", "values", "label"}, or None without two points

Event files of up to WHOLE_BYTES are read completely. Of longer ones, POINTS pieces of WINDOW_BYTES are read,
and the first record of the loss in each piece becomes a point: 1 ms for a run of any length. A run is read
again if the size of one of its event files has changed.
"""

import math
import os
import re
import threading
from pathlib import Path
from typing import Any

from nbtrain.base.metrics import scalar
from nbtrain.base.rundir import RunDir
from nbtrain.monitor.snapshot import band, six_digits
from nbtrain.monitor.tfevents import ScalarReader, event_files, masked_crc32c

POINTS = 20
WHOLE_BYTES = 16 << 10
# A step of 40 scalars takes 4 KiB.
WINDOW_BYTES = 8 << 10
# Runs whose points are kept: 1 KB each.
MOST_RUNS = 4096

LOSS = scalar("loss").tag
# A summary's tag field, as it is in a record of the loss.
_TAG = b"\x0a" + bytes([len(LOSS)]) + LOSS.encode()
# The start of a record of less than 64 KiB: its length, the length's checksum, the field of its wall time.
_HEAD = re.compile(rb"(?s)(?=(..\x00{6})(.{4})\x09)")
_HEAD_BYTES, _FOOTER_BYTES = 12, 4


class Sparklines:
    """The sampled losses of many runs, each kept until its event files change. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[tuple[str, int]], dict[str, Any] | None]] = {}
        self._lock = threading.Lock()

    def of(self, run: RunDir) -> dict[str, Any] | None:
        """Return a run's loss as {"steps", "values", "label"}; None if it has fewer than two points."""
        files = event_files(run.tensorboard)
        sizes = [(path.name, path.stat().st_size) for path in files]
        kept = self._kept.get(str(run.path))
        if kept is not None and kept[0] == sizes:
            return kept[1]
        answer = _described(sampled_loss(run.tensorboard, files, sum(size for _, size in sizes)))
        with self._lock:
            if len(self._kept) >= MOST_RUNS:
                self._kept.clear()
            self._kept[str(run.path)] = (sizes, answer)
        return answer


def sampled_loss(folder: Path, files: list[Path], num_bytes: int) -> list[tuple[int, float]]:
    """Return at most about POINTS pairs (step, loss) of a folder with `files` of `num_bytes` in total.

    Steps that a restart trained again count once, with the values of the later file.
    """
    if num_bytes <= WHOLE_BYTES:
        reader = ScalarReader(folder, [LOSS])
        reader.refresh()
        series = reader.series.get(LOSS)
        if series is None:
            return []
        thinned = band(series.values, POINTS)
        return [(series.steps[at], value) for at, value in zip(thinned.at, thinned.values)]
    points: list[tuple[int, float]] = []
    for path in files:
        own = _sampled(path, max(2, round(POINTS * path.stat().st_size / num_bytes)))
        while own and points and points[-1][0] >= own[0][0]:
            points.pop()
        points += own
    return points


def _sampled(path: Path, num: int) -> list[tuple[int, float]]:
    """Return the losses of `num` places of a file, from its first to its last."""
    size = path.stat().st_size
    reader = ScalarReader(path.parent, [LOSS])
    with path.open("rb") as stream:
        for place in range(num):
            begin = max(0, size - WINDOW_BYTES) * place // (num - 1)
            content = os.pread(stream.fileno(), WINDOW_BYTES, begin)
            if record := _record(content, is_last=place == num - 1):
                reader.read_piece(path, begin + record[0], begin + record[1], math.inf)
    series = reader.series.get(LOSS)
    return [] if series is None else list(zip(series.steps, series.values))


def _record(content: bytes, is_last: bool) -> tuple[int, int] | None:
    """Return begin and end of the first, or last, complete record of the loss in a piece of a file."""
    find = content.rfind if is_last else content.find
    begin, end = 0, len(content)
    while (tag_at := find(_TAG, begin, end)) >= 0:
        for head in reversed([*_HEAD.finditer(content, max(0, tag_at - WINDOW_BYTES), tag_at)]):
            length, check = (int.from_bytes(part, "little") for part in head.groups())
            record_end = head.start() + _HEAD_BYTES + length + _FOOTER_BYTES
            if record_end > tag_at and check == masked_crc32c(head.group(1)):
                if record_end <= len(content):
                    return head.start(), record_end
                break
        begin, end = (begin, tag_at) if is_last else (tag_at + 1, end)
    return None


def _described(points: list[tuple[int, float]]) -> dict[str, Any] | None:
    """Return the points with a sentence for screen readers; None for fewer than two."""
    finite = [value for _, value in points if math.isfinite(value)]
    if len(points) < 2 or not finite:
        return None
    (first, _), (last, newest) = points[0], points[-1]
    ends = f"{finite[-1]:.4g}" if math.isfinite(newest) else "NaN"
    label = f"loss {finite[0]:.4g} at step {first:,}, {ends} at step {last:,}"
    values = [six_digits(value) if math.isfinite(value) else None for _, value in points]
    return {"steps": [step for step, _ in points], "values": values, "label": label}
