"""This machine as a backend: a detached supervisor, torchrun on the loopback interface, a wrapper per rank.

    supervisor (own session)
      torchrun (own session, no restarts of its own, a new port)
        rank_wrapper 0 .. W-1 -> exit/<rank>.<attempt>.json
          rank 0 .. W-1       -> heartbeat/<rank>.json

A supervisor is reached by signals to its identity (pid, start time, boot, host) in job.json, so that a
recycled pid never gets one. What a supervisor that is gone has left is found by the job's marker.

Ranks are killed before their wrappers, so that the wrappers still write down how they ended.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.events import read_events
from nbtrain.base.jobstate import ACTIVE, LOST, read_state
from nbtrain.base.records import ExitRecord, Heartbeat, JobRecord, ProcessIdentity, host_name
from nbtrain.base.rundir import JobDir
from nbtrain.base.workspace import display, workspace
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.base import Capabilities, Launcher
from nbtrain.jobs.environment import rank_variables, supervisor_environment
from nbtrain.jobs.machine import usable_cores, visible_gpus
from nbtrain.jobs.supervisor import processes
from nbtrain.jobs.supervisor.host_memory import HostMemory
from nbtrain.jobs.supervisor.rank_wrapper import EXIT_FD
from nbtrain.monitor.logs import SUPERVISOR, log_path, tail_lines

WRAPPER_GRACE_SECONDS = 3.0
# From the submission until the supervisor has said who it is.
SUPERVISOR_START_SECONDS = 60.0
# From its last word until it is gone, and with it the lock that it holds.
SUPERVISOR_END_SECONDS = 10.0
# The kernel told the ranks of a lost job to save and leave.
LOST_GRACE_SECONDS = 5.0
POLL_SECONDS = 0.1
LAST_WORDS_LINES = 10


class LocalLauncher:
    """torchrun and what it has started, for one attempt of a job after the other."""

    def __init__(self, job: JobDir, command: Iterable[str]):
        """`command` is what a rank runs: arguments of Python, to which the run directory is added."""
        self._job = job
        self._command = [sys.executable, *command, str(job.run.path)]
        self._attempt = 0

    def launch(self, config: RunConfig, attempt: int) -> None:
        """Start torchrun with one wrapper for each rank."""
        self._attempt = attempt
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "1", "--nproc-per-node", str(config.world_size), "--max-restarts", "0"),
            # torchrun counts whole seconds; a little more than ours, so that the supervisor decides.
            *("--shutdown-timeout", str(int(config.backend.shutdown_timeout_seconds) + 10)),
            *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            *("--no-python", sys.executable, "-m", "nbtrain.jobs.supervisor.rank_wrapper"),
            *self._command,
        ]
        environment = {**os.environ, **rank_variables(config, self._job, attempt, usable_cores())}
        self._memory_before = HostMemory.now()
        with self._job.supervisor_log.open("ab") as log:
            self._torchrun = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=processes.child_setup(signal.SIGTERM),
            )
        processes.keep_for_popen(self._torchrun.pid)

    def poll(self) -> int | None:
        """torchrun's exit code; collects orphans by the way."""
        code = self._torchrun.poll()
        processes.reap_orphans()
        return code

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """To all ranks through their wrappers, never through torchrun while it has children."""
        if only is not None:
            processes.send([identity.pid for identity in only], number)
        # If torchrun is gone, its death told them already, and its pid may be another process's by now.
        elif self._torchrun.poll() is None:
            processes.send(processes.children(self._torchrun.pid) or [self._torchrun.pid], number)

    def kill(self) -> None:
        """The ranks first; a wrapper has WRAPPER_GRACE_SECONDS to write its record."""
        processes.send(processes.marked_pids([self._job.job_id], EXIT_FD), signal.SIGKILL)
        deadline = time.monotonic() + WRAPPER_GRACE_SECONDS
        while time.monotonic() < deadline:
            # Without torchrun the wrappers are orphans, and so is whatever else is left of the job.
            running = self._torchrun.poll() is None
            if not (processes.children(self._torchrun.pid) if running else self.processes_left()):
                break
            processes.reap_orphans()
            time.sleep(0.05)
        processes.end_marked([self._job.job_id], 0.0)

    def processes_left(self) -> bool:
        """Whether any process carries the job's marker."""
        return bool(processes.marked_pids([self._job.job_id]))

    def finish(self) -> bool:
        """Wait WRAPPER_GRACE_SECONDS for the last process, then kill it; True if one was killed."""
        killed = processes.end_marked([self._job.job_id], WRAPPER_GRACE_SECONDS)
        self._torchrun.wait()
        return bool(killed)

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """From the run directory, unless it is of an earlier attempt."""
        beat = Heartbeat.read(self._job.heartbeat(rank))
        return beat if beat and beat.attempt == self._attempt else None

    def exit_record(self, rank: int) -> ExitRecord | None:
        """From the run directory."""
        return ExitRecord.read(self._job.exit_record(rank, self._attempt))

    def memory(self) -> HostMemory:
        """This machine's counters since the launch."""
        return HostMemory.now().since(self._memory_before)

    def devices(self, config: RunConfig) -> int | None:
        """GPUs of this machine; None on CPU, where nothing is counted."""
        return len(visible_gpus()) if config.resources.device == "gpu" else None


