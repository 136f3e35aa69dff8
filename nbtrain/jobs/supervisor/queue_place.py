"""A supervisor's place in its machine's queue: wait for the job's devices, lock them, and release them.

Jobs with a higher backend.priority come first, then jobs that were submitted earlier. The first job waits
until all its devices are free, and no later job takes any of them meanwhile, so many small jobs cannot starve
a large one. A job waits for an earlier job only if there is a device that both may use.
"""

import contextlib
import os
import sys
import time
from dataclasses import replace

from nbtrain.base.errors import RecordError
from nbtrain.base.hardware import nvml
from nbtrain.base.run_directory.jobstate import CANCELLED, QUEUED
from nbtrain.base.run_directory.records import ProcessIdentity
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.reserve import FULL
from nbtrain.jobs.attempt.verdict import STOPPED, Verdict
from nbtrain.jobs.control.control import asked_pause, asked_priority
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.device_needs import gpus_of_hosts_job, needs_of
from nbtrain.jobs.machine.environment import HELD_CORES, HELD_GPUS, variables_to_keep
from nbtrain.jobs.machine.queue_folder import Queue, Ticket, system_start
from nbtrain.jobs.queue.listing import waiting_before, waiting_words
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.signals import PAUSE, POLL_SECONDS, SignalRequests

# Polling interval in seconds of jobs that are not first. It is longer, because many jobs may wait.
LATER_POLL_SECONDS = 0.5


