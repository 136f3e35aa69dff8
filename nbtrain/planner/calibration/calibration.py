"""Measured rates of this machine, which plans read from the data directory instead of assuming rates.

    read_calibration()          calibration.json: all measurements of `nbtrain calibrate`
    matmul_flops_per_core()     cpu_rate.json: the rate of a core, which the plan of a CPU run measures itself

    {"schema_version": 1, "machines": {"<cpu>, <cores> cores, <GPUs>, torch <version>": {
        "date", "seconds", "device", "disk", "doubts", "figures": [{"what", "ranks", "spread", ...}]}}}

Plans use the entry of a machine only on that machine, for OLDEST_DAYS. If there are doubts about the
measurement (calibration_doubts.py), they use it for OLDEST_DOUBTED_DAYS and show the doubts. Other entries
are mentioned in a note, but not used: a rate from another machine is worse than an assumed rate, because it
looks measured.

The rate of a core is measured as matrix products per second of CPU time, so that other work on the machine
does not lower it. It is measured in a separate process with one thread, because NumPy's number of threads
cannot be changed after it is loaded, and threads that wait for each other use CPU time too (on a busy
machine, this gave 11 GFLOP/s instead of 170).

Several processes may measure at the same time, so only add_entry writes calibration.json and network.json
(measured_network.py).

    python -m nbtrain.planner.calibration.calibration       print the rate of a core in FLOP/s
"""

import collections
import datetime
import functools
import importlib.metadata
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.cpu import cpu_model
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.workspace import data_home, display

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
# Fields of a machine's entry in calibration.json.
KEYS = ("date", "seconds", "device", "disk", "doubts", "figures")
# The drivers, the kernel and other programs of a machine change within months.
OLDEST_DAYS = 180
OLDEST_DOUBTED_DAYS = 7

# Time for which a core's rate is measured, and time-out of the process that measures it.
MEASURE_SECONDS, PROCESS_SECONDS = 0.1, 20.0
# A matrix of 1 MiB fits into the caches, like the tiles of a fast matrix product.
MATRIX_SIZE = 512

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL", "BLIS")}

Figure = dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """The measurements of one machine."""

    machine: str
    date: str
    """ISO date of the measurement."""
    seconds: float
    figures: list[Figure] = field(repr=False)
    disk: dict[str, float] = field(default_factory=dict)
    """Write and read rates of the output directory: write_bytes_per_second, read_bytes_per_second."""
    device: str = "cpu"
    """Kind of device that was measured: gpu or cpu. It is cpu if CUDA_VISIBLE_DEVICES hides the GPUs."""
    doubts: list[str] = field(default_factory=list)
    """Signs that other programs disturbed the measurement, as clauses without a period."""

    @property
    def source(self) -> str:
        """Source of a plan's rates as text: the date of the calibration, and doubts about it."""
        doubts = f", but doubtful: {'; '.join(self.doubts)}" if self.doubts else ""
        return f"calibrated on {self.date}{doubts}"

    @property
    def oldest_days(self) -> int:
        """Number of days for which plans use this calibration."""
        return OLDEST_DOUBTED_DAYS if self.doubts else OLDEST_DAYS

    def age_days(self, today: datetime.date) -> int:
        return (today - datetime.date.fromisoformat(self.date)).days

    def of(self, what: str, **wanted: Any) -> list[Figure]:
        """Return the measurements of the kind `what`, such as "block", whose fields match `wanted`."""
        return [
            figure
            for figure in self.figures
            if figure["what"] == what and all(figure.get(key) == value for key, value in wanted.items())
        ]

    def matmul_flops(self, ranks: int = 1) -> dict[str, float]:
        """Return {number format: best FLOP/s of one rank's matrix products}."""
        best: dict[str, float] = {}
        for figure in self.of("product", ranks=ranks):
            best[figure["dtype"]] = max(best.get(figure["dtype"], 0.0), figure["flops"])
        return best

    def memory_bytes_per_second(self, ranks: int = 1) -> float | None:
        """Return the bytes that one rank reads and writes per second; None if this was not measured."""
        found = self.of("memory", ranks=ranks)
        return found[0]["bytes_per_second"] if found else None


def calibration_path() -> Path:
    """Return the path of calibration.json in the data directory."""
    return data_home() / "calibration.json"


def machine_gpus() -> list[str]:
    """Return the names of this machine's GPUs, as the driver reports them."""
    return [gpu.name for gpu in nvml.driver_gpus()]


@functools.cache
def machine_key() -> str:
    """Return the key of this machine in calibration.json: CPU, cores, GPUs and torch's version."""
    gpus = collections.Counter(machine_gpus())
    words = [cpu_model()[0], f"{len(os.sched_getaffinity(0))} cores"]
    words += [f"{count} x {name}" for name, count in gpus.items()]
    try:
        words.append(f"torch {importlib.metadata.version('torch')}")
    except importlib.metadata.PackageNotFoundError:
        words.append("no torch")
    return ", ".join(words)


