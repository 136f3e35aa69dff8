"""Measures a step's collectives: on logged steps, the host waits for each collective and times it.

DeepSpeed calls collectives through one backend object; nbtrain's layers that are shared among ranks call them
through torch.distributed. While a step is measured, these functions wait until their collective has ended.
Nothing overlaps in such a step, so the measured time is an upper bound. The results stay the same.
(DeepSpeed's own communication log counts a collective inside another one twice.)

The time that an early rank waits in a collective for the others counts as communication here; a barrier,
which transfers nothing, does not count. Transfers between pipeline stages do not count either, because they
cannot be distinguished from waiting for the neighbouring stage; pipeline_engine.py counts both together.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as torch_distributed
from deepspeed.comm import comm as deepspeed_comm

from nbtrain.parallel.startup import World
from nbtrain.train.figures.throughput import StepTimer, settle
from nbtrain.train.health.collectives import TIMED


class CommunicationTimer:
    """Times all collectives inside `measured`, and counts them for the part of the step that they are in."""

    def __init__(self) -> None:
        self._timer: StepTimer | None = None
        self._inside = False

    @contextlib.contextmanager
    def measured(self, world: World, wanted: bool, timer: StepTimer) -> Iterator[None]:
        """Time the collectives of the body, if `wanted`, and store the seconds in timer.communication."""
        if not wanted or world.size == 1:
            yield
            return
        self._timer, timer.communication = timer, {}
        with contextlib.ExitStack() as stack:
            # DeepSpeed's methods are replaced by attributes of its backend object, torch's functions in their
            # module.
            for place in (deepspeed_comm.cdb, torch_distributed):
                for name in TIMED:
                    if hasattr(place, name):
                        stack.enter_context(
                            patch.object(place, name, self._timed(getattr(place, name), world.device))
                        )
            yield

    def _timed(self, collective: Callable, device: torch.device) -> Callable:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return collective(*arguments, **named)
            settle(device)
            started = time.perf_counter()
            self._inside = True
            try:
                work = collective(*arguments, **named)
                if hasattr(work, "wait"):
                    work.wait()
                settle(device)
            finally:
                self._inside = False
            assert self._timer is not None and self._timer.communication is not None
            spent, part = self._timer.communication, self._timer.part_now
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - started
            return work

        return timed
