"""The seam for engines: what starts and reaches the ranks of an attempt."""

from collections.abc import Iterable
from typing import Protocol

from nbtrain.base.records import ExitRecord, Heartbeat, ProcessIdentity
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.supervisor.host_memory import HostMemory


class Launcher(Protocol):
    """How the ranks of a job are started and reached, one attempt after the other. A wrapper stands above each rank.

    The supervisor's attempt (jobs/supervisor/attempt.py) decides what to do and when; a launcher knows how.
    """

    def launch(self, config: RunConfig, attempt: int) -> None:
        """Start the ranks of an attempt. If this process dies, they save and leave."""

    def poll(self) -> int | None:
        """The launcher's exit code, minus the signal if one killed it; None while it runs."""

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """Send a signal to every rank, through its wrapper, or to these ranks alone."""

    def kill(self) -> None:
        """Kill the ranks, give their wrappers time to write down how they ended, then kill what is left."""

    def processes_left(self) -> bool:
        """Whether any process of the job is left, the launcher's own aside."""

    def finish(self) -> bool:
        """Wait for the last process; returns whether one had to be killed."""

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """The rank's newest heartbeat of this attempt."""

    def exit_record(self, rank: int) -> ExitRecord | None:
        """How the rank ended; None until its wrapper has written it."""

    def memory(self) -> HostMemory:
        """What the kernel counted since the launch."""

    def devices(self, config: RunConfig) -> int | None:
        """How many devices are usable now; None if they are not counted (on CPU)."""
