"""Backend for this machine: a detached supervisor, a rank launcher, and a wrapper for each rank.

    supervisor (own session)
      rank_launcher (own session, a new port in each attempt)
        rank_wrapper 0 .. W-1 -> exit/<rank>.<attempt>.json
          rank 0 .. W-1       -> heartbeat/<rank>.json

Processes that a dead supervisor left behind are found by the job's marker.

Ranks are killed before their wrappers, so that the wrappers can still record how the ranks ended.
"""

import os
import signal
from collections.abc import Iterable, Iterator

from nbtrain.base.errors import JobError
from nbtrain.base.findings import Finding
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import Launcher
from nbtrain.jobs.attempt.phases import stop_patience_seconds
from nbtrain.jobs.attempt.ranks import Patience
from nbtrain.jobs.backends.supervised_here import SupervisedHere
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.device_needs import gpus_of_ranks, too_few, warnings_here
from nbtrain.jobs.machine.environment import HELD_CORES, rank_variables
from nbtrain.jobs.machine.host_memory import HostMemory
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.machine.node_address import LOOPBACK
from nbtrain.jobs.machine.preemption_notice import PreemptionNotice, notice_of
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.node.ranks_here import NodeRanks, RanksHere, send_to


class LocalLauncher:
    """Launcher of the ranks on this machine, used for all attempts of a job."""

    def __init__(self, job: JobDir, command: Iterable[str]):
        """Create the launcher.

        `command` contains the Python arguments that start a rank; the run directory is appended.
        """
        self._job = job
        self._command = [*command, str(job.run.path)]
        self._ranks = RanksHere(job.job_id, job.supervisor_log)
        self._attempt = 0
        self._notice: PreemptionNotice | None = None
        self.end_message = ""

    def launch(self, config: RunConfig, attempt: int) -> None:
        """Start one wrapper for each rank."""
        self._attempt, self.end_message = attempt, ""
        if self._notice is None:
            self._notice = notice_of(config)
        world_size = config.world_size
        ranks = NodeRanks(world_size, 0, world_size, 0, LOOPBACK, port_to_listen_on())
        cores = int(os.environ.get(HELD_CORES) or usable_cores())
        environment = rank_variables(config, self._job, attempt, cores)
        seconds = stop_patience_seconds(self._job.run, config)
        self._ranks.start(self._command, ranks, seconds, environment)

    def poll(self) -> int | None:
        """Return the launcher's exit code; None while it runs."""
        return self._ranks.poll()

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """Send a signal to all ranks through their wrappers, or only to the processes in `only`."""
        if only is not None:
            send_to(only, number)
        else:
            self._ranks.signal(number)

    def kill(self) -> None:
        """Kill the ranks first, then their wrappers."""
        self._ranks.kill()

    def processes_left(self) -> bool:
        """Return whether any process with the job's marker is left."""
        return self._ranks.processes_left()

    def finish(self) -> bool:
        """Wait for the last process, and kill it if it does not exit; return whether a process was killed."""
        return self._ranks.finish()

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the rank's heartbeat from the run directory; None if an earlier attempt wrote it."""
        beat = Heartbeat.read(self._job.heartbeat(rank))
        return beat if beat and beat.attempt == self._attempt else None

    def exit_record(self, rank: int) -> ExitRecord | None:
        """Return the rank's exit record from the run directory; None if there is no record yet."""
        return ExitRecord.read(self._job.exit_record(rank, self._attempt))

    def memory(self) -> HostMemory:
        """Return this machine's memory counters since the launch."""
        return self._ranks.memory()

    def devices(self, config: RunConfig) -> list[int] | None:
        """Return the number of GPUs that the ranks see; None on CPU, where devices are not counted."""
        return [len(gpus_of_ranks(config))] if config.resources.device == "gpu" else None

    def trouble(self) -> str:
        """Return "", because the end of a local process is detected at once."""
        return ""

    def preemption(self, signalled: bool = False) -> str:
        """Return this machine's preemption notice; "" if there is no notice."""
        return self._notice.poll() if self._notice else ""

    def preemption_trouble(self) -> str:
        """Return why the program in backend.preemption_notice could not be used; "" if it could."""
        return self._notice.trouble if self._notice else ""

    def give_back(self) -> None:
        """Do nothing, because no other job can start on this machine while it is being preempted."""

    def missing(self) -> str:
        """Return "", because this machine cannot be missing."""
        return ""

    def abandon(self) -> None:
        """Kill only the processes that this supervisor started.

        The ranks of its successor have the same marker, so the marker cannot be used here.
        """
        self._ranks.abandon()

    def close(self) -> None:
        """End the program in backend.preemption_notice, the only process that may be left."""
        if self._notice is not None:
            self._notice.close()


class LocalBackend(SupervisedHere):
    """Backend that runs jobs as processes on this machine."""

    def make_ready(self, config: RunConfig) -> None:
        """Create the folder of this machine's queue, if the run uses the queue."""
        if not config.backend.share_devices:
            Queue().make()

    def warnings(self, config: RunConfig, machine: Machine) -> list[str]:
        """Return warnings about missing cores and memory, unused threads, and GPUs used by other programs."""
        return warnings_here(config, Queue(), machine)

    def findings(self, config: RunConfig) -> Iterator[Finding]:
        """Check that the queue can provide the run's devices; jobs/checks/preflight.py checks the rest."""
        if config.backend.share_devices:
            return
        try:
            lacking = too_few(config, Queue())
        except JobError as error:
            yield mistake(config, "", str(error))
            return
        if lacking:
            fix = "Add GPUs to the list `gpus` in that file, or choose a smaller layout."
            yield shortage(config, "", lacking, fix)

    def end_ranks(self, job: JobDir, grace_seconds: float) -> None:
        """End the ranks, which are found by the job's marker."""
        processes.send(processes.marked_pids([job.job_id]), signal.SIGTERM)
        processes.end_marked([job.job_id], Patience(job.heartbeats(), grace_seconds).over)

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """Return a launcher that starts the ranks on this machine."""
        return LocalLauncher(job, command)


BACKEND = LocalBackend()
