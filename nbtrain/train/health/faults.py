"""Fault injection, to show how faults are handled on a healthy run: for tests and docs/try-a-fault.md.

    NBTRAIN_FAULTS='[{"rank": 1, "attempt": 0, "step": 6, "do": "nan"}]'

The variable is set in backend.env; the supervisor copies it into the attempt's record. Without it this module
does nothing. A fault without `rank` or `attempt` applies to every rank or attempt. `do` is one of

    nan              the step's loss, and with it its gradient, becomes NaN
    spike            the step's loss, and with it its gradient, is multiplied by `factor` (100)
    weights          a weight of this rank becomes NaN after the step
    kill             the rank sends itself the signal `signal` (9)
    stop, sleep      the rank is stopped (SIGSTOP), or sleeps forever, before the step's first collective
    raise            a RuntimeError with `message`
    oom              torch.OutOfMemoryError, as the allocator of a GPU raises it
    memory           the rank allocates host memory until it is killed
    full             an OSError: no space left on device
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_PIECE_BYTES = 64 << 20


class Faults:
    """The faults to inject into this rank in this attempt."""

    def __init__(self, orders: Sequence[dict[str, Any]], rank: int, attempt: int):
        self._mine = [
            fault
            for fault in orders
            if fault.get("rank", rank) == rank and fault.get("attempt", attempt) == attempt
        ]

    def loss_factor(self, step: int) -> float | None:
        """Return the factor by which the loss of `step` is to be multiplied; None if the loss is to stay
        unchanged.
        """
        for fault in self._due(step, lambda do: do in ("nan", "spike")):
            return float("nan") if fault["do"] == "nan" else float(fault.get("factor", 100))
        return None

    def spoils_weights(self, step: int) -> bool:
        """Return whether a weight is to become NaN after `step`."""
        return bool(list(self._due(step, lambda do: do == "weights")))

    def at(self, step: int) -> None:
        """Cause the faults that are due at the beginning of `step`."""
        for fault in self._due(step, lambda do: do not in ("nan", "spike", "weights")):
            _suffer(fault)

    def _due(self, step: int, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
        """Yield this rank's faults at `step` whose action is `wanted`. Each is printed to the rank's log with
        its time, so that the duration of the recovery can be measured.
        """
        for fault in self._mine:
            if fault["step"] == step and wanted(fault["do"]):
                print(f"injected fault: {fault['do']} at step {step}, time {time.time():.3f}", flush=True)
                yield fault


def _suffer(fault: dict[str, Any]) -> None:
    match fault["do"]:
        case "kill":
            os.kill(os.getpid(), fault.get("signal", signal.SIGKILL))
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            while True:
                time.sleep(1)
        case "raise":
            raise RuntimeError(fault["message"])
        case "oom":
            import torch

            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
                "which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.12 GiB memory in "
                "use."
            )
        case "memory":
            held = []
            while True:
                held.append(bytearray(b"x" * _PIECE_BYTES))
        case "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
