"""How long a step's collectives take: each of them waited for and timed, on the steps that are logged anyway.

DeepSpeed makes all its collectives through one backend object; while a step is measured, that object's methods
wait for the end of what they start. So nothing overlaps in such a step, and the figure is an upper bound.
Nothing is computed differently. (DeepSpeed's own communication log counts a collective inside another twice.)
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from deepspeed.comm import comm as deepspeed_comm

from nbtrain.parallel.startup import World

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "broadcast",
)


class CommunicationTimer:
    """Seconds of all collectives that DeepSpeed makes inside `measured`."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """Of the last step; None where it was not measured."""
        self._inside = False

    @contextlib.contextmanager
    def measured(self, world: World, wanted: bool) -> Iterator[None]:
        """Measure what happens inside, where there are several ranks and it is wanted."""
        self.seconds = None
        if not wanted or world.size == 1:
            yield
            return
        self.seconds = 0.0
        backend = deepspeed_comm.cdb
        names = [name for name in COLLECTIVES if hasattr(backend, name)]
        for name in names:
            setattr(backend, name, self._timed(getattr(backend, name), world.device))
        try:
            yield
        finally:
            for name in names:
                # What was set hides the method of the class; without it the method is back.
                delattr(backend, name)

    def _timed(self, collective: Callable, device: torch.device) -> Callable:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return collective(*arguments, **named)
            _settle(device)
            started = time.perf_counter()
            self._inside = True
            try:
                work = collective(*arguments, **named)
                if hasattr(work, "wait"):
                    work.wait()
                _settle(device)
            finally:
                self._inside = False
            assert self.seconds is not None
            self.seconds += time.perf_counter() - started
            return work

        return timed


def _settle(device: torch.device) -> None:
    """Until everything that was given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
