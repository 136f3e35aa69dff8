"""List and change the queue: the jobs that have devices, the waiting jobs, and their order."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.printing.report import Report, Result, Sentence, Table, record_of
from nbtrain.base.run_directory.jobstate import ACTIVE, QUEUED
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display, output_root
from nbtrain.config.sections.backend_section import MOST_PRIORITY
from nbtrain.jobs.control.control import ask_priority
from nbtrain.jobs.machine.queue_folder import Queue, Ticket, devices

CAUSE_LENGTH = 100
# Maximum number of other jobs that are named in the cause of a waiting job.
NAMED_JOBS = 4


@dataclass(frozen=True)
class QueueEntry:
    """A job in the queue."""

    place: int | None
    """Place in the queue, 1 for the first waiting job; None for a job that has its devices or is lost."""
    name: str
    run: str
    """Path of the job's run directory."""
    job_id: str
    state: str
    needs: str
    """Devices that the job needs, such as "2 GPUs"."""
    holds: list[str]
    """Names of the devices that are locked for the job, such as "gpu-GPU-<uuid>"; [] while it waits."""
    priority: int
    queued_at: float
    """Time of the submission, or of the resume after a pause, in seconds since the epoch."""
    cause: str | None

    @property
    def line(self) -> str:
        """The reason for the job's state as one line; "" without a reason."""
        return " ".join((self.cause or "").split())

    @property
    def cells(self) -> list[str]:
        """The job's row in the table of `nbtrain queue`, in the order of its columns."""
        has = ", ".join(slot.replace("gpu-GPU-", "GPU-") for slot in self.holds)
        return [
            "-" if self.place is None else str(self.place),
            self.name,
            self.state,
            self.needs,
            str(self.priority),
            f"{amounts.elapsed(max(0.0, time.time() - self.queued_at))} ago",
            has if has and self.state in ACTIVE else shortened(self.line, CAUSE_LENGTH),
        ]


