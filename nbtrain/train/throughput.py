"""How fast the training goes, and where a step's time goes.

MFU is model FLOPs (recomputation left out) over the datasheet peak of the device, and absent where no peak is
known, as on CPUs. The fraction of the measured rate compares with one large matrix product on this very device
at start: it says what is left to gain where no datasheet does.
"""

import collections
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from nbtrain.config.devices import find_device
from nbtrain.config.schema import RunConfig

PARTS = ("data", "forward", "backward", "optimizer")
MEAN_STEPS = 100


class StepTimer:
    """Seconds of each part of one step. On a GPU by events, read when the step is long over: no host waits."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside for `name`."""
        if self._cuda and name != "data":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
        else:
            started = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        """By part; waits for the step's end on a GPU."""
        for name, begin, end in self._events:
            end.synchronize()
            self._seconds[name] += begin.elapsed_time(end) / 1000.0
        self._events.clear()
        return self._seconds


class Rate:
    """Mean over the last hundred steps."""

    def __init__(self) -> None:
        self._steps: collections.deque[tuple[int, float]] = collections.deque(maxlen=MEAN_STEPS)

    def add(self, amount: int, seconds: float) -> None:
        self._steps.append((amount, seconds))

    def per_second(self) -> float | None:
        """Amount per second, or None before the first step."""
        seconds = sum(seconds for _, seconds in self._steps)
        return sum(amount for amount, _ in self._steps) / seconds if seconds > 0 else None


def measure_matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the best of a few large square products in `dtype`: what the device can do here and now."""
    size = 8192 if device.type == "cuda" else 1024
    left = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    best = float("inf")
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def peak_flops(device: torch.device, config: RunConfig) -> float | None:
    """Datasheet peak of this device in the run's format, or None."""
    if device.type != "cuda":
        return None
    row = find_device(torch.cuda.get_device_name(device))
    return row.peak(config.precision.dtype) if row else None


def compute_dtype(config: RunConfig) -> torch.dtype:
    """The format of the matrix products."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision.dtype]


def host_memory() -> tuple[int, float]:
    """(resident bytes of this process, used share of the machine's memory)."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return resident, 1.0 - kilobytes["MemAvailable"] / kilobytes["MemTotal"]