class QueuePlace:
    """A job's place in the queue: its ticket, and its devices once it has them."""

    def __init__(self, journal: Journal, config: RunConfig):
        """Create a place for the journal's job. Raises SubmitError if the queue's folder cannot be used."""
        self._queue = Queue()
        self._queue.make()
        self._journal = journal
        self._config = config
        self._locks: dict[str, int] = {}
        self._shares = False
        self._queued_at = journal.record.created_at
        self._first = False
        self._ticket_written = False
        self._priority = asked_priority(journal.job)
        """Priority set by `nbtrain queue` for the run's previous job, or the ticket's priority at a pause.

        None stands for backend.priority.
        """

    def wait(self, requests: SignalRequests, config: RunConfig) -> Verdict | None:
        """Wait until the job has its devices, and return None.

        If a stop or a pause is requested first, leave the queue and return the job's verdict instead.
        """
        if self._locks or self._shares:
            return None
        self._config = config
        self._make_ticket()
        since, journal = time.monotonic(), self._journal
        waited = False
        while (words := self._take()) is not None:
            if not waited and journal.record.state == QUEUED:
                journal.event("state", words)
            if journal.record.state != QUEUED:
                journal.set_state(QUEUED, words)
            journal.set_cause(words)
            waited = True
            # There is nothing to save yet.
            requests.save = False
            requests.stop_within(
                POLL_SECONDS if self._first else LATER_POLL_SECONDS, lambda: self._look(requests)
            )
            if requests.stop:
                self.give_up()
                return Verdict(CANCELLED, f"{STOPPED} while the job waited for its devices")
        if waited:
            journal.record.cause = None
            locks = ", ".join(self._locks)
            said = f"has its devices ({locks})" if locks else "starts next to other jobs"
            waited_for = amounts.elapsed(time.monotonic() - since)
            journal.event("state", f"the job {said} after a wait of {waited_for}")
        return None

    def queue_again(self) -> None:
        """Set the job's time in the queue to now, so that after a pause it queues behind the waiting jobs."""
        self._queued_at = time.time()

    def give_up(self) -> None:
        """Free the devices and leave the queue."""
        with self._queue.locked():
            with contextlib.suppress(RecordError):  # a damaged ticket has no priority to keep
                if ticket := self._queue.ticket(self._journal.job):
                    self._priority = ticket.priority
            self._queue.remove(self._journal.job)
            for descriptor in self._locks.values():
                os.close(descriptor)
        self._locks, self._shares = {}, False
        for name in (HELD_GPUS, HELD_CORES):
            os.environ.pop(name, None)

    def _look(self, requests: SignalRequests) -> None:
        self._journal.sign_of_life()
        requests.read_ask(self._journal.job)
        if asked_pause(self._journal.job):
            requests.leave(PAUSE)

    def _make_ticket(self) -> None:
        job, record = self._journal.job, self._journal.record
        supervisor = ProcessIdentity.of(os.getpid())
        assert supervisor is not None
        slots, count = needs_of(self._config, self._queue)
        self._ticket = Ticket(
            job.job_id,
            str(job.run.path),
            record.name,
            slots,
            count,
            self._config.backend.priority if self._priority is None else self._priority,
            self._queued_at,
            supervisor,
            system_start(),
            python=sys.executable,
            variables=variables_to_keep(),
        )
        self._ticket_written = False

    def _join(self) -> None:
        """Write the ticket, and remove the tickets of the run's earlier, lost jobs."""
        for other in self._queue.tickets():
            if other.run == self._ticket.run and other.job_id != self._ticket.job_id:
                self._queue.remove(other.job)
        self._queue.write(self._ticket)
        self._ticket_written = True

    def _take(self) -> str | None:
        """Lock the job's devices if it is this job's turn, and return None.

        Otherwise, return text that says what the job waits for.
        """
        free: dict[str, int] = {}
        try:
            with self._queue.locked():
                try:
                    words = self._choose(free)
                finally:
                    for slot in free.keys() - self._locks.keys():
                        os.close(free[slot])
        except OSError as error:
            # The home folder may be full although runs are elsewhere. The job may have waited for days, so
            # it must not fail because of that.
            if error.errno not in FULL:
                raise
            return f"waits for disk space for the queue ({display(self._queue.path)}: {error.strerror})"
        if words is not None:
            return words
        gpus = [slot.removeprefix("gpu-") for slot in self._locks if slot.startswith("gpu-")]
        if gpus:
            os.environ[HELD_GPUS] = ",".join(gpus)
        elif self._locks:
            os.environ[HELD_CORES] = str(len(self._locks))
        return None

    def _choose(self, free: dict[str, int]) -> str | None:
        """Lock the job's devices or return what it waits for, as _take() does, under the queue's lock.

        Adds all free devices to `free`, as {slot: descriptor of its lock}; the caller closes those that the
        job does not use.
        """
        if not self._ticket_written:
            self._join()
        # Another process may have changed the ticket's priority, or removed the contents of the folder.
        try:
            self._ticket = self._queue.ticket(self._journal.job) or self._ticket
        except RecordError:
            self._queue.write(self._ticket)
        mine = self._ticket
        tickets = self._queue.tickets()
        before = waiting_before(mine, tickets)
        self._first = not before
        if not mine.at_once:
            self._lock_free(tickets, free)
            if before or len(free) < mine.count:
                return waiting_words(mine, tickets, before, len(free))
        chosen = sorted(free, key=_memory_used)[: mine.count]
        locks = {slot: free[slot] for slot in mine.slots if slot in chosen}
        self._queue.write(replace(mine, holds=list(locks)))
        self._locks, self._shares = locks, mine.at_once
        return None

    def _lock_free(self, tickets: list[Ticket], free: dict[str, int]) -> None:
        """Lock all free devices that the job may use, and add them to `free` as {slot: descriptor}."""
        left: set[str] = set()
        for other in tickets:
            if other.holds and not other.supervisor.alive():
                # When a supervisor dies, its ranks save and exit; until then, they use their devices.
                if processes.marked_pids([other.job_id]):
                    left.update(other.holds)
                else:
                    other.holds = []
                    # If the disk is full and the ticket stays as it is, the devices are free all the same:
                    # their locks, which are taken below, decide.
                    with contextlib.suppress(OSError):
                        self._queue.write(other)
        for slot in self._ticket.slots:
            if slot not in left and (descriptor := self._queue.lock_slot(slot)) is not None:
                free[slot] = descriptor


def place_of(journal: Journal, config: RunConfig) -> QueuePlace | None:
    """Return the queue place of a job that uses this machine's devices; None for any other job.

    Such a job runs with backend local, or with backend hosts and this machine among its hosts; jobs with
    backend.share_devices are not queued. Raises SubmitError if the queue's folder cannot be used.
    """
    here = journal.record.backend == "local" or (
        journal.record.backend == "hosts" and gpus_of_hosts_job(config)
    )
    return QueuePlace(journal, config) if here and not config.backend.share_devices else None


def _memory_used(slot: str) -> int:
    """Return the memory in use on a GPU, in GiB; 0 for other devices.

    GPUs with the least memory in use are chosen first, so a GPU that a program outside the queue uses is
    chosen last.
    """
    if not slot.startswith("gpu-"):
        return 0
    return (nvml.memory_used_bytes(slot.removeprefix("gpu-")) or 0) >> 30
