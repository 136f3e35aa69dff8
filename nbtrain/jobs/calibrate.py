"""`nbtrain calibrate`: measures this machine and files the figures for plans.

The GPU side measures what needs torch (nbtrain/train/calibration); the disk of the output root is measured
here. The file: planner/calibration.py.
"""

import contextlib
import datetime
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.cgroup import usable_cores
from nbtrain.base.errors import ConfigError
from nbtrain.base.progress import Progress
from nbtrain.base.workspace import display, output_root
from nbtrain.jobs.gpu_side import stream
from nbtrain.jobs.machine import visible_gpus
from nbtrain.planner.calibration import Calibration, machine_key, write_calibration
from nbtrain.planner.calibration_view import lines, picture

LEAST_SECONDS, MOST_SECONDS = 20.0, 3600.0
DISK_BYTES = 256 << 20
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Calibrated:
    """What a calibration has measured. Printed or shown in a cell, it is a table."""

    calibration: Calibration
    path: Path | None
    """Where it was written; None for a trial."""

    def __str__(self) -> str:
        where = f"Written to {display(self.path)}; plans use it." if self.path else "Nothing was written."
        return "\n".join([*lines(self.calibration), "", where])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        made = self.calibration
        return {
            "machine": made.machine,
            "date": made.date,
            "seconds": made.seconds,
            "device": made.device,
            "disk": made.disk,
            "figures": made.figures,
        }

    def picture(self) -> Any:
        """Matplotlib figure: bandwidth of collectives by message size, rates of products by precision."""
        return picture(self.calibration)


def calibrate(seconds: float = 120.0, clock: str = "wall") -> Calibrated:
    """Measure this machine's device in about `seconds` and write calibration.json.

    `clock` is wall, or cpu for a trial beside other work: the processes' own CPU time is counted then, and
    nothing is written. Raises ConfigError for seconds out of bounds.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ConfigError(
            f"seconds = {seconds:g} must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g}: every figure is the "
            "median of several calls."
        )
    started, figures = time.monotonic(), []
    gpus = len(visible_gpus())
    device = "gpu" if gpus else "cpu"
    request = {
        "device": device,
        "cores": gpus or usable_cores(),
        "seconds": seconds,
        "clock": clock,
    }
    with contextlib.ExitStack() as stack:
        bar = None
        for answer in stream("nbtrain.train.calibration", request):
            if answer["kind"] == "plan":
                bar = stack.enter_context(Progress("calibrate", answer["figures"], "figures"))
            elif answer["kind"] == "figure":
                figures.append({key: value for key, value in answer.items() if key != "kind"})
                if bar is not None:
                    bar.update(1, now=_words(answer))
    disk = disk_rates(output_root())
    taken = round(time.monotonic() - started, 1)
    made = Calibration(machine_key(), datetime.date.today().isoformat(), taken, figures, disk, device)
    return Calibrated(made, None if clock == "cpu" else write_calibration(made))


def disk_rates(folder: Path, size: int = DISK_BYTES) -> dict[str, float]:
    """Bytes a second of writing (with fsync) and of reading one file of `size` bytes in `folder`.

    The file's pages are dropped from the cache before it is read. Raises OSError, naming the folder, if
    nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(CHUNK_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".calibrate-") as stream_:
        started = time.perf_counter()
        for _ in range(size // CHUNK_BYTES):
            stream_.write(block)
        stream_.flush()
        os.fsync(stream_.fileno())
        written = time.perf_counter()
        os.posix_fadvise(stream_.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        stream_.seek(0)
        begun = time.perf_counter()
        while stream_.read(CHUNK_BYTES):
            pass
        read = time.perf_counter()
    return {
        "write_bytes_per_second": size / (written - started),
        "read_bytes_per_second": size / (read - begun),
    }


def _words(answer: dict[str, Any]) -> str:
    what = answer.get("collective") or answer["what"]
    ranks = amounts.counted(answer["ranks"], "rank")
    return f"{what} {answer.get('dtype', '')}".strip() + f" on {ranks}"
