"""mode: perf: the throughput of a few steps, without evaluation and checkpoints.

The first steps are left out: they allocate memory, compile and choose kernels. The clock runs from their end
to the end of the last step, with the device waited for at both, so that what a step left under way on a GPU
is counted.
"""

import time
from dataclasses import dataclass

import torch

WARMUP_FRACTION = 4


@dataclass(frozen=True)
class Throughput:
    """What was measured, over all ranks."""

    steps: int
    samples: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds


class PerfClock:
    """Notes the time of each step that is done and of the beginning of the run; only rank 0's is read."""

    def __init__(self, train_steps: int, device: torch.device):
        self._first, self._last = train_steps // WARMUP_FRACTION, train_steps
        self._device = device
        self._begun: tuple[float, int] | None = None
        self.result: Throughput | None = None
        """Set by the last step."""

    def at(self, step: int, consumed_samples: int) -> None:
        """`step` steps are done, with `consumed_samples` sequences."""
        if step == self._first:
            self._begun = self._now(), consumed_samples
        elif step == self._last and self._begun is not None:
            started, samples = self._begun
            self.result = Throughput(step - self._first, consumed_samples - samples, self._now() - started)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
