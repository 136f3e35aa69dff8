"""Observations of a run as plain numbers, which jobs/observe.py reads from records: the input of advice."""

import re
from dataclasses import dataclass

from nbtrain.base.run_directory.jobstate import FAILURES
from nbtrain.base.text import amounts

# A smaller fraction of a step would be shown as 0%.
LEAST_SHOWN_FRACTION = 0.005
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "bytes": 1}
# Message of torch's OutOfMemoryError (c10/cuda/CUDACachingAllocator.cpp).
_FIGURE = r"([\d.]+) (GiB|MiB|KiB|bytes)"
_TRIED = re.compile(rf"Tried to allocate {_FIGURE}")
_TOTAL = re.compile(rf"total capac(?:ity|ty) of {_FIGURE}")
_ALLOCATED = re.compile(rf"{_FIGURE} is allocated by PyTorch")
_RESERVED = re.compile(rf"{_FIGURE} is reserved by PyTorch but unallocated")


@dataclass(frozen=True)
class OutOfMemory:
    """Numbers in torch's out-of-memory message; None for a number that the message does not contain."""

    tried_bytes: int | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    """Bytes of torch's free blocks: reserved but not allocated, often because of fragmentation."""


@dataclass(frozen=True)
class Observations:
    """Observations of a run's newest job.

    A value is None or 0 if it is unknown, or if the event did not happen.
    """

    state: str
    cause: str = ""
    steps: int = 0
    step_seconds: float | None = None
    planned_step_seconds: float | None = None
    out_of_memory: OutOfMemory | None = None
    """Numbers in the message, if the device ran out of memory; None if it did not."""
    out_of_host_memory: bool = False
    hang: bool = False
    unstable: bool = False
    """Whether a NaN or Inf occurred, or a loss spike ended the job."""
    loss_spikes: int = 0
    overflow_steps: int = 0
    smallest_loss_scale: bool = False
    """Whether fp16 overflowed at the smallest loss scale."""
    data_fraction: float | None = None
    """Fraction of a step in which ranks wait for data, 0 to 1."""
    bubble_fraction: float | None = None
    """Fraction of a step in which pipeline stages wait for other stages, 0 to 1."""
    memory_fraction: float | None = None
    """Fraction of device memory in use at the peak."""
    memory_bytes: int | None = None
    device_bytes: int | None = None
    mfu: float | None = None
    cpus: int | None = None
    """Number of CPU cores of the machine on which the job ran."""
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the newest job ended with an error."""
        return self.state in FAILURES

    @property
    def out_of_device_memory(self) -> bool:
        return self.out_of_memory is not None

    @property
    def summary(self) -> str:
        """Summary as text: the state and the main observations."""
        found = []
        if self.step_seconds:
            planned = (
                f" (planned: {amounts.step(self.planned_step_seconds)})" if self.planned_step_seconds else ""
            )
            found.append(f"{amounts.step(self.step_seconds)} per step{planned}")
        if self.data_fraction and self.data_fraction >= LEAST_SHOWN_FRACTION:
            found.append(f"{self.data_fraction:.0%} of a step spent waiting for data")
        if self.bubble_fraction and self.bubble_fraction >= LEAST_SHOWN_FRACTION:
            found.append(f"{self.bubble_fraction:.0%} of a step spent waiting for other stages")
        if self.memory_fraction:
            found.append(f"{self.memory_fraction:.0%} of the device's memory used")
        head = f"{self.state} after {amounts.counted(self.steps, 'step')}"
        return f"{head}; {', '.join(found)}" if found else head


def out_of_memory_of(message: str) -> OutOfMemory:
    """Return the numbers in torch's out-of-memory message."""
    return OutOfMemory(*(_bytes(pattern, message) for pattern in (_TRIED, _TOTAL, _ALLOCATED, _RESERVED)))


def needed_bytes(observations: Observations) -> int | None:
    """Return a lower bound of the device memory that the run needs, in bytes; None if no bound is known."""
    oom = observations.out_of_memory
    if oom is not None and oom.allocated_bytes is not None:
        return oom.allocated_bytes + (oom.tried_bytes or 0)
    return observations.memory_bytes


def _bytes(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