class QueueList(Result, list[QueueEntry]):
    """List of jobs, shown as the table of `nbtrain queue` when printed or at the end of a notebook cell."""

    def as_report(self) -> Report:
        """Return the table, followed by causes that are too long for it and by runs of other workspaces."""
        if not self:
            return Report("", [Sentence("No job on this machine has devices or waits for devices.")])
        columns = ("PLACE", "NAME", "STATE", "NEEDS", "PRIORITY", "SINCE", "DEVICES OR REASON")
        long = [f"{entry.name}: {entry.line}" for entry in self if len(entry.line) > CAUSE_LENGTH]
        elsewhere = [
            f"{entry.name} is a run of another workspace: {entry.run}"
            for entry in self
            if Path(entry.run).parent != output_root()
        ]
        table = Table(columns, [entry.cells for entry in self])
        # A long cause often ends with what to do, so it is shown in full.
        return Report("", [table, *map(Sentence, (*long, *elsewhere))])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the jobs as JSON values."""
        return [record_of(entry) for entry in self]


def list_queue(name: str = "") -> QueueList:
    """Return the jobs that have devices, then the waiting jobs in order, then the lost jobs.

    With `name`, return only jobs whose run has this text in its name.
    """
    queue = Queue()
    now = time.time()
    lost = queue.lost() if queue.path.is_dir() else []
    tickets = queue.tickets()
    alive = [ticket for ticket in tickets if ticket.supervisor.alive()]
    having = [ticket for ticket in alive if not ticket.waits]
    found = QueueList(_having(ticket, tickets, now) for ticket in having)
    waiting = [ticket for ticket in alive if ticket.waits]
    # The supervisor's message is from its last poll, and the order may have changed since.
    taken = {slot for ticket in tickets for slot in ticket.holds}
    for place, ticket in enumerate(waiting, 1):
        free = len(set(ticket.slots) - taken)
        entry = _entry(ticket, place, now)
        if entry.state == QUEUED:
            said = waiting_words(ticket, tickets, waiting_before(ticket, tickets), free)
            entry = replace(entry, cause=said)
        found.append(entry)
    found += [_entry(ticket, None, now) for ticket in lost]
    return QueueList(entry for entry in found if name in entry.name)


def _having(ticket: Ticket, tickets: Sequence[Ticket], now: float) -> QueueEntry:
    """Return the entry of a job that has its devices, or that was just allowed to start without waiting."""
    entry = _entry(ticket, None, now)
    if ticket.at_once and entry.state == QUEUED:
        # The supervisor's message is from before it was allowed to start.
        others = ", ".join(_who_has(ticket, tickets)[:NAMED_JOBS])
        entry = replace(entry, cause=f"starts now{f', next to {others}' if others else ''}")
    return entry


def _entry(ticket: Ticket, place: int | None, now: float) -> QueueEntry:
    state, cause = read_state(ticket.job, now)
    if ticket.refused:
        cause = f"could not be restarted: {ticket.refused}"
    return QueueEntry(
        place,
        ticket.name,
        ticket.run,
        ticket.job_id,
        state,
        ticket.devices(),
        ticket.holds,
        ticket.priority,
        ticket.queued_at,
        cause,
    )


def waiting_before(mine: Ticket, tickets: Sequence[Ticket]) -> list[Ticket]:
    """Return the tickets that wait in the queue before `mine` and compete with it for a device."""
    return [
        ticket
        for ticket in tickets
        if ticket.waits and ticket.order < mine.order and not set(ticket.slots).isdisjoint(mine.slots)
    ]


def waiting_words(mine: Ticket, tickets: Sequence[Ticket], before: Sequence[Ticket], free: int) -> str:
    """Return the reason why a job waits: its devices, and the jobs that hold them or come before it."""
    said = f"waits for {mine.devices()}; {free} {'is' if free == 1 else 'are'} free"
    if len(mine.slots) < mine.count:
        said += f", and the job may use only {len(mine.slots)} of this machine's devices"
    others = _who_has(mine, tickets)
    others += [f"{_named(ticket, mine)} ({QUEUED})" for ticket in before]
    more = len(others) - NAMED_JOBS
    named = ", ".join(others[:NAMED_JOBS]) + (f" and {more} more" if more > 0 else "")
    place = f"; place {len(before) + 1} in the queue" if before else ""
    return said + (f"; before it: {named}" if others else "") + place


def _who_has(mine: Ticket, tickets: Sequence[Ticket]) -> list[str]:
    """Return "NAME (STATE, DEVICES)" for each other job that holds devices which `mine` may use."""
    found = []
    for ticket in tickets:
        if ticket.job_id != mine.job_id and (shared := [slot for slot in ticket.holds if slot in mine.slots]):
            state = read_state(ticket.job, time.time())[0]
            found.append(f"{_named(ticket, mine)} ({state}, {devices(shared, len(shared))})")
    return found


def _named(ticket: Ticket, mine: Ticket) -> str:
    """Return the name of a job's run, with its folder if the run is in another workspace."""
    is_here = Path(ticket.run).parent == Path(mine.run).parent
    return ticket.name if is_here else f"{ticket.name} of another workspace, {ticket.run}"


def move(job: JobDir, priority: int | None = None, at_once: bool = False) -> None:
    """Change a waiting job's priority, or let it start at once on devices that other jobs use.

    The run's next job keeps the priority. Raises JobError if the job does not wait in this machine's queue,
    and ConfigError if the priority is out of bounds.
    """
    if priority is not None and (
        type(priority) is not int or not -MOST_PRIORITY <= priority <= MOST_PRIORITY
    ):
        raise ConfigError(
            f"priority {priority!r}: must be a whole number from {-MOST_PRIORITY} to {MOST_PRIORITY}."
        )
    queue = Queue()
    if queue.path.is_dir():
        with queue.locked():
            ticket = queue.ticket(job)
            if ticket and ticket.waits:
                if priority is not None:
                    ask_priority(job, priority)
                priority = ticket.priority if priority is None else priority
                return queue.write(replace(ticket, priority=priority, at_once=at_once))
    state = read_state(job, time.time())[0]
    raise JobError(
        f"{display(job.run.path)}: job {job.job_id} is {state} and does not wait in this machine's queue. To "
        "list the waiting jobs, run `nbtrain queue`."
    )
