"""The interfaces between nbtrain and a scheduler: Backend and Launcher.

`backend.kind` selects the Backend, which determines where the job runs. The job's supervisor uses a Launcher
to start the ranks of an attempt and to communicate with them. To add a backend, write a module with both
classes and add a line to BACKENDS and to CAPABILITIES. The default methods of Backend suit a backend without
a scheduler.
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
    """Interface that starts a job's ranks, each under a wrapper process, and signals or kills them.

    attempt.py decides when.
    """

    end_message: str
    """Why the attempt ended, for an attempt in which no rank lived long enough to report a reason."""

    def launch(self, config: "RunConfig", attempt: int) -> None:
        """Start the ranks of an attempt. If the supervisor process dies, the ranks save and exit."""

    def poll(self) -> int | None:
        """Return the launcher's exit code, negative if a signal killed it; None while it runs."""

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """Send a signal to every rank through its wrapper, or only to the processes in `only`."""

    def kill(self) -> None:
        """Kill the ranks, and then the other processes of the attempt.

        In between, the ranks' wrappers get time to record how the ranks ended.
        """

    def processes_left(self) -> bool:
        """Return whether any process of the attempt is left, apart from this supervisor."""

    def finish(self) -> bool:
        """Wait until the last process has exited; return whether a process had to be killed."""

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the rank's newest heartbeat in this attempt; None if it has not written a heartbeat yet."""

    def exit_record(self, rank: int) -> ExitRecord | None:
        """Return the rank's exit record; None until its wrapper has written it."""

    def memory(self) -> HostMemory:
        """Return the kernel's host memory counters since the launch."""

    def devices(self, config: "RunConfig") -> list[int] | None:
        """Return the number of usable devices on each machine; None if devices are not counted.

        `config` is the run's configuration as submitted, before any restart resized it.
        """

    def trouble(self) -> str:
        """Return why the attempt cannot continue although ranks are running; "" if it can continue.

        For example, one of its machines is lost.
        """

    def preemption(self, signalled: bool = False) -> str:
        """Return the notice that the job's devices are being taken away; "" if there is no notice.

        Only the scheduler's own record and backend.preemption_notice count. `signalled` is
        True if the scheduler has sent the supervisor a signal: the scheduler's record is then requested even
        if no machine has received a notice.
        """

    def preemption_trouble(self) -> str:
        """Return why preemption() could not find out whether there is a notice; "" if it could."""

    def give_back(self) -> None:
        """Release the devices of a preempted job early, if its scheduler then starts the job again."""

    def missing(self) -> str:
        """Return which machines are still missing after a preemption; "" if ranks can start."""

    def abandon(self) -> None:
        """Kill the ranks without saving and write nothing, because another supervisor owns the job now."""

    def close(self) -> None:
        """End the launcher's remaining processes, once the job has ended."""


@dataclass(frozen=True)
class Capabilities:
    """Actions that a backend supports on a running job."""

    save: bool
    """Whether a checkpoint can be requested without ending the job."""
    stop_in_order: bool
    """Whether `cancel` can make the job save a checkpoint before it ends.

    Otherwise, `cancel` kills the job, and the steps since its newest checkpoint are lost.
    """
    pause: bool = False
    """Whether a pause can free the job's devices without ending the job."""
    pause_ends_allocation: bool = False
    """Whether a pause also ends the supervisor and frees its allocation; a resume submits the job again."""


