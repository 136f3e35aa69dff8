"""The folder of a machine's queue, with tickets, slots, and the lock under which they change.

    <folder>/                $NBTRAIN_QUEUE, else $XDG_STATE_HOME/nbtrain/queue/<host>; by default
                             ~/.local/state/nbtrain/queue/<host>
      lock                   held (flock) briefly by each process that reads or changes the files below
      devices.json           optional, written by hand: the devices that all jobs together may use, such as
                             {"gpus": ["0", "1"], "cores": 6}
      tickets/<job id>.<hash of the run directory>.json   one for each job that waits for devices or has them
      slots/gpu-<name>, cpu-<number>   held (flock) by the supervisor of the job that has the device

The folder belongs to one user. No process runs the queue: each supervisor locks its own devices, and the
kernel releases them when the supervisor dies. Tickets stay on the disk, so jobs keep their places when the
machine is restarted.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbtrain.base.errors import JobError, RecordError, SubmitError
from nbtrain.base.run_directory.jobstate import LOST
from nbtrain.base.run_directory.node_records import STOPS, Ask
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity, Record, boot_id
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display, queue_folder
from nbtrain.jobs.machine import processes

TICKET_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}\.[0-9a-f]{12}\.json")
SLOT_NAME = re.compile(r"(gpu|cpu)-[A-Za-z0-9][A-Za-z0-9_.:-]{0,120}")


@dataclass
class Ticket(Record):
    """A job's place in the queue, from its submission to its end; a paused job has no ticket."""

    job_id: str
    run: str
    """Path of the job's run directory."""
    name: str
    slots: list[str]
    """Devices that the job may use."""
    count: int
    """Number of devices that the job needs."""
    priority: int
    queued_at: float
    """Time of the submission, or of the resume after a pause, in seconds since the epoch."""
    supervisor: ProcessIdentity
    system: str
    """Value of system_start() when the ticket was written, to detect a restart."""
    holds: list[str] = field(default_factory=list)
    """Devices that the job has; empty while it waits."""
    at_once: bool = False
    """Whether the job starts without waiting for the jobs that use its devices."""
    python: str = ""
    """Path of the Python interpreter with which the job is restarted."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the submission that affect how the run computes and where it is stored."""
    refused: str = ""
    """Why the job could not be restarted after it was lost; "" if no restart has failed."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort key; the job with the smallest key gets its devices first."""
        return (-self.priority, self.queued_at, self.job_id)

    @property
    def job(self) -> JobDir:
        return JobDir(RunDir(Path(self.run)), self.job_id)

    @property
    def waits(self) -> bool:
        return not self.holds and not self.at_once and self.supervisor.alive()

    def devices(self) -> str:
        """Return the devices that the job needs as text, such as "2 GPUs" or "1 core"."""
        return devices(self.slots, self.count)


def devices(slots: list[str], count: int) -> str:
    """Return a number of slots of this kind as text, such as "2 GPUs"."""
    return counted(count, "GPU" if any(slot.startswith("gpu-") for slot in slots) else "core")


def system_start() -> str:
    """Return text that changes with each restart of the machine, or of this process's container."""
    first = ProcessIdentity.of(1)
    return f"{boot_id()} {first.start_ticks if first else ''}"


class Queue:
    """The queue's folder and its contents."""

    def __init__(self, path: Path | None = None):
        self.path = queue_folder() if path is None else path
        self._tickets = self.path / "tickets"
        self._slots = self.path / "slots"
        self.devices_json = self.path / "devices.json"

    def make(self) -> None:
        """Create the folder.

        Raises SubmitError if that fails or if the folder's file system does not support locks.
        """
        try:
            for folder in (self.path, self._tickets, self._slots):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.locked():
                pass
        except OSError as error:
            raise SubmitError(
                f"{display(self.path)} cannot be used for this machine's queue: {error.strerror}. Set "
                "NBTRAIN_QUEUE to a folder that you own on a local disk, or set backend.share_devices=true "
                "to start without a queue."
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, so that no other process reads or changes tickets and slots meanwhile."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def tickets(self) -> list[Ticket]:
        """Return all tickets in the queue's order, without damaged tickets."""
        found = []
        names = os.listdir(self._tickets) if self._tickets.is_dir() else []
        for name in names:
            if TICKET_NAME.fullmatch(name):
                with contextlib.suppress(RecordError):
                    if ticket := Ticket.read(self._tickets / name):
                        found.append(ticket)
        return sorted(found, key=lambda ticket: ticket.order)

    def ticket(self, job: JobDir) -> Ticket | None:
        """Return a job's ticket; None if it has no ticket."""
        return Ticket.read(self._path(job.job_id, job.run.path))

    def write(self, ticket: Ticket) -> None:
        """Add a ticket, or replace the job's existing ticket."""
        ticket.write(self._path(ticket.job_id, ticket.run))

    def remove(self, job: JobDir) -> None:
        """Remove a job's ticket, if it has one."""
        self._path(job.job_id, job.run.path).unlink(missing_ok=True)

    def lost(self) -> list[Ticket]:
        """Return the tickets of jobs whose supervisor died, and remove obsolete tickets."""
        found = []
        for ticket in self.tickets():
            if ticket.supervisor.alive():
                continue
            if not meaningless(ticket):
                found.append(ticket)
            elif not (ticket.holds and processes.marked_pids([ticket.job_id])):
                # Ranks that are still saving keep their devices, even if the job's successor waits for them.
                self.remove(ticket.job)
        return found

    def lock_slot(self, slot: str) -> int | None:
        """Lock a slot and return the descriptor that holds the lock; None if another process holds it."""
        if not SLOT_NAME.fullmatch(slot):
            raise JobError(
                f"{slot.partition('-')[2]!r} is not a valid GPU: use GPU numbers or UUIDs in "
                f"CUDA_VISIBLE_DEVICES and in {display(self.devices_json)}."
            )
        descriptor = os.open(self._slots / slot, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _path(self, job_id: str, run: str | Path) -> Path:
        # Jobs of two runs that were submitted within the same second may have the same id.
        place = hashlib.sha256(os.path.realpath(run).encode()).hexdigest()[:12]
        return self._tickets / f"{job_id}.{place}.json"


def meaningless(ticket: Ticket) -> bool:
    """Return whether a dead supervisor's ticket is obsolete.

    A ticket is obsolete if its job has ended, was paused, cancelled or deleted, or has a successor.
    """
    newest = ticket.job.run.newest_job()
    if newest is None or newest.job_id != ticket.job_id:
        return True
    try:
        # The job may be cancelled from another machine, which cannot remove this ticket.
        if (ask := Ask.read(ticket.job.control_ask)) and ask.action in STOPS:
            return True
        return JobRecord.read(ticket.job.job_json) is None or read_state(ticket.job, time.time())[0] != LOST
    except RecordError:
        return True
