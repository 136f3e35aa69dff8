"""Interfaces between nbtrain and a scheduler, in two layers.

A user chooses a Backend by `backend.kind`: the place where the job runs. The job's supervisor uses a
Launcher, which starts and reaches the ranks of an attempt. To add a backend, write a module with both and add
a line to BACKENDS. The defaults of Backend fit a place without a scheduler.
"""

import importlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nbtrain.base.errors import JobError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.jobs.machine.host_memory import HostMemory
from nbtrain.monitor.logs.logs import follow, log_path, tail_lines

if TYPE_CHECKING:
    from nbtrain.config.schema import RunConfig
    from nbtrain.jobs.machine.machine import Machine

Value = TypeVar("Value")


class Launcher(Protocol):
    """Starts a job's ranks, each under a wrapper, and sends them signals; attempt.py decides when."""

    end_message: str
    """Reason that the attempt ended, for an attempt in which no rank lived long enough to report a reason."""

    def launch(self, config: "RunConfig", attempt: int) -> None:
        """Start the ranks of an attempt. If this process dies, they save and exit."""

    def poll(self) -> int | None:
        """Return the launcher's exit code, or minus the signal that killed it; None while it runs."""

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """Send a signal to every rank through its wrapper, or only to the processes in `only`."""

    def kill(self) -> None:
        """Kill the ranks, give their wrappers time to record how they ended, then kill the remaining
        processes.
        """

    def processes_left(self) -> bool:
        """Return whether any process of the job is left, apart from the launcher's."""

    def finish(self) -> bool:
        """Wait for the last process; return whether a process had to be killed."""

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the rank's newest heartbeat of this attempt."""

    def exit_record(self, rank: int) -> ExitRecord | None:
        """Return the rank's exit record; None until its wrapper has written it."""

    def memory(self) -> HostMemory:
        """Return the kernel's host memory counters since the launch."""

    def devices(self, config: "RunConfig") -> list[int] | None:
        """Return the number of usable devices on each machine; None if devices are not counted.

        `config` is the run's configuration as submitted, before any restart resized it."""

    def trouble(self) -> str:
        """Return why the attempt cannot continue although ranks run, for example a lost machine; "" if it
        can.
        """

    def preemption(self, signalled: bool = False) -> str:
        """Return the notice that the job's devices are being taken away; "" without one.

        Only the scheduler's own record or backend.preemption_notice counts. `signalled`: the scheduler has
        sent this process a signal, so that its record is requested even if no machine has been told to leave.
        """

    def preemption_trouble(self) -> str:
        """Return why it is not known whether devices are being taken away; "" if it is known."""

    def give_back(self) -> None:
        """Return the devices of a preempted job before its scheduler takes them, if the scheduler starts the
        job again then.
        """

    def missing(self) -> str:
        """Return which machines have not come back after a preemption; "" if ranks can start."""

    def abandon(self) -> None:
        """Kill the ranks without saving and write nothing, because another supervisor owns the job now."""

    def close(self) -> None:
        """End the scheduler's remaining processes, once the job has ended."""


@dataclass(frozen=True)
class Capabilities:
    """Actions that a backend supports on a running job."""

    save: bool
    """Request a checkpoint without ending the job."""
    stop_in_order: bool
    """End the job after a checkpoint. Otherwise `cancel` kills it, and the steps since the newest checkpoint
    are lost.
    """
    pause: bool = False
    """Free the job's devices without ending it, because its supervisor needs none while it waits."""
    pause_ends_allocation: bool = False
    """Pausing also ends the supervisor and frees its allocation; resuming submits the job again."""


