"""Throughput of the training, and the parts of a step's time.

Speed is reported in three ways. Each device has an equal share of the FLOPs in config/arithmetic/flops.py.

    MFU                                  model FLOPs / datasheet peak: useful work of the hardware
    HFU                                  hardware FLOPs, recomputation included / datasheet peak: how busy the
                                         units are
    fraction of the measured matrix rate model FLOPs / rate of a large matrix product on this device at start

MFU and HFU are missing if no peak is known, as on CPUs. The third measure shows the possible gain on such
devices too.
"""

import collections
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.config.arithmetic.flops import hardware_flops_per_token, model_flops_per_token, peak_flops
from nbtrain.config.arithmetic.saves import local_saves, shared_saves
from nbtrain.config.schema import RunConfig
from nbtrain.train.profile.trace import PART_PREFIX

PARTS = ("data", "forward", "backward", "optimizer", "pipeline")
JOB_PARTS = (*PARTS, "checkpoint", "evaluation", "other")
MEAN_STEPS = 100
# With mode: perf, the steps are divided into this many equal parts, and the first is warm-up.
WARMUP_FRACTION = 4

Mark = float | torch.cuda.Event
"""A point in time: on the host's clock, or an event in the device's stream."""


class StepTimer:
    """Times the parts of one step. On a GPU it uses events that are read later, so the host never waits.

    While a nested part runs, the outer part's clock is stopped, so no second counts twice. On a GPU the
    seconds are the device's, so waiting for data counts only while the device is idle.
    """

    def __init__(self, device: torch.device):
        """Start the timer at the beginning of a step."""
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._stretches: list[tuple[str, Mark, Mark]] = []
        self._begin = self._since = self._mark()
        self._end: Mark | None = None
        self.part_now: str | None = None
        """Part that is being timed now; None outside all parts."""
        self.communication: dict[str | None, float] | None = None
        """Seconds of collectives by part; None if they are not measured (communication.py)."""

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time that the context's body takes to the part `name`."""
        if name not in self._seconds:
            raise KeyError(name)
        outer = self.part_now
        self._switch(name)
        try:
            with _in_profile(name):
                yield
        finally:
            self._switch(outer)

    def end(self) -> None:
        """Stop the timer: the step is done or, on a GPU, launched."""
        self._end = self._mark()

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part. On a GPU, waits for the end of the step."""
        for name, begin, end in self._stretches:
            self._seconds[name] += self._between(begin, end)
        self._stretches.clear()
        return self._seconds

    def wall_seconds(self) -> float | None:
        """Return the seconds of the whole step; None before end(). On a GPU, waits for the end of the
        step.
        """
        return None if self._end is None else self._between(self._begin, self._end)

    def compute_seconds(self) -> float:
        """Return the seconds of this rank's forward and backward pass, without the collectives in them if
        collectives are measured.
        """
        seconds, waited = self.seconds(), self.communication or {}
        return sum(seconds[name] - waited.get(name, 0.0) for name in ("forward", "backward"))

    @property
    def communication_seconds(self) -> float | None:
        """Return the seconds of all collectives of the step; None if they are not measured."""
        return None if self.communication is None else sum(self.communication.values())

    def _switch(self, name: str | None) -> None:
        now = self._mark()
        if self.part_now is not None:
            self._stretches.append((self.part_now, self._since, now))
        self.part_now, self._since = name, now

    def _mark(self) -> Mark:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def _between(begin: Mark, end: Mark) -> float:
        if isinstance(begin, float) or isinstance(end, float):
            return end - begin  # type: ignore[operator]
        end.synchronize()
        return begin.elapsed_time(end) / 1000.0


def _in_profile(part: str) -> contextlib.AbstractContextManager:
    """Mark a part in the profiler's trace, if one is recorded."""
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.profiler.record_function(PART_PREFIX + part)
    return contextlib.nullcontext()


class Rate:
    """Mean amount per second, such as sequences per second, over the last MEAN_STEPS steps."""

    def __init__(self) -> None:
        self._steps: collections.deque[tuple[int, float]] = collections.deque(maxlen=MEAN_STEPS)

    def add(self, amount: int, seconds: float) -> None:
        self._steps.append((amount, seconds))

    def per_second(self) -> float | None:
        """Return the mean amount per second; None before the first step."""
        seconds = sum(seconds for _, seconds in self._steps)
        return sum(amount for amount, _ in self._steps) / seconds if seconds > 0 else None


