"""Maps a function over tasks in several processes: in order, with bounded memory, surviving dead workers.

    tasks, in order -> at most TASKS_PER_WORKER per worker in progress -> results, in the order of the tasks

With one worker, this process does the work itself. Several workers are managed by an Executor: processes on
this machine (local_pool.py) or of a Dask cluster (dask_pool.py).
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from nbtrain.base.errors import DataError

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
Make = Callable[[], Callable[[Any], Any]]

TASKS_PER_WORKER = 2
ATTEMPTS = 3
WAIT_SECONDS = 1.0


class NotYet(Exception):
    """Raised when a result is not available yet."""


class WorkersLost(Exception):
    """Raised when workers died before they finished their tasks; the message says how they died."""


class Executor(ABC):
    """Base class for groups of processes that run make()(task).

    `make` is called once in each process, before its first task.
    """

    advice: str
    """Clause with advice if workers die repeatedly, such as "give each worker more memory"."""

    @abstractmethod
    def look_ahead(self) -> int:
        """Return how many tasks may be in progress now; at least 1."""

    @abstractmethod
    def submit(self, task: Any) -> Any:
        """Submit a task and return a ticket for result(). Raises WorkersLost."""

    @abstractmethod
    def result(self, ticket: Any, timeout_seconds: float) -> Any:
        """Return a task's result, or raise its exception unchanged. Raises NotYet and WorkersLost."""

    @abstractmethod
    def renew(self) -> None:
        """Start new workers after WorkersLost.

        Old tickets become invalid, and the caller submits the tasks again.
        """

    @abstractmethod
    def close(self, is_abandoned: bool) -> None:
        """Stop the work of this map. `is_abandoned` means that results of running tasks will not be read."""


Workers = Callable[[Make], Executor] | None
"""Function that starts an executor for a `make`; None means that this process does all the work itself."""


def ordered_map(
    make: Callable[[], Callable[[Task], Result]],
    tasks: Iterable[Task],
    workers: Workers,
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Yield make()(task) for every task, in order; `make` is called once in each worker.

    `on_wait` is called every second while waiting. If a worker dies during a task (out of memory, kill -9),
    the task is repeated; after ATTEMPTS failed attempts, DataError is raised. An exception that a task raises
    is raised unchanged.
    """
    if workers is None:
        function = make()
        for task in tasks:
            yield function(task)
        return
    executor = workers(make)
    left = iter(tasks)
    under_way: deque[Task] = deque()
    tickets: deque[Any] = deque()  # tickets of the first tasks in `under_way`
    failures = 0
    try:
        while True:
            under_way.extend(islice(left, max(0, executor.look_ahead() - len(under_way))))
            if not under_way:
                return
            try:
                for task in list(islice(under_way, len(tickets), None)):
                    tickets.append(executor.submit(task))
                result = executor.result(tickets[0], WAIT_SECONDS)
            except NotYet:
                on_wait()
                continue
            except WorkersLost as lost:
                failures += 1
                if failures == ATTEMPTS:
                    raise DataError(
                        f"a worker process died {ATTEMPTS} times while processing the same part: {lost}. "
                        f"Often the machine is out of memory: {executor.advice}, then run the command again. "
                        f"Finished work is kept."
                    ) from lost
                logger.warning("A worker process died: %s. Its work is repeated.", lost)
                executor.renew()
                tickets.clear()
                continue
            failures = 0
            under_way.popleft()
            tickets.popleft()
            yield result
    finally:
        # This also runs if the caller stops early or after an error; then the remaining results are not read.
        executor.close(bool(under_way))