def read_calibration(today: datetime.date | None = None) -> tuple[Calibration | None, str]:
    """Return (calibration of this machine, ""), or (None, why no calibration is used and what to do)."""
    path, today = calibration_path(), today or datetime.date.today()
    measure = "Run `nbtrain calibrate` to measure this machine"
    try:
        content = files.read_json(path)
    except RecordError as error:
        return None, f"{error}; the calibration is not used. {measure}."
    if content is None:
        return None, "this machine is not calibrated; run `nbtrain calibrate` to measure it"
    name = display(path)
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return None, f"{name} is not used, because its schema_version is not {SCHEMA_VERSION}. {measure}."
    machines = content.get("machines") or {}
    entry = machines.get(machine_key())
    if entry is None:
        others = "; ".join(f"{key} ({machine['date']})" for key, machine in machines.items())
        return (
            None,
            f"{name} is not used, because it has entries only for other machines: {others}. {measure}.",
        )
    try:
        found = Calibration(machine=machine_key(), **{key: entry[key] for key in KEYS})
        age = found.age_days(today)
    except (KeyError, TypeError, ValueError) as error:
        return (
            None,
            f"{name} is not used, because the entry of this machine is damaged ({error!r}). {measure}.",
        )
    if age > found.oldest_days:
        kind = "a doubtful calibration" if found.doubts else "a calibration"
        return None, (
            f"{name} is not used, because it is {age} days old ({found.date}), and {kind} is trusted for "
            f"{found.oldest_days} days. {measure} again."
        )
    return found, ""


def write_calibration(calibration: Calibration) -> Path | None:
    """Write a machine's measurements to calibration.json, and return the file's path.

    The entries of other machines are kept. If there are doubts about the new measurements, and plans still
    use a calibration of the same device without doubts, nothing is written, and None is returned.
    """
    path = calibration_path()
    before, _ = read_calibration()
    if calibration.doubts and before and not before.doubts and before.device == calibration.device:
        return None
    entry = {key: getattr(calibration, key) for key in KEYS}
    add_entry(path, SCHEMA_VERSION, "machines", calibration.machine, entry)
    return path


def matmul_flops_per_core() -> float | None:
    """Return the FLOP/s of one core in NumPy's fp32 matrix products; None if it cannot be measured.

    The rate is stored in cpu_rate.json in the data directory, by CPU model, number of cores and NumPy
    version.
    """
    return _rate_of_core(_core())


@functools.cache
def _rate_of_core(machine: str) -> float | None:
    path = data_home() / "cpu_rate.json"
    stored = _stored_rates(path)
    rate = stored.get(machine)
    if isinstance(rate, int | float) and rate > 0:
        return float(rate)
    rate = _core_measured_apart()
    if rate is None:
        return None
    if path.parent.is_dir():  # A plan must not create the data directory.
        try:
            files.write_json(path, {**stored, machine: round(rate)})
        except OSError as error:
            logger.debug("%s cannot be written (%s). The next plan measures again.", path, error.strerror)
    return rate


def _core_measured_apart() -> float | None:
    """Return the result of measure_core() in a separate process with one thread; None if it fails."""
    command = [sys.executable, "-m", "nbtrain.planner.calibration.calibration"]
    try:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PROCESS_SECONDS}
        done = subprocess.run(command, env={**os.environ, **_ONE_THREAD}, check=True, **options)
        return float(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        logger.debug("The FLOP/s of a CPU core cannot be measured (%s). The plan assumes a rate.", error)
        return None


def measure_core() -> float:
    """Return the FLOP/s of the fastest matrix product among those computed in MEASURE_SECONDS."""
    import numpy as np

    matrix = np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32)
    product = np.matmul(matrix, matrix)  # Warm-up: creates threads and buffers.
    best = float("inf")
    end = time.perf_counter() + MEASURE_SECONDS
    while best == float("inf") or time.perf_counter() < end:
        start = time.process_time()
        np.matmul(matrix, matrix, out=product)
        if (seconds := time.process_time() - start) > 0:
            best = min(best, seconds)
    return 2.0 * MATRIX_SIZE**3 / best


def _core() -> str:
    return f"{cpu_model()[0]}, {os.cpu_count()} cores, numpy {importlib.metadata.version('numpy')}"


def _stored_rates(path: Path) -> dict[str, Any]:
    """Return the rates of cores in cpu_rate.json; {} if the file is missing or damaged."""
    try:
        value = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def add_entry(path: Path, schema_version: int, section: str, key: str, entry: dict[str, Any]) -> None:
    """Add or replace an entry in a section of a file; all other entries are kept.

    Holds the lock of the data directory while it reads and writes. A file that is damaged or has another
    version is kept under another name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(path.parent, blocking=True)
    assert descriptor is not None, "a blocking lock is always acquired"
    try:
        entries = _entries(path, schema_version, section)
        files.write_json(path, {"schema_version": schema_version, section: {**entries, key: entry}})
    finally:
        os.close(descriptor)


def _entries(path: Path, schema_version: int, section: str) -> dict[str, Any]:
    """Return the entries of the file; {} if there is no valid file.

    An invalid file is renamed, so that it is kept.
    """
    try:
        content = files.read_json(path)
    except RecordError:
        content = False
    if content is None:
        return {}
    if isinstance(content, dict) and content.get("schema_version") == schema_version:
        entries = content.get(section, {})
        if isinstance(entries, dict):
            return entries
    kept = path.with_name(f"{path.name}.old")
    path.replace(kept)
    logger.warning(
        "%s is damaged, or its version is not %d. A new file is written, and the old file is kept as %s.",
        *(display(path), schema_version, display(kept)),
    )
    return {}


if __name__ == "__main__":
    print(measure_core())