class LocalBackend:
    """Jobs as processes of this machine."""

    capabilities = Capabilities(save=True, stop_in_order=True)

    def submit(self, job: JobDir) -> None:
        """Start the detached supervisor and wait until it has taken the job over."""
        with job.supervisor_log.open("ab") as log:
            starter = subprocess.Popen(
                [sys.executable, "-m", "nbtrain.jobs.supervisor", str(job.run.path), job.job_id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=supervisor_environment(),
                cwd=workspace() if workspace().is_dir() else Path("/"),
                start_new_session=True,
            )
        starter.wait()
        deadline = time.monotonic() + SUPERVISOR_START_SECONDS
        while starter.returncode == 0 and time.monotonic() < deadline:
            record = JobRecord.read(job.job_json)
            if record and record.supervisor:
                return
            time.sleep(0.02)
        log_end = "\n".join(f"  {line}" for line in self.logs(job, SUPERVISOR, LAST_WORDS_LINES))
        raise SubmitError(f"{display(job.path)}: the supervisor did not start. Its log:\n{log_end}")

    def status(self, job: JobDir) -> tuple[str, str | None]:
        """From job.json, and whether its writer lives."""
        return read_state(job, time.time())

    def cancel(self, job: JobDir, now: bool) -> bool:
        """TERM, or QUIT to kill, to the supervisor. Raises JobError if that is on another host."""
        return self._signal_supervisor(job, signal.SIGQUIT if now else signal.SIGTERM)

    def save(self, job: JobDir) -> bool:
        """USR1 to the supervisor. Raises JobError if that is on another host."""
        return self._signal_supervisor(job, signal.SIGUSR1)

    def finish(self, job: JobDir, now: bool) -> None:
        """End the ranks of a LOST job; wait for the supervisor of any other, which outlives its last word."""
        if self.status(job)[0] == LOST:
            processes.send(processes.marked_pids([job.job_id]), signal.SIGTERM)
            processes.end_marked([job.job_id], 0.0 if now else LOST_GRACE_SECONDS)
            return
        record = JobRecord.read(job.job_json)
        deadline = time.monotonic() + SUPERVISOR_END_SECONDS
        while record and record.supervisor and record.supervisor.alive() and time.monotonic() < deadline:
            if record.supervisor.pid == os.getpid():
                return
            time.sleep(0.02)

    def logs(self, job: JobDir, rank: int | str, lines: int) -> list[str]:
        """From the run directory."""
        return tail_lines(log_path(job, rank), lines)

    def events(self, job: JobDir) -> list[dict[str, Any]]:
        """From the run directory."""
        return read_events(job)

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """torchrun."""
        return LocalLauncher(job, command)

    def _signal_supervisor(self, job: JobDir, number: int) -> bool:
        """Signal the supervisor; False if it is gone. Waits for one that is just starting."""
        while self.status(job)[0] in ACTIVE:
            record = JobRecord.read(job.job_json)
            if record and record.supervisor:
                break
            time.sleep(POLL_SECONDS)
        else:
            return False
        if record.supervisor.elsewhere():
            raise JobError(
                f"{display(job.run.path)}: job {job.job_id} runs on {record.supervisor.host}, and this is "
                f"{host_name()}. Ask for it there."
            )
        processes.send([record.supervisor.pid], number)
        return True


BACKEND = LocalBackend()


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
