"""This machine as a backend: torchrun on the loopback interface, one wrapper for each rank.

    torchrun (own session, no restarts of its own, a new port)
      rank_wrapper 0 .. W-1 -> exit/<rank>.<attempt>.json
        rank 0 .. W-1       -> heartbeat/<rank>.json

Ranks are killed before their wrappers, so that the wrappers still write down how they ended.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

from nbtrain.base.records import ExitRecord, Heartbeat, ProcessIdentity
from nbtrain.base.rundir import JobDir
from nbtrain.config.elastic import DATA_PARALLEL_SIZE
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.environment import rank_variables
from nbtrain.jobs.machine import usable_cores, visible_gpus
from nbtrain.jobs.supervisor import processes
from nbtrain.jobs.supervisor.host_memory import HostMemory
from nbtrain.jobs.supervisor.rank_wrapper import EXIT_FD

WRAPPER_GRACE_SECONDS = 3.0


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
        environment = {
            **os.environ,
            **rank_variables(config, self._job, attempt, usable_cores()),
            DATA_PARALLEL_SIZE: str(config.parallel.data_parallel_size),
        }
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
        while time.monotonic() < deadline and self._wrappers_left():
            processes.reap_orphans()
            time.sleep(0.05)
        processes.end_marked([self._job.job_id], 0.0)

    def _wrappers_left(self) -> bool:
        if self._torchrun.poll() is None:
            return bool(processes.children(self._torchrun.pid))
        # They are orphans, and so is whatever else is left of the job.
        return self.processes_left()

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


def free_port() -> int:
    """A TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