class Backend:
    """A place where jobs run, chosen by the user. Every backend writes the same records to the run
    directory.
    """

    capabilities: Capabilities
    """Its row of CAPABILITIES."""

    def submit(self, job: JobDir) -> None:
        """Start a job whose folder has been written, and its supervisor. Raises SubmitError."""
        raise NotImplementedError

    def make_ready(self, config: "RunConfig") -> None:
        """Make what a job needs outside its run directory, before anything of the job is written. Raises
        SubmitError.
        """

    def warnings(self, config: "RunConfig", machine: "Machine") -> list[str]:
        """Return a sentence, without its full stop, for each request that `machine`, which submits the run,
        cannot fully meet.
        """
        return []

    def request_text(self, job: JobDir, config: "RunConfig", alone: bool = False) -> str:
        """Return the text that submit() would send to the scheduler, or the commands that it would start; ""
        if neither.

        With `alone`, return a file with which the scheduler's own command starts the run before any file of
        it exists.
        """
        return ""

    def was_started(self, job: JobDir, run_id: str) -> None:
        """Record the scheduler's name for a job that another program started from its request_text()."""

    def taken_elsewhere(self, job: JobDir, run_id: str) -> str:
        """Name the other allocation that runs a job started from request_text(); "" if this one runs it."""
        return ""

    def await_first_word(self, job: JobDir) -> None:
        """Wait briefly after submit(), until the job's state shows whether the job waits for anything."""

    def status(self, job: JobDir) -> tuple[str, str | None]:
        """Return (state, cause) from the job's records, as described in jobstate.py."""
        return read_state(job, time.time())

    def settle(self, job: JobDir) -> None:
        """Wait until a job that its scheduler has ended counts as ended for readers too."""

    def cancel(self, job: JobDir, now: bool) -> bool:
        """Ask the job to save and exit, or to exit at once; return False if no process is left to do so."""
        raise NotImplementedError

    def save(self, job: JobDir) -> bool:
        """Ask the job for a checkpoint; return False if no process is left to save it."""
        raise NotImplementedError

    def pause(self, job: JobDir) -> None:
        """Make the scheduler take back the devices of a job whose ranks have saved and exited. Raises
        JobError.
        """

    def unpause(self, job: JobDir) -> None:
        """Make the scheduler give a paused job its devices again. Raises JobError."""

    def finish(self, job: JobDir, now: bool) -> None:
        """End the remaining processes of a job that has ended or is LOST; `now` gives them no time to
        save.
        """
        raise NotImplementedError

    def logs(self, job: JobDir, rank: int | str, lines: int) -> list[str]:
        """Return the last lines of a rank's log, or of "supervisor"."""
        return tail_lines(log_path(job, rank), lines)

    def follow(self, job: JobDir, rank: int | str) -> Iterator[str]:
        """Yield the lines added to a rank's log, from now until the newest job ends."""
        return follow(job.run, rank)

    def next_change(self, job: JobDir, seconds: float) -> None:
        """Wait until the scheduler reports a change, if the backend can tell; at most `seconds`."""
        time.sleep(seconds)

    def events(self, job: JobDir) -> list[dict[str, Any]]:
        """Return all events of the job, by time."""
        return read_events(job)

    def findings(self, config: "RunConfig") -> Iterator[Finding]:
        """Yield the problems that would stop the run in this place; nothing is started to find them."""
        yield from ()

    def go_on(self, job: JobDir, config: "RunConfig") -> str:
        """Request the next allocation when this one ends; return text that names the next one, "" if there is
        none.
        """
        return ""

    def preempted_since(self, job: JobDir, started_at: float) -> str:
        """Return the scheduler's record of a preemption of this job since a time of this machine's clock; ""
        without one. Raises JobError if the scheduler does not answer.
        """
        return ""

    def after_preemption(self, job: JobDir, config: "RunConfig") -> str:
        """Return text that says how a preempted job continues, submitting it again if need be; "" if it does
        not continue by itself.
        """
        return self.starts_again(job)

    def starts_again(self, job: JobDir) -> str:
        """Return text that says that the scheduler will start the job again after ending it; "" if it will
        not.
        """
        return ""

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """Return the launcher with which the job's supervisor starts its ranks.

        A rank runs Python with the arguments in `command`.
        """
        raise NotImplementedError


BACKENDS = {
    "local": "nbtrain.jobs.backends.local",
    "hosts": "nbtrain.jobs.backends.hosts.backend",
    "kubernetes": "nbtrain.jobs.backends.kubernetes.backend",
    "slurm": "nbtrain.jobs.backends.slurm.backend",
}
"""{backend.kind: its module}, imported on use; the module's BACKEND is the backend."""

READ_FROM_FILES = ("local", "hosts")
"""Backends without a scheduler: what they report of a job is in its run directory, and Backend reads it."""

CAPABILITIES = {
    "local": Capabilities(save=True, stop_in_order=True, pause=True),
    "hosts": Capabilities(save=True, stop_in_order=True, pause=True),
    "kubernetes": Capabilities(save=True, stop_in_order=True, pause=True),
    "slurm": Capabilities(save=True, stop_in_order=True, pause=True, pause_ends_allocation=True),
}
"""{backend.kind: its capabilities}. A run's buttons follow them without loading its module or numpy."""


def backend_of(kind: str) -> Backend:
    """Return the backend with that name. Raises JobError for an unknown name, which a newer nbtrain may have
    written.
    """
    return importlib.import_module(_known(BACKENDS, kind)).BACKEND


def backend_of_job(job: JobDir) -> Backend:
    """Return the backend that the job was submitted to. Raises JobError."""
    return backend_of(_kind_of(job))


def reader_of_job(job: JobDir) -> Backend:
    """Return what reads the state, logs and events of a job: its backend, or Backend where these are files.

    `nbtrain status` then loads neither the backend's module nor the schema. Raises JobError.
    """
    kind = _kind_of(job)
    return Backend() if kind in READ_FROM_FILES else backend_of(kind)


def capabilities_of_job(job: JobDir) -> Capabilities:
    """Return the capabilities of the job's backend. Raises JobError."""
    return _known(CAPABILITIES, _kind_of(job))


def _kind_of(job: JobDir) -> str:
    record = JobRecord.read(job.job_json)
    return record.backend if record else "local"


def _known(table: Mapping[str, Value], kind: str) -> Value:
    if kind not in table:
        known = ", ".join(table)
        raise JobError(f"backend.kind = {kind} is not known here; this nbtrain knows {known}.")
    return table[kind]


def network_interface(config: "RunConfig") -> str | None:
    """Return the network interface that the run's backend names for traffic between ranks."""
    section = getattr(config.backend, config.backend.kind, None)
    return getattr(section, "network_interface", None)


def status_of(job: JobDir) -> tuple[str, str | None]:
    """Return (state, cause) of a job, from its backend."""
    return reader_of_job(job).status(job)
