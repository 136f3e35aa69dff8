"""Times a task on all ranks at once: the median of the calls that fit into the task's share of the time.

All ranks begin a call together, so that as many neighbouring cores are busy as in training, because cores
share caches and memory. The ranks agree on the number of calls, because a task may contain collectives.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

LEAST_CALLS, MOST_CALLS = 3, 200
# A task whose single call takes longer than this many times its share of the time is called only once.
SLOW_SLICES = 5


@dataclass
class Stopwatch:
    """Times the measurements of one worker, which run one after the other and must end by a given time."""

    device: torch.device
    until: float
    """Time at which the last measurement must end, by time.monotonic()."""
    slices: float
    """Remaining shares of the time: one share for each measurement, SLICES shares for a measurement of engine
    steps.
    """
    engines: int = 0
    """Number of DeepSpeed engines that must still be built between measurements."""
    build_seconds: float = 0.0
    """Seconds that it takes to build one DeepSpeed engine."""
    cpu_time: bool = False
    """Whether to measure the process's CPU time, which excludes waiting, instead of elapsed time; used by
    tests on a busy machine.
    """
    _spreads: list[float | None] = field(default_factory=list)

    def seconds(self, task: Callable[[], object], slices: float = 1.0) -> float:
        """Return the median seconds of one call, averaged over the ranks.

        All calls together, including one to warm up, take `slices` shares of the remaining time. If the first
        call takes more than SLOW_SLICES times as long as that, the task is called only once.
        """
        slice_seconds = self._agreed(self._left_seconds() * slices / max(self.slices, slices))
        self.slices -= slices
        warm_up = self._agreed(self._once(task))
        if warm_up > SLOW_SLICES * slice_seconds:
            self._spreads.append(None)
            return warm_up
        first = self._once(task)
        calls = int(self._agreed(min(max(slice_seconds / max(first, 1e-9) - 2, LEAST_CALLS), MOST_CALLS)))
        taken = [first, *(self._once(task) for _ in range(calls - 1))]
        low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
        self._spreads.append((high - low) / median)
        return self._agreed(median)

    def take_spread(self) -> float | None:
        """Return the largest spread among the measurements since the last call of this method.

        A spread is the range of the middle half of the calls divided by their median. Returns None if one of
        the measurements was a single call.
        """
        spreads, self._spreads = self._spreads, []
        return None if None in spreads else max(spread for spread in spreads if spread is not None)

    def _left_seconds(self) -> float:
        return max(self.until - time.monotonic() - self.engines * self.build_seconds, 0.0)

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
        """Return the mean of `value` over the ranks."""
        if ranks() == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(shared)
        return float(shared) / ranks()


def ranks() -> int:
    """Return the number of ranks that measure together."""
    return dist.get_world_size() if dist.is_initialized() else 1
