"""`nbtrain calibrate`: measure this machine, and store the values for plans.

The GPU side measures everything that needs torch (nbtrain/train/calibration); this module measures the disk
with the output directory. planner/calibration/calibration.py reads and writes the file.
"""

import contextlib
import datetime
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.hardware.nvml import CUDA_DEVICES, visible_gpus
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Report, Result, Sentence
from nbtrain.base.text import amounts
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display, output_root
from nbtrain.jobs.gpu_side import stream
from nbtrain.jobs.machine.machine import lacking_cores
from nbtrain.planner.calibration.calibration import (
    Calibration,
    calibration_path,
    machine_key,
    write_calibration,
)
from nbtrain.planner.calibration.calibration_doubts import doubts
from nbtrain.planner.calibration_view import blocks, picture

# Limits and default of the measuring time. The minimum is the time in which two idle cores import torch and
# build DeepSpeed's engines.
LEAST_SECONDS, MOST_SECONDS, DEFAULT_SECONDS = 60.0, 3600.0, 180.0
DISK_BYTES = 256 << 20
CHUNK_BYTES = 4 << 20
# Seconds from the last measurement until all processes have ended and the file is written.
END_SECONDS = 2.0


@dataclass(frozen=True, repr=False)
class Calibrated(Result):
    """Result of a calibration, shown as a table when printed or at the end of a notebook cell."""

    calibration: Calibration
    path: Path | None
    """Path of the written calibration file; None if no file was written."""
    is_trial: bool = False
    """Whether the calibration was a trial, which writes nothing."""

    def as_report(self) -> Report:
        """Return the measured rates, and the path to which they were written."""
        made = self.calibration
        when = Sentence(f"{made.date}, {made.seconds:.0f} s")
        return Report(f"Calibration of {made.machine}", [when, *blocks(made), Sentence(self._where())])

    def _where(self) -> str:
        doubts = self.calibration.doubts
        if self.path is None and doubts and not self.is_trial:
            return (
                f"Not written: {display(calibration_path())} keeps its earlier, more reliable values. "
                "Calibrate again while the machine is idle."
            )
        if self.path is None:
            return "Nothing was written."
        if doubts:
            return (
                f"Written to {display(self.path)}. Plans use it for {self.calibration.oldest_days} days and "
                "mark it as doubtful. Calibrate again while the machine is idle."
            )
        return f"Written to {display(self.path)}; plans use it."

    def to_dict(self) -> dict[str, Any]:
        made = self.calibration
        return {
            "machine": made.machine,
            "date": made.date,
            "seconds": made.seconds,
            "device": made.device,
            "disk": made.disk,
            "doubts": made.doubts,
            "figures": made.figures,
        }

    def picture(self) -> Any:
        """Return a Matplotlib figure of the measured rates.

        It shows the bandwidth of collectives by size, and the throughput of matrix products by precision.
        """
        return picture(self.calibration)


def calibrate(seconds: float = DEFAULT_SECONDS, clock: str = "wall") -> Calibrated:
    """Measure this machine's devices in at most `seconds`, and write calibration.json.

    Values that other programs have disturbed are marked (planner/calibration/calibration_doubts.py). `clock`
    is "wall", or "cpu" for a trial while other programs run: then the processes' own CPU time is counted, and
    nothing is written. Raises ConfigError if `seconds` is out of bounds, and JobError if the time is not
    sufficient for all values.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ConfigError(
            f"seconds = {seconds:g} must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g}, because every "
            "value is the median of several calls."
        )
    started, figures = time.monotonic(), []
    gpus = len(visible_gpus(os.environ.get(CUDA_DEVICES)))
    device = "gpu" if gpus else "cpu"
    cores, lacking = usable_cores(), lacking_cores()
    disk = disk_rates(output_root())
    request = {
        "device": device,
        "cores": gpus or cores,
        "seconds": seconds - (time.monotonic() - started) - END_SECONDS,
        "clock": clock,
    }
    total, is_late = 0, False
    with contextlib.ExitStack() as stack:
        bar = None
        for answer in stream("nbtrain.train.calibration", request):
            if answer["kind"] == "plan":
                total = answer["figures"]
                bar = stack.enter_context(Progress("calibrate", total, "figures"))
            elif answer["kind"] == "figure":
                figures.append({key: value for key, value in answer.items() if key != "kind"})
                if bar is not None:
                    bar.update(1, now=_words(answer))
            is_late = is_late or answer["kind"] == "late"
    if is_late:
        longer = min(4 * seconds, MOST_SECONDS)
        more = (
            f", or allow more time: run `nbtrain calibrate --seconds {longer:g}`" if longer > seconds else ""
        )
        raise JobError(
            f"only {len(figures)} of {counted(total, 'value')} could be measured in {seconds:g} s, so "
            f"nothing was written: at the start, other programs used {lacking:.1f} of "
            f"{counted(cores, 'core')}. "
            f"Calibrate while the machine is idle{more}."
        )
    taken, is_trial = round(time.monotonic() - started, 1), clock == "cpu"
    doubtful = [] if is_trial else doubts(figures, lacking, cores)
    today = datetime.date.today().isoformat()
    made = Calibration(machine_key(), today, taken, figures, disk, device, doubtful)
    return Calibrated(made, None if is_trial else write_calibration(made), is_trial)


def disk_rates(folder: Path, size: int = DISK_BYTES) -> dict[str, float]:
    """Return the disk's write and read throughput in `folder`, in bytes per second.

    A file of `size` bytes is written with fsync, dropped from the page cache, and read. Raises OSError, which
    names the folder, if the file cannot be written.
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
