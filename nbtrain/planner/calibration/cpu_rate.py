"""Matrix-product rate of this machine's cores: measured once, then read from the data directory.

The rate is per second of CPU time, so that other work on the machine does not lower it. It is measured in a
separate process with one thread: NumPy's number of threads cannot be changed once it is loaded, and threads
that wait for each other use CPU time too (a busy machine measured 11 GFLOP/s instead of 170). Only plans of
CPU runs measure it.

    python -m nbtrain.planner.calibration.cpu_rate      prints the rate, in FLOP/s
"""

import functools
import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.workspace import data_home

logger = logging.getLogger(__name__)

MEASURE_SECONDS = 0.1
# A matrix of 1 MiB stays in the caches, like the tiles of every fast matrix product.
MATRIX_SIZE = 512

PROCESS_SECONDS = 20.0

_CPU_INFO = Path("/proc/cpuinfo")
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL", "BLIS")}


def matmul_flops_per_core() -> float | None:
    """Return the FLOP/s of one core in NumPy's fp32 matrix products; None if it cannot be measured.

    The rate is stored in cpu_rate.json of the data directory, by CPU model, number of cores and NumPy
    version.
    """
    return _rate_of(_machine())


@functools.cache
def _rate_of(machine: str) -> float | None:
    path = data_home() / "cpu_rate.json"
    stored = _stored(path)
    rate = stored.get(machine)
    if isinstance(rate, int | float) and rate > 0:
        return float(rate)
    rate = _measured_apart()
    if rate is None:
        return None
    if path.parent.is_dir():  # a plan creates no data directory
        try:
            files.write_json(path, {**stored, machine: round(rate)})
        except OSError as error:
            logger.debug("%s: cannot be written (%s); measured again next time.", path, error.strerror)
    return rate


def _measured_apart() -> float | None:
    """Run measure() in a process with one thread."""
    command = [sys.executable, "-m", "nbtrain.planner.calibration.cpu_rate"]
    try:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PROCESS_SECONDS}
        done = subprocess.run(command, env={**os.environ, **_ONE_THREAD}, check=True, **options)
        return float(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        logger.debug("the rate of a core is not known: %s", error)
        return None


def measure() -> float:
    """Return the best FLOP/s of one core among the products that fit into MEASURE_SECONDS."""
    import numpy as np

    matrix = np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32)
    product = np.matmul(matrix, matrix)  # creates threads and buffers
    best = float("inf")
    end = time.perf_counter() + MEASURE_SECONDS
    while best == float("inf") or time.perf_counter() < end:
        start = time.process_time()
        np.matmul(matrix, matrix, out=product)
        if (seconds := time.process_time() - start) > 0:
            best = min(best, seconds)
    return 2.0 * MATRIX_SIZE**3 / best


def _machine() -> str:
    return f"{cpu_model()}, {os.cpu_count()} cores, numpy {importlib.metadata.version('numpy')}"


def cpu_model() -> str:
    """Return the CPU's name, as the system reports it."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _stored(path: Path) -> dict[str, Any]:
    """Return the stored values; {} if the file is missing or broken (the next write replaces it)."""
    try:
        value = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


if __name__ == "__main__":
    print(measure())