class Pauses:
    """Estimates how long the remaining validations, tasks and checkpoints will pause the training loop."""

    def __init__(self, config: RunConfig) -> None:
        self._config, evaluation = config, config.evaluation
        self._intervals = {
            "validation": evaluation.eval_interval_steps,
            "tasks": evaluation.tasks_interval_steps or evaluation.eval_interval_steps,
        }
        self._seconds: dict[str, float] = {}

    def add(self, kind: str, seconds: float) -> None:
        """Record a pause of this kind; later pauses are expected to take the same `seconds`."""
        self._seconds[kind] = seconds

    def left(self, step: int) -> float:
        """Return the expected total seconds of the pauses after `step`, of the kinds that have occurred so
        far.
        """
        if step >= self._config.train_steps:
            return 0.0
        return sum(seconds * self._number_left(kind, step) for kind, seconds in self._seconds.items())

    def _number_left(self, kind: str, step: int) -> int:
        match kind:
            case "checkpoint":
                return shared_saves(self._config, step)
            case "local checkpoint":
                return local_saves(self._config, step)
            case _:  # one per interval, and one at the end
                interval = self._intervals[kind]
                return -(-self._config.train_steps // interval) - step // interval


@dataclass(frozen=True)
class Speeds:
    """A device's share of the FLOP/s, and its utilization."""

    model_flops: float
    """FLOP/s of forward and backward pass."""
    mfu: float | None
    """Model FLOP/s over the datasheet peak; None if no peak is known."""
    hfu: float | None
    """Hardware FLOP/s, recomputation included, over the datasheet peak; None if no peak is known."""
    matmul_fraction: float
    """Model FLOP/s divided by the measured rate of a large matrix product."""


class Speedometer:
    """Computes Speeds from the tokens per second of all ranks together."""

    def __init__(self, config: RunConfig, device: torch.device):
        """Measure the matrix rate, which takes milliseconds on a GPU and up to a second on a slow CPU."""
        # In every layout the ranks share the products of all tokens equally, and only recomputation repeats a
        # product.
        self._model_flops = model_flops_per_token(config) / config.world_size
        self._hardware_flops = hardware_flops_per_token(config) / config.world_size
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        self.peak_flops = peak_flops(config, name)
        self.matmul_flops = measure_matmul_flops(device, DTYPES[config.precision.dtype])

    def at(self, tokens_per_second: float) -> Speeds:
        model, hardware = (tokens_per_second * flops for flops in (self._model_flops, self._hardware_flops))
        peak = self.peak_flops
        mfu, hfu = (model / peak, hardware / peak) if peak else (None, None)
        return Speeds(model, mfu, hfu, model / self.matmul_flops)


class TimeSplit:
    """Seconds of a job on this rank by part; the time of a step outside all parts is "other"."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums = dict.fromkeys(JOB_PARTS, 0.0)
        self._measured_seconds = self._communication_seconds = 0.0

    def add_step(
        self, wall_seconds: float, parts: dict[str, float], communication_seconds: float | None
    ) -> None:
        """Add a step: its seconds, the seconds of its parts and, if measured, of its collectives."""
        self.steps += 1
        self.add(**parts, other=max(wall_seconds - sum(parts.values()), 0.0))
        if communication_seconds is not None:
            self._measured_seconds += wall_seconds
            self._communication_seconds += communication_seconds

    def add(self, **seconds: float) -> None:
        """Add seconds to parts of the time: add(evaluation=3.2) adds 3.2 s to "evaluation"."""
        for name, more in seconds.items():
            self._sums[name] += more

    def seconds(self) -> dict[str, float]:
        """Return the seconds by part.

        The part "communication" is contained in the other parts. It is estimated from the steps whose
        collectives were measured.
        """
        share = self._communication_seconds / self._measured_seconds if self._measured_seconds else 0.0
        in_steps = sum(self._sums.values()) - self._sums["checkpoint"] - self._sums["evaluation"]
        return {**self._sums, "communication": share * in_steps}

    def step_fraction(self, name: str) -> float:
        """Return a part's share of the time of all steps; 0 before the first step."""
        whole = sum(self._sums[part] for part in (*PARTS, "other"))
        return self._sums[name] / whole if whole else 0.0

    def __str__(self) -> str:
        seconds = self.seconds()
        communication = seconds.pop("communication")
        whole = sum(seconds.values()) or 1.0
        parts = [f"{name} {own / whole:.1%}" for name, own in seconds.items() if own]
        inside = f"; communication in these parts {communication / whole:.1%}" if communication else ""
        return ", ".join(parts) + inside


@dataclass(frozen=True)
class Throughput:
    """Throughput over all ranks, measured with mode: perf."""

    steps: int
    samples: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds


class PerfClock:
    """The clock of mode: perf, which times the steps after the first quarter; that quarter allocates and
    compiles.

    It waits for the device at the beginning and at the end, so that unfinished work on a GPU is counted. Only
    rank 0's clock is read.
    """

    def __init__(self, train_steps: int, device: torch.device):
        self._first, self._last = train_steps // WARMUP_FRACTION, train_steps
        self._device = device
        self._begun: tuple[float, int] | None = None
        self.result: Throughput | None = None
        """Measured throughput; None until the last step is complete."""

    def at(self, step: int, consumed_samples: int) -> None:
        """Record that `step` steps are complete, with `consumed_samples` sequences."""
        if step == self._first:
            self._begun = self._now(), consumed_samples
        elif step == self._last and self._begun is not None:
            started, samples = self._begun
            self.result = Throughput(step - self._first, consumed_samples - samples, self._now() - started)

    def _now(self) -> float:
        settle(self._device)
        return time.perf_counter()


def measure_matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of large square products in `dtype`: the best of a few attempts.

    On a GPU an attempt is ten products in a row, long enough to reach the clock rate of training. A processor
    without units for `dtype` takes seconds for one attempt, so no further attempt begins after the first
    second.
    """
    on_gpu = device.type == "cuda"
    size, products = (8192, 10) if on_gpu else (1024, 1)
    left = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    attempts_seconds: list[float] = []
    while len(attempts_seconds) < 6 and sum(attempts_seconds) < 1.0:
        settle(device)
        started = time.perf_counter()
        for _ in range(products):
            left @ left
        settle(device)
        attempts_seconds.append(time.perf_counter() - started)
    return 2 * size**3 * products / min(attempts_seconds)


def settle(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host_memory() -> tuple[int, float]:
    """Return (resident bytes of this process, used fraction of the machine's memory)."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return resident, 1.0 - kilobytes["MemAvailable"] / kilobytes["MemTotal"]
