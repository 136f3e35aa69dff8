"""Measurements in every step of a training run: memory, or calls that wait for the GPU."""

import collections
import resource
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from nbtrain.model.initialization import Initializer
from nbtrain.train.trainer import Trainer
from nbtrain.train.training_step import TrainingStep

# Steps that allocate, choose kernels and fill the loader; their waits happen once.
FIRST_STEPS = 4
# Calls of CUDA's runtime that block the host until the device is done.
WAITING_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
EVENT_CALL = "cudaEventSynchronize"
# torch's message (c10/cuda/CUDAFunctions.cpp); it also says once that this mode is a prototype.
SYNCHRONIZES = "called a synchronizing CUDA operation"
MARK = "tests.gpu.watch: one step"


class Nothing:
    """A watch that measures nothing."""

    def __init__(self, device: str):
        pass

    def found(self) -> dict[str, Any]:
        return {}


class Memory:
    """Bytes of device memory before each step and at the peak; on a CPU, resident memory of the process."""

    def __init__(self, device: str):
        self._on_gpu = device == "gpu"
        self._between: list[int] = []
        self._used: list[int] = []
        # The initial weights affect no size; drawing 1.3B of them takes a CPU half a minute.
        Initializer.normal = _tiled  # type: ignore[method-assign]
        self._before = _used_by_others() if self._on_gpu else None
        self._context_before = self._on_gpu and torch.cuda.is_initialized()
        _wrap_steps(self._around)

    @contextmanager
    def _around(self, step: TrainingStep, logged: bool) -> Iterator[None]:
        if self._on_gpu:
            self._between.append(torch.cuda.memory_allocated())
        yield
        if self._on_gpu:
            free, total = torch.cuda.mem_get_info()
            self._used.append(total - free)

    def found(self) -> dict[str, Any]:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if not self._on_gpu:
            return {"resident": resident}
        return {
            "resident": resident,
            "states": self._between[-1],
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "used": max(self._used),
            "used_before": self._before,
            "context_before": self._context_before,
        }


class Waits:
    """Counts how often the host waits for the device in steps without logging, by the code that waits."""

    def __init__(self, device: str):
        self._on_gpu = device == "gpu"
        self._number = self._watched = self._profiled = 0
        self._torch: collections.Counter[str] = collections.Counter()
        self._calls: collections.Counter[str] = collections.Counter()
        self._asking = False
        _wrap_steps(self._around)
        self._wrap_report()

    @contextmanager
    def _around(self, step: TrainingStep, logged: bool) -> Iterator[None]:
        self._number += 1
        self._asking = False
        if logged or self._number <= FIRST_STEPS:
            yield
        elif self._number % 2:
            self._watched += 1
            self._asking = True
            with self._asked_of_torch():
                yield
        else:
            self._profiled += 1
            with self._profile():
                yield

    def _wrap_report(self) -> None:
        """Also count waits in the report of a step, if the waits of that step are counted."""
        tell = Trainer._tell

        def told(trainer: Trainer, result: Any) -> None:
            with self._asked_of_torch() if self._asking else nullcontext():
                tell(trainer, result)

        Trainer._tell = told  # type: ignore[method-assign]

    @contextmanager
    def _asked_of_torch(self) -> Iterator[None]:
        """Count each call that torch reports as waiting; on a CPU, each number that is read from a tensor."""
        if not self._on_gpu:
            from tests.train.host_syncs_worker import Waits as Numbers

            with Numbers() as numbers:
                yield
            self._torch.update(numbers.found)
            return
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        for warning in said:
            if SYNCHRONIZES in str(warning.message):
                self._torch[f"{Path(warning.filename).name}:{warning.lineno}"] += 1

    @contextmanager
    def _profile(self) -> Iterator[None]:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if self._on_gpu else []
        # The profiler itself waits for the device at its end, which is outside of the mark.
        with torch.profiler.profile(activities=kinds) as profile, torch.profiler.record_function(MARK):
            yield
        events = profile.events()
        inside = next(event.time_range for event in events if event.name == MARK)
        for event in events:
            within = inside.start <= event.time_range.start <= inside.end
            if within and event.name in (*WAITING_CALLS, EVENT_CALL):
                self._calls[event.name] += 1

    def found(self) -> dict[str, Any]:
        return {
            "watched": self._watched,
            "profiled": self._profiled,
            "torch": dict(self._torch),
            "calls": {name: count for name, count in self._calls.items() if name != EVENT_CALL},
            "events": self._calls[EVENT_CALL],
        }


def _wrap_steps(around: Callable[..., Any]) -> None:
    make = TrainingStep.make

    def watched(self: TrainingStep, batches: Any, logged: bool) -> Any:
        with around(self, logged):
            return make(self, batches, logged)

    TrainingStep.make = watched  # type: ignore[method-assign]


def _tiled(
    self: Initializer, name: str, *shape: int, residual: bool = False, std: float | None = None
) -> torch.nn.Parameter:
    """Initialize a weight like Initializer.normal, by repeating a block of a million random numbers."""
    if std is None:
        std = self.residual_std if residual else self.std
    block = torch.empty(1 << 20, device="cpu").float()
    block.normal_(0.0, std, generator=torch.Generator().manual_seed(len(name)))
    weight = torch.empty(shape)
    flat = weight.view(-1)
    for start in range(0, flat.numel(), block.numel()):
        piece = flat[start : start + block.numel()]
        piece.copy_(block[: piece.numel()])
    return torch.nn.Parameter(weight)


def _used_by_others() -> int | None:
    """Return the bytes that other processes use, as the driver counts them; None without nvidia-ml-py."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:
        traceback.print_exc()
        return None


WATCHES: dict[str, Callable[[str], Any]] = {"": Nothing, "memory": Memory, "waits": Waits}
