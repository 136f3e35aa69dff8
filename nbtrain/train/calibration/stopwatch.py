"""Times one task on all ranks at one time: the median of as many calls as fit into a slice of time.

All ranks begin a call together, so that each has as many busy neighbours as in training: cores share caches
and memory. The ranks agree on the number of calls, because a task may contain collectives.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

LEAST_CALLS, MOST_CALLS = 3, 200
# A task that takes longer than so many slices is called once only.
SLOW_SLICES = 5


@dataclass(frozen=True)
class Stopwatch:
    """How each measurement of one worker is timed."""

    device: torch.device
    slice_seconds: float
    """The time that one measurement may take, its warm-up included."""
    cpu_time: bool = False
    """Count the process's own CPU time, for trials on a machine with other work: waiting is not counted."""

    def seconds(self, task: Callable[[], object]) -> float:
        """Median seconds of one call, the mean over the ranks."""
        warm_up = self._agreed(self._once(task))
        if warm_up > SLOW_SLICES * self.slice_seconds:
            return warm_up
        first = self._once(task)
        calls = int(
            self._agreed(min(max(self.slice_seconds / max(first, 1e-9) - 2, LEAST_CALLS), MOST_CALLS))
        )
        median = statistics.median([first, *(self._once(task) for _ in range(calls - 1))])
        return self._agreed(median)

    def _once(self, task: Callable[[], object]) -> float:
        if ranks() > 1:
            dist.barrier()
        started = self._now()
        task()
        return self._now() - started

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.process_time() if self.cpu_time else time.perf_counter()

    def _agreed(self, value: float) -> float:
        """The mean over the ranks."""
        if ranks() == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(shared)
        return float(shared) / ranks()


def ranks() -> int:
    """Ranks that measure together."""
    return dist.get_world_size() if dist.is_initialized() else 1
