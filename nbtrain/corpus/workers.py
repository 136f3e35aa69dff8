"""An ordered map over a pool of processes, with bounded memory, that survives the death of a worker.

    tasks, in order -> at most 2 per worker under way -> results, in the order of the tasks

One worker is this process. The pool is loky's: its workers do not run the caller's main module again (a
notebook has none, a script may have no guard), and it says how a worker died.
"""

import logging
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from nbtrain.base.errors import DataError
from nbtrain.base.parent_death import die_with_parent

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_PER_WORKER = 2
ATTEMPTS = 3
WAIT_SECONDS = 1.0

_function: Callable[[Any], Any] | None = None


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def ordered_map(
    make: Callable[[], Callable[[Task], Result]],
    tasks: Iterable[Task],
    num_workers: int,
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """make()(task) for every task, in order; `make` is called once in each worker.

    `on_wait` is called every second of waiting. A task during which workers die (out of memory, kill -9) is
    tried ATTEMPTS times in all, then DataError is raised. An exception of a task is raised here as it is.
    """
    if num_workers <= 1:
        function = make()
        for task in tasks:
            yield function(task)
        return
    from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

    def start() -> Any:
        return ProcessPoolExecutor(num_workers, initializer=_initialize, initargs=(make, os.getpid()))

    executor = start()
    left = iter(tasks)
    under_way: deque[Task] = deque()
    submitted: deque[Any] = deque()  # the futures of the first of them
    failures = 0
    try:
        while True:
            under_way.extend(islice(left, TASKS_PER_WORKER * num_workers - len(under_way)))
            if not under_way:
                return
            try:
                # submit() too raises if a worker has died since the last look.
                for task in list(islice(under_way, len(submitted), None)):
                    submitted.append(executor.submit(_run, task))
                result = submitted[0].result(timeout=WAIT_SECONDS)
            except TimeoutError:
                on_wait()
                continue
            except BrokenProcessPool as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise DataError(
                        f"a worker process died {ATTEMPTS} times at the same place: {_reason(error)}. Often "
                        f"the machine is out of memory: set data.num_prepare_workers lower. What is done is "
                        f"kept: run it again."
                    ) from error
                logger.warning("A worker process died: %s. Its work is done again.", _reason(error))
                executor.shutdown(kill_workers=True)
                executor = start()
                submitted.clear()
                continue
            failures = 0
            under_way.popleft()
            submitted.popleft()
            yield result
    finally:
        # Also if the caller stops early or after an error: nobody waits for work whose result is not read.
        executor.shutdown(kill_workers=bool(under_way))


def _reason(error: BaseException) -> str:
    """How a worker died, e.g. SIGKILL(-9): loky names exit codes in braces in a long sentence."""
    codes = re.search(r"\{([^}]+)\}", str(error))
    return ", ".join(sorted(set(codes[1].split(", ")))) if codes else str(error).partition("\n")[0]


def _initialize(make: Callable[[], Callable[[Any], Any]], parent: int) -> None:
    global _function
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died while this process started: no signal will come any more
    # Ctrl-C in a terminal reaches the whole process group, but the parent alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _function = make()


def _run(task: Any) -> Any:
    assert _function is not None
    return _function(task)
