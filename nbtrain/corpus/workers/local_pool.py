"""Runs tasks in worker processes on this machine.

The process pool is loky's: its workers do not run the caller's main module again (a notebook has none, and a
script may lack the main guard), and it reports how a worker died.
"""

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.corpus.workers.ordered_map import TASKS_PER_WORKER, Executor, Make, NotYet, WorkersLost

_function: Callable[[Any], Any] | None = None
_failure: Exception | None = None
"""Exception that `make` raised in this worker; None if it raised none."""


class LocalPool(Executor):
    """A pool of `num_workers` processes on this machine, which end together with this process."""

    advice = "lower data.num_prepare_workers"

    def __init__(self, num_workers: int, make: Make):
        self.num_workers, self.make = num_workers, make
        self._pool = self._start()

    def _start(self) -> Any:
        arguments = (self.make, os.getpid())
        return ProcessPoolExecutor(self.num_workers, initializer=_initialize, initargs=arguments)

    def look_ahead(self) -> int:
        return TASKS_PER_WORKER * self.num_workers

    def submit(self, task: Any) -> Any:
        # submit() also raises an error if a worker has died since the last check.
        try:
            return self._pool.submit(_run, task)
        except BrokenProcessPool as error:
            raise WorkersLost(_reason(error)) from error

    def result(self, ticket: Any, timeout_seconds: float) -> Any:
        # ticket.result(timeout) is not used, because the task itself may raise TimeoutError.
        if not wait([ticket], timeout_seconds).done:
            raise NotYet
        try:
            return ticket.result()
        except BrokenProcessPool as error:
            raise WorkersLost(_reason(error)) from error

    def renew(self) -> None:
        self._pool.shutdown(kill_workers=True)
        self._pool = self._start()

    def close(self, is_abandoned: bool) -> None:
        self._pool.shutdown(kill_workers=is_abandoned)


def _reason(error: BaseException) -> str:
    """Return how a worker died, e.g. "SIGKILL(-9)", from the part in braces of loky's message."""
    codes = re.search(r"\{([^}]+)\}", str(error))
    return ", ".join(sorted(set(codes[1].split(", ")))) if codes else str(error).partition("\n")[0]


def _initialize(make: Make, parent: int) -> None:
    global _function, _failure
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died while this process started, so no signal will arrive
    # Ctrl-C in a terminal reaches the whole process group, but only the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _function = make()
    except Exception as error:
        # loky would print the error and end the worker, as if it had died. Instead, the first task raises it.
        _failure = error


def _run(task: Any) -> Any:
    if _failure is not None:
        raise _failure
    assert _function is not None
    return _function(task)
