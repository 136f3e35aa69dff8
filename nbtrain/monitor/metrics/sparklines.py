"""A run's loss in few points, for the list of runs. A long run takes no more time than a short one.

    Sparklines().of(run)  ->  {"steps", "values", "label"}, or None without two points

Metrics files of up to WHOLE_BYTES are read completely. In longer files, POINTS windows of WINDOW_BYTES are
read, and the first line with a loss in each window becomes a point, which takes 1 ms for a run of any length.
A run is read again only if one of its metrics files has changed.
"""

import math
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.metrics_files import metrics_files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.metrics.curves import band, six_digits
from nbtrain.monitor.metrics.metrics_reader import ScalarReader, parsed, resumed_from_step

POINTS = 20
WHOLE_BYTES = 16 << 10
# A line with 40 scalars takes 2 KiB.
WINDOW_BYTES = 8 << 10
# Size of the window if WINDOW_BYTES contain no loss. A line with the losses of 1,000 datasets takes 60 KiB.
LONG_WINDOW_BYTES = 128 << 10
# Maximum number of cached runs, 1 KB each.
MOST_RUNS = 4096

LOSS = scalar("loss").tag


class Sparklines:
    """A cache of sampled losses of many runs, each valid until its metrics files change. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[tuple[str, int, int]], dict[str, Any] | None]] = {}
        self._lock = threading.Lock()

    def of(self, run: RunDir) -> dict[str, Any] | None:
        """Return a run's loss as {"steps", "values", "label"}; None if it has fewer than two points."""
        files = [path for _, path in metrics_files(run.tensorboard)]
        found = [(path.name, path.stat()) for path in files]
        # A run that was deleted and trained again may have files with the same names and sizes.
        stamps = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
        kept = self._kept.get(str(run.path))
        if kept is not None and kept[0] == stamps:
            return kept[1]
        answer = _described(sampled_loss(run.tensorboard, files, sum(size for _, size, _ in stamps)))
        with self._lock:
            if len(self._kept) >= MOST_RUNS:
                self._kept.clear()
            self._kept[str(run.path)] = (stamps, answer)
        return answer


def sampled_loss(folder: Path, files: list[Path], num_bytes: int) -> list[tuple[int, float]]:
    """Return about POINTS pairs (step, loss) from the metrics files of a folder.

    `num_bytes` is the total size of `files`. As in ScalarReader, steps that a later file trained again do not
    count.
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
        begin = resumed_from_step(path)
        if begin is None:
            continue
        while points and points[-1][0] > begin:
            points.pop()
        points += _sampled(path, max(2, round(POINTS * path.stat().st_size / num_bytes)))
    return points


def _sampled(path: Path, num: int) -> list[tuple[int, float]]:
    """Return the losses at `num` positions in a file, spread evenly from its start to its end."""
    size = path.stat().st_size
    points: dict[int, float] = {}
    with path.open("rb") as stream:
        for place in range(num):
            begin = max(0, size - WINDOW_BYTES) * place // (num - 1)
            is_last = place == num - 1
            for num_bytes in (WINDOW_BYTES, LONG_WINDOW_BYTES):
                start = max(0, size - num_bytes) if is_last else begin
                lines = os.pread(stream.fileno(), num_bytes, start).split(b"\n")
                # The window may begin and end in the middle of a line.
                complete = lines[1 if start else 0 : -1]
                if loss := _first_loss(reversed(complete) if is_last else complete):
                    points.update(loss)
                    break
    return list(points.items())


def _first_loss(lines: Iterable[bytes]) -> dict[int, float]:
    """Return {step: loss} from the first line that contains a loss; {} if no line does."""
    for line in lines:
        row = parsed(line)
        if row is not None and LOSS in row:
            return {row["step"]: float(row[LOSS])}
    return {}


def _described(points: list[tuple[int, float]]) -> dict[str, Any] | None:
    """Return the points with a label for screen readers; None for fewer than two points."""
    finite = [value for _, value in points if math.isfinite(value)]
    if len(points) < 2 or not finite:
        return None
    (first, _), (last, newest) = points[0], points[-1]
    ends = f"{finite[-1]:.4g}" if math.isfinite(newest) else "NaN"
    label = f"loss {finite[0]:.4g} at step {first:,}, {ends} at step {last:,}"
    values = [six_digits(value) if math.isfinite(value) else None for _, value in points]
    return {"steps": [step for step, _ in points], "values": values, "label": label}