class Backend:
    """Interface to a place where jobs run, chosen with `backend.kind`.

    Every backend writes the same records to the run directory.
    """

    capabilities: Capabilities
    """The backend's entry in CAPABILITIES."""

    def submit(self, job: JobDir) -> None:
        """Start a job whose folder has been written, and its supervisor. Raises SubmitError."""
        raise NotImplementedError

    def make_ready(self, config: "RunConfig") -> None:
        """Create what a job needs outside its run directory, before any of its files is written.

        Raises SubmitError.
        """

    def warnings(self, config: "RunConfig", machine: "Machine") -> list[str]:
        """Return a warning for each resource request that the submitting `machine` cannot fully meet.

        Each warning is a sentence without its full stop.
        """
        return []

    def request_text(self, job: JobDir, config: "RunConfig", alone: bool = False) -> str:
        """Return the text that submit() would send to the scheduler, or the commands that it would start.

        Returns "" if there is neither. With `alone`, the text is a file that the scheduler's own
        command, such as sbatch, can start before the run directory exists.
        """
        return ""

    def was_started(self, job: JobDir, run_id: str) -> None:
        """Record the scheduler's id of a job that another program started from its request_text()."""

    def taken_elsewhere(self, job: JobDir, run_id: str) -> str:
        """Return text that names the other allocation that runs the job, such as "Slurm job 12 runs it".

        A file from request_text() can be started twice. Returns "" if this allocation runs the job.
        """
        return ""

    def await_first_word(self, job: JobDir) -> None:
        """Wait briefly after submit(), until the job's state shows whether the job waits for anything."""

    def status(self, job: JobDir) -> tuple[str, str | None]:
        """Return (state, cause) from the job's records, as described in jobstate.py."""
        return read_state(job, time.time())

    def settle(self, job: JobDir) -> None:
        """Wait for the supervisor to record the end of a job that the scheduler has already ended."""

    def cancel(self, job: JobDir, now: bool) -> bool:
        """Ask the job to save and exit, or with `now` to exit at once.

        Returns False if the job has no process.
        """
        raise NotImplementedError

    def save(self, job: JobDir) -> bool:
        """Ask the job for a checkpoint; return False if no process is left that could save it."""
        raise NotImplementedError

    def pause(self, job: JobDir) -> None:
        """Make the scheduler take back the devices of a job whose ranks have saved and exited.

        Raises JobError.
        """

    def unpause(self, job: JobDir) -> None:
        """Make the scheduler allocate devices to a paused job again. Raises JobError."""

    def finish(self, job: JobDir, now: bool) -> None:
        """End the remaining processes of a job that has ended or is LOST.

        With `now`, they get no time to save.
        """
        raise NotImplementedError

    def logs(self, job: JobDir, rank: int | str, lines: int) -> list[str]:
        """Return the last `lines` lines of a rank's log; `rank` may also be "supervisor"."""
        return tail_lines(log_path(job, rank), lines)

    def follow(self, job: JobDir, rank: int | str) -> Iterator[str]:
        """Yield the lines added to a rank's log, from now until the run's newest job ends."""
        return follow(job.run, rank)

    def next_change(self, job: JobDir, seconds: float) -> None:
        """Wait until the scheduler reports a change, if the backend can observe that, at most `seconds`."""
        time.sleep(seconds)

    def events(self, job: JobDir) -> list[dict[str, Any]]:
        """Return all events of the job, oldest first."""
        return read_events(job)

    def findings(self, config: "RunConfig") -> Iterator[Finding]:
        """Yield the problems that would keep the run from starting on this backend; nothing is started."""
        yield from ()

    def go_on(self, job: JobDir, config: "RunConfig") -> str:
        """Request the job's next allocation when the current one ends.

        Returns text that names the next allocation; "" if there will be no next allocation.
        """
        return ""

    def preempted_since(self, job: JobDir, started_at: float) -> str:
        """Return the scheduler's record of a preemption of the job since `started_at`; "" without one.

        `started_at` is a time by this machine's clock. Raises JobError if the scheduler does not respond.
        """
        return ""

    def after_preemption(self, job: JobDir, config: "RunConfig") -> str:
        """Return text that says how a preempted job continues, submitting it again if necessary.

        Returns "" if the job does not continue by itself.
        """
        return self.starts_again(job)

    def starts_again(self, job: JobDir) -> str:
        """Return a message if the scheduler will start the job again after ending it; "" if it will not."""
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
"""{backend.kind: module}. A module is imported on first use; its BACKEND is the backend."""

READ_FROM_FILES = ("local", "hosts")
"""Kinds of backend without a scheduler.

The state, logs and events of their jobs are in the run directory, where class Backend can read them.
"""

CAPABILITIES = {
    "local": Capabilities(save=True, stop_in_order=True, pause=True),
    "hosts": Capabilities(save=True, stop_in_order=True, pause=True),
    "kubernetes": Capabilities(save=True, stop_in_order=True, pause=True),
    "slurm": Capabilities(save=True, stop_in_order=True, pause=True, pause_ends_allocation=True),
}
"""{backend.kind: capabilities}.

The buttons of the job page use this table, so that they import neither a backend's module nor NumPy.
"""


def backend_of(kind: str) -> Backend:
    """Return the backend of this kind.

    Raises JobError for an unknown kind, which a newer version of nbtrain may have recorded.
    """
    return importlib.import_module(_known(BACKENDS, kind)).BACKEND


def backend_of_job(job: JobDir) -> Backend:
    """Return the backend that the job was submitted to. Raises JobError."""
    return backend_of(_kind_of(job))


def reader_of_job(job: JobDir) -> Backend:
    """Return a backend that can read the job's state, logs and events.

    For backends without a scheduler this is a plain Backend, so that `nbtrain status` imports neither the
    backend's module nor the schema. Raises JobError.
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
        raise JobError(
            f"backend.kind = {kind} is unknown; this version of nbtrain supports {known}. Use the version "
            "that submitted the job."
        )
    return table[kind]


def network_interface(config: "RunConfig") -> str | None:
    """Return the network interface for traffic between ranks from the backend's settings; None if not set."""
    section = getattr(config.backend, config.backend.kind, None)
    return getattr(section, "network_interface", None)


def status_of(job: JobDir) -> tuple[str, str | None]:
    """Return (state, cause) of a job, from its backend."""
    return reader_of_job(job).status(job)
