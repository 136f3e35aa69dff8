"""An attempt's ranks on this machine: their launcher, a wrapper for each rank, their signals and their end.

    rank_launcher (own session)
      rank_wrapper r .. r+n-1 -> exit/<rank>.<attempt>.json
        rank r .. r+n-1       -> heartbeat/<rank>.json

Ranks are killed before their wrappers, so that the wrappers can still record how the ranks ended.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.run_directory.records import ProcessIdentity
from nbtrain.jobs.attempt.phases import cap_seconds
from nbtrain.jobs.attempt.rank_wrapper import EXIT_FD
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.host_memory import HostMemory

WRAPPER_GRACE_SECONDS = 3.0
POLL_SECONDS = 0.05
# Seconds to wait for a killed process to exit. A process that takes longer is blocked by a disk that may
# never respond.
ABANDON_SECONDS = 10.0


@dataclass(frozen=True)
class NodeRanks:
    """The part of a job's ranks that runs on one machine."""

    count: int
    first_rank: int
    world_size: int
    node: int
    master_address: str
    """Address of node 0, at which rank 0 listens."""
    master_port: int

    def variables(self) -> dict[str, str]:
        """Return the environment variables of all ranks on this machine, with torchrun's names."""
        return {
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.count),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


class RanksHere:
    """The launcher of the ranks and the processes it has started, used for all attempts of a job."""

    def __init__(self, job_id: str, log: Path, node: int | None = None):
        """Prepare to start ranks.

        The launcher's output is appended to `log`. `node` distinguishes agents that share a machine.
        """
        self._job_id = job_id
        self._log = log
        self._also = [] if node is None else [f"{processes.NODE_MARKER}={node}"]
        self._launcher: subprocess.Popen | None = None

    def start(
        self,
        command: Sequence[str],
        ranks: NodeRanks,
        shutdown_timeout_seconds: float,
        environment: dict[str, str],
    ) -> None:
        """Start the launcher with a wrapper for each rank.

        `command` contains the Python arguments that start a rank.
        """
        arguments = [
            *(sys.executable, "-m", "nbtrain.jobs.node.rank_launcher"),
            *("--ranks", str(ranks.count), "--first-rank", str(ranks.first_rank)),
            # The limit is a little longer than the supervisor's, so that the supervisor decides.
            *("--shutdown-timeout", str(cap_seconds(shutdown_timeout_seconds) + 10.0)),
            *(sys.executable, "-m", "nbtrain.jobs.attempt.rank_wrapper"),
            *(sys.executable, *command),
        ]
        self._memory_before = HostMemory.now()
        # As with torchrun, a collective that NCCL aborts ends the rank.
        errors = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        variables = {**errors, **os.environ, **environment, **ranks.variables()}
        self._launcher = processes.start(arguments, self._log, signal.SIGTERM, env=variables)

    def poll(self) -> int | None:
        """Reap orphans, and return the launcher's exit code; None while it runs."""
        assert self._launcher is not None, "no attempt was started"
        code = self._launcher.poll()
        processes.reap_orphans()
        return code

    def signal(self, number: int) -> None:
        """Signal all ranks through their wrappers; the launcher is signalled only if it has no children."""
        # If the launcher is gone, its death has signalled the ranks, and its pid may belong to another
        # process.
        if self._launcher is not None and self._launcher.poll() is None:
            processes.send(processes.children(self._launcher.pid) or [self._launcher.pid], number)

    def kill(self) -> None:
        """Kill the ranks, then all other processes; wrappers have WRAPPER_GRACE_SECONDS to write records."""
        assert self._launcher is not None, "no attempt was started"
        processes.send(self._marked(EXIT_FD), signal.SIGKILL)
        # Polls are counted, not seconds: while a machine is suspended, the wrappers do not run either.
        for _ in range(round(WRAPPER_GRACE_SECONDS / POLL_SECONDS)):
            # Without the launcher, the wrappers and all other remaining processes of the job are orphans.
            running = self._launcher.poll() is None
            if not (processes.children(self._launcher.pid) if running else self.processes_left()):
                break
            processes.reap_orphans()
            time.sleep(POLL_SECONDS)
        processes.end_marked([self._job_id], 0.0, also=self._also)

    def abandon(self) -> None:
        """Kill the ranks without leaving a record, by killing their wrappers first.

        Returns once the ranks are gone, after ABANDON_SECONDS at the latest, because the supervisor that now
        owns the job must not start ranks while these are still running.
        """
        if self._launcher is None or self._launcher.poll() is not None:
            return
        wrappers = processes.children(self._launcher.pid)
        ranks = [ProcessIdentity.of(rank) for wrapper in wrappers for rank in processes.children(wrapper)]
        processes.send(wrappers, signal.SIGKILL)
        self._launcher.kill()
        self._launcher.wait()
        deadline = time.monotonic() + ABANDON_SECONDS
        while any(rank and rank.alive() for rank in ranks) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def processes_left(self) -> bool:
        """Return whether any process with the marker of these ranks is left."""
        return bool(self._marked())

    def finish(self) -> bool:
        """Wait WRAPPER_GRACE_SECONDS for the remaining processes, then kill them.

        Returns whether a process was killed.
        """
        killed = processes.end_marked([self._job_id], WRAPPER_GRACE_SECONDS, also=self._also)
        if self._launcher is not None:
            self._launcher.wait()
        return bool(killed)

    def memory(self) -> HostMemory:
        """Return this machine's memory counters, counted from the start of the current attempt."""
        return HostMemory.now().since(self._memory_before)

    def _marked(self, *also: str) -> list[int]:
        return processes.marked_pids([self._job_id], *self._also, *also)


def send_to(identities: Iterable[ProcessIdentity], number: int) -> None:
    """Send a signal to the processes that are on this machine and still alive."""
    processes.send([identity.pid for identity in identities if identity.alive()], number)
