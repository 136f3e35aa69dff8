"""The ranks of one attempt on this machine: torchrun, a wrapper per rank, their signals and their end.

    torchrun (own session, without its own restarts)
      rank_wrapper r .. r+n-1 -> exit/<rank>.<attempt>.json
        rank r .. r+n-1       -> heartbeat/<rank>.json

Ranks are killed before their wrappers, so that the wrappers still write down how they ended.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from nbtrain.base.run_directory.records import ProcessIdentity
from nbtrain.jobs.attempt.phases import cap_seconds
from nbtrain.jobs.attempt.rank_wrapper import EXIT_FD
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.host_memory import HostMemory

WRAPPER_GRACE_SECONDS = 3.0
LOOK_SECONDS = 0.05
# A process that SIGKILL does not end in this time waits for a disk that may never answer.
ABANDON_SECONDS = 10.0


class RanksHere:
    """torchrun and the processes it started; reused for each attempt of a job."""

    def __init__(self, job_id: str, log: Path, node: int | None = None):
        """Create the object. `log` receives torchrun's output; `node` distinguishes agents that share a
        machine.
        """
        self._job_id = job_id
        self._log = log
        self._also = [] if node is None else [f"{processes.NODE_MARKER}={node}"]
        self._torchrun: subprocess.Popen | None = None

    def start(
        self,
        command: Sequence[str],
        rendezvous: Sequence[str],
        ranks: int,
        shutdown_timeout_seconds: float,
        environment: dict[str, str],
    ) -> None:
        """Start torchrun with a wrapper for each of `ranks` ranks.

        `command` holds the arguments of Python that a rank runs with. `rendezvous` holds torchrun's arguments
        for where the nodes meet.
        """
        arguments = [
            *(sys.executable, "-m", "torch.distributed.run", *rendezvous),
            *("--nproc-per-node", str(ranks), "--max-restarts", "0"),
            # torchrun counts whole seconds; its limit is a little longer than ours, so that the supervisor
            # decides.
            *("--shutdown-timeout", str(int(cap_seconds(shutdown_timeout_seconds)) + 10)),
            *("--no-python", sys.executable, "-m", "nbtrain.jobs.attempt.rank_wrapper"),
            *(sys.executable, *command),
        ]
        self._memory_before = HostMemory.now()
        variables = {**os.environ, **environment}
        self._torchrun = processes.start(arguments, self._log, signal.SIGTERM, env=variables)

    def poll(self) -> int | None:
        """Return torchrun's exit code, and reap orphans."""
        assert self._torchrun is not None, "no attempt was started"
        code = self._torchrun.poll()
        processes.reap_orphans()
        return code

    def signal(self, number: int) -> None:
        """Signal all ranks through their wrappers, never through torchrun while it has children."""
        # If torchrun is gone, its death has signalled them, and its pid may belong to another process.
        if self._torchrun is not None and self._torchrun.poll() is None:
            processes.send(processes.children(self._torchrun.pid) or [self._torchrun.pid], number)

    def kill(self) -> None:
        """Kill the ranks first; a wrapper has WRAPPER_GRACE_SECONDS to write its record."""
        assert self._torchrun is not None, "no attempt was started"
        processes.send(self._marked(EXIT_FD), signal.SIGKILL)
        # Looks are counted, not seconds: on a machine that was suspended, the wrappers have not run either.
        for _ in range(round(WRAPPER_GRACE_SECONDS / LOOK_SECONDS)):
            # Without torchrun the wrappers are orphans, and so are all other processes left of the job.
            running = self._torchrun.poll() is None
            if not (processes.children(self._torchrun.pid) if running else self.processes_left()):
                break
            processes.reap_orphans()
            time.sleep(LOOK_SECONDS)
        processes.end_marked([self._job_id], 0.0, also=self._also)

    def abandon(self) -> None:
        """Kill the ranks and leave no record of it: the wrappers go first, and their ranks with them.

        Returns once the ranks are gone, after ABANDON_SECONDS at the latest: the supervisor that now has the
        job must not start ranks while these still run.
        """
        if self._torchrun is None or self._torchrun.poll() is not None:
            return
        wrappers = processes.children(self._torchrun.pid)
        ranks = [ProcessIdentity.of(rank) for wrapper in wrappers for rank in processes.children(wrapper)]
        processes.send(wrappers, signal.SIGKILL)
        self._torchrun.kill()
        self._torchrun.wait()
        deadline = time.monotonic() + ABANDON_SECONDS
        while any(rank and rank.alive() for rank in ranks) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def processes_left(self) -> bool:
        """Return whether any process carries the marker of these ranks."""
        return bool(self._marked())

    def finish(self) -> bool:
        """Wait WRAPPER_GRACE_SECONDS for the last process, then kill it; return True if a process was
        killed.
        """
        killed = processes.end_marked([self._job_id], WRAPPER_GRACE_SECONDS, also=self._also)
        if self._torchrun is not None:
            self._torchrun.wait()
        return bool(killed)

    def memory(self) -> HostMemory:
        """Return this machine's memory counters since the start."""
        return HostMemory.now().since(self._memory_before)

    def _marked(self, *also: str) -> list[int]:
        return processes.marked_pids([self._job_id], *self._also, *also)


def send_to(identities: Iterable[ProcessIdentity], number: int) -> None:
    """Send a signal to those processes of this machine whose identity still matches."""
    processes.send([identity.pid for identity in identities if identity.alive()], number)
