"""Processes parts on the workers of a Dask cluster.

The result does not depend on which worker writes a shard, or how often. Dask gives a lost worker's tasks to
other workers, including tasks whose results were not fetched yet. This is safe because parts can be repeated,
and files are renamed to their final name only when they are complete. Tasks and results pass through the
scheduler as bytes; a task of more than 1 MiB (a chunk of a source that only one process can read) goes
through the shared file system.
"""

import contextlib
import logging
import pickle
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.files import write_bytes
from nbtrain.base.text.amounts import elapsed
from nbtrain.base.workspace import folder_variables
from nbtrain.corpus.workers.dask_cluster import DaskCluster
from nbtrain.corpus.workers.dask_worker import Order, software
from nbtrain.corpus.workers.lease import Lease
from nbtrain.corpus.workers.ordered_map import TASKS_PER_WORKER, Executor, Make, NotYet

logger = logging.getLogger(__name__)

LARGEST_MESSAGE_BYTES = 1 << 20
POLL_SECONDS = 1.0
LOST_SECONDS = 0.1
REMIND_SECONDS = 60.0
# Minimum number of tasks in progress: a cluster that has scaled down to zero workers grows only if there is
# work.
LEAST_LOOK_AHEAD = 4


class DaskPool(Executor):
    """An executor that runs tasks on the workers of a cluster, which write into `folder`."""

    advice = "give each worker more memory"

    def __init__(self, cluster: DaskCluster, folder: Path, make: Make):
        self.cluster = cluster
        self.client = cluster.client
        self.folder = folder
        self.lease = Lease(folder)
        order = Order(
            self.lease.token,
            software(),
            folder_variables(),
            str(self.lease.path),
            self.lease.token,
            pickle.dumps(make),
        )
        self._order = pickle.dumps(tuple(order))
        self._number = 0
        self._workers: set[str] = set()
        self._looked = -POLL_SECONDS
        self._alone_since: float | None = None
        self._reminded = 0.0
        self._has_spoken = False

        def call(order: bytes, task: bytes | str) -> bytes:
            # A nested function is sent as code, so nbtrain need not be installed where the scheduler runs.
            from nbtrain.corpus.workers.dask_worker import run

            return run(order, task)

        self._call = call

    def look_ahead(self) -> int:
        if time.monotonic() - self._looked >= POLL_SECONDS:
            self._look()
        return max(LEAST_LOOK_AHEAD, TASKS_PER_WORKER * len(self._workers))

    def submit(self, task: Any) -> Any:
        content: bytes | str = pickle.dumps(task)
        path = None
        if len(content) > LARGEST_MESSAGE_BYTES:
            path = self.folder / f".task-{self.lease.token}-{self._number}.tmp"
            write_bytes(path, content)  # type: ignore[arg-type]
            content = str(path)
        key = f"nbtrain-{self.lease.token}-{self._number}"
        self._number += 1
        with self.cluster.answering():
            # Without pure=False, a repeated call would return the earlier result without running.
            future = self.client.submit(
                self._call, self._order, content, key=key, pure=False, priority=-self._number
            )
            done = threading.Event()
            future.add_done_callback(lambda _: done.set())
        return future, done, path

    def result(self, ticket: Any, timeout_seconds: float) -> Any:
        from distributed import KilledWorker

        future, done, path = ticket
        if not done.wait(timeout_seconds):
            self._look()
            raise NotYet
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise self._killed(error) from error
            if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nbtrain"):
                raise DataError(
                    f"{self.cluster.where}: nbtrain is not installed for a worker of {self.cluster.address}. "
                    f"Start the workers in the same Python environment as this process."
                ) from error
            raise error
        if future.status == "cancelled":
            raise self.cluster.lost_error()
        try:
            if future.status != "finished":
                raise TimeoutError
            content = future.result(timeout=timeout_seconds)
        except (OSError, CancelledError) as error:
            if future.status == "cancelled":
                raise self.cluster.lost_error() from error
            # The worker that held the result died, so the task runs again.
            time.sleep(LOST_SECONDS)
            self._look()
            raise NotYet from error
        future.release()
        if path is not None:
            path.unlink(missing_ok=True)
        return pickle.loads(content)

    def renew(self) -> None:
        """Do nothing, because Dask itself gives lost tasks to other workers."""

    def close(self, is_abandoned: bool) -> None:
        if not is_abandoned and self.client.status == "running":
            # Also report workers that were lost since the last check.
            with contextlib.suppress(DataError):
                self._look()
        # Dask cannot stop running parts; they stop when they next check the lease.
        self.lease.end(is_abandoned)
        for path in self.folder.glob(f".task-{self.lease.token}-*.tmp"):
            path.unlink(missing_ok=True)

    def _look(self) -> None:
        """Update the set of workers. Raises DataError after data.workers.wait_minutes without a worker."""
        with self.cluster.answering():
            threads = self.client.nthreads()
        now = self._looked = time.monotonic()
        for address in sorted(self._workers - set(threads)):
            why = self.cluster.last_word(address)
            logger.warning(
                "Dask worker %s was lost%s. Its work is repeated.", address, f": {why}" if why else ""
            )
        if not self._has_spoken and (several := [address for address in threads if threads[address] > 1]):
            self._has_spoken = True
            logger.warning(
                "Dask workers with several threads: %s; nbtrain uses only one thread per worker. Start more "
                "workers (--nworkers) with one thread each (--nthreads 1) instead.",
                len(several),
            )
        self._workers = set(threads)
        if self._workers:
            self._alone_since = None
            return
        if self.cluster.refused:
            raise DataError(f"{self.cluster.where}: {self.cluster.refused}")
        if self._alone_since is None:
            self._alone_since, self._reminded = now, now
        waited, limit = now - self._alone_since, 60 * self.cluster.config.wait_minutes
        if waited >= limit:
            raise DataError(
                f"{self.cluster.where}: {self.cluster.address} had no worker for {elapsed(limit)} "
                f"(data.workers.wait_minutes = {self.cluster.config.wait_minutes:g}). Start workers, or "
                f"check the queue.{self.cluster.queue_words()} Finished work is kept: run the command again."
            )
        if now - self._reminded >= REMIND_SECONDS:
            self._reminded = now
            said = self.cluster.queue_words()
            logger.warning(
                "%s has had no worker for %s; waiting up to %s.%s",
                self.cluster.address,
                elapsed(waited),
                elapsed(limit),
                said,
            )

    def _killed(self, error: Any) -> DataError:
        """Return the error for a part during which more workers died than Dask allows."""
        why = self.cluster.last_word(error.last_worker.address)
        return DataError(
            f"{self.cluster.where}: {error.allowed_failures + 1} workers died while processing the same "
            f"part, most recently {error.last_worker.address}: {why or 'see their logs for the reason'}. "
            "Often the memory of a worker is too small: raise data.workers.memory_bytes, or the "
            "--memory-limit of `dask worker`. Finished work is kept: run the command again."
        )
