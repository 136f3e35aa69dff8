"""Records that a job's supervisor and its node agents exchange: agents, launch orders, signals and exits.

    agent of node k  -> supervisor    nodes/<k>.json            NodeRecord, renewed once a second
    supervisor       -> all agents    control/launch.json       LaunchOrder: the ranks of one attempt
    supervisor       -> all agents    control/signals.json      SignalOrders: what to send to ranks
    agent of node k  -> supervisor    nodes/<k>.<attempt>.json  NodeExit: how its ranks ended
    any process      -> supervisor    control/ask.json          Ask: a request to a supervisor elsewhere
    any process      -> readers       engine.json               EngineWord: the scheduler's last response

The records are on a shared disk, so that machines need no other connection before the ranks connect.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbtrain.base.run_directory.records import ProcessIdentity, Record, RenewedRecord


@dataclass
class NodeRecord(RenewedRecord):
    """nodes/<k>.json, renewed every second: presence and activity of the agent of a machine or pod."""

    node: int
    agent: ProcessIdentity
    host: str
    address: str
    """Address at which other machines reach this machine; the loopback address if it has no other."""
    port: int
    """TCP port that was free when the record was written, for the rendezvous if this is node 0."""
    time: float
    """Seconds since the epoch by this machine's clock."""
    phase: str = "waiting"
    """Phase of the agent. waiting: it waits for a launch order; running: its ranks exist; leaving: it is
    about to exit.
    """
    attempt: int | None = None
    """Newest attempt that the agent has started or refused."""
    signals_done: int = 0
    """Number of the last signal order that the agent has carried out."""
    cores: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    python: str = ""
    version: str = ""
    """Version of nbtrain."""
    interface: str = ""
    """Network interface that has `address`."""
    notice: str = ""
    """Notice from backend.preemption_notice that this machine is about to be taken away; "" without a
    notice.
    """
    notice_trouble: str = ""
    """Reason why the command of backend.preemption_notice could not be run; "" if it could."""


@dataclass
class NodeExit(Record):
    """nodes/<k>.<attempt>.json: the end of an attempt on one machine, written when its last process is
    gone.
    """

    node: int
    attempt: int
    time: float
    exit_code: int | None
    """Exit code of the launcher of the ranks, or the negative signal number if a signal killed the launcher.
    None if the launcher never started.
    """
    message: str = ""
    """Reason why the attempt was not started, or why the agent ended it."""
    killed_processes: bool = False
    """Whether the agent had to kill the remaining processes."""
    oom_kills: int | None = None
    machine_oom_kills: int | None = None
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    oom_killed_pids: list[int] = field(default_factory=list)
    """Processes that were killed for lack of memory, according to the kernel's log."""


@dataclass
class LaunchOrder(Record):
    """control/launch.json: the order to launch the ranks of one attempt, the same for all nodes."""

    attempt: int
    agents: list[ProcessIdentity]
    """Agents by node. An agent that is not listed belongs to an earlier allocation and must exit."""
    ranks: list[int]
    """Number of ranks that each node starts; ranks are numbered node by node."""
    address: str
    port: int
    command: list[str]
    """Command of a rank, as arguments for the Python interpreter."""
    environment: dict[str, str]
    """Environment variables to add to the environment of every rank."""
    cpus_per_node: int | None
    shutdown_timeout_seconds: float
    """Seconds that ranks have to save and exit, including the measured duration of a save."""
    same_machine: bool
    """Whether all agents are on one machine, so that the ranks connect through the loopback interface."""
    network_interface: str | None = None
    supervisor: ProcessIdentity | None = None
    """Supervisor that gave the order. If job.json names another supervisor, the ranks of this order must
    end.
    """


def node_of_rank(ranks: Sequence[int], rank: int) -> int | None:
    """Return the node that starts a rank, from the number of ranks on each node.

    None if no node starts it.
    """
    last = itertools.accumulate(ranks)
    return next((node for node, end in enumerate(last) if rank < end), None)


@dataclass
class SignalOrder(Record):
    """One signal to ranks. KILL ends every process of the attempt, the ranks before their wrappers."""

    number: int
    """Number that increases by one with each order of a job."""
    attempt: int
    signal: int
    processes: list[ProcessIdentity] | None = None
    """Processes to signal. None means to signal every rank, through its wrapper."""


@dataclass
class SignalOrders(Record):
    """control/signals.json: the newest orders, oldest first."""

    orders: list[SignalOrder] = field(default_factory=list)


STOPS = ("stop", "stop_now")


@dataclass
class Ask(Record):
    """control/ask.json: a request to a supervisor that no signal reaches, because it is on another host."""

    number: int
    """Number that increases by one with each request."""
    action: str
    """Requested action. stop: save and exit; stop_now: exit at once; save: save and continue."""
    time: float
    reason: str = ""

    @classmethod
    def put(cls, path: Path, action: str) -> None:
        """Write the next request. The file holds a single request.

        A request to stop ends the job, so it is replaced only by stop_now.
        """
        before = cls.read(path)
        if before and before.action in STOPS and action != "stop_now":
            return
        cls((before.number if before else 0) + 1, action, time.time()).write(path)


@dataclass
class EngineWord(RenewedRecord):
    """Contents of engine.json: the last response about the job from its scheduler.

    The scheduler is Slurm, Kubernetes or a host.
    """

    state: str | None
    """State of the job, as in jobstate.py; None if the scheduler does not know the job."""
    reason: str
    """Reason for the state, worded for readers; "" if there is no reason."""
    asked_at: float
    seen: bool = True
    """Whether the scheduler answered the last request; if not, state and reason are from an earlier one."""
    trouble: str = ""
    """Reason why the scheduler did not answer."""
    engine: str = ""
    """Scheduler and its name for the job, such as "Slurm job 4711"."""
    ended_as: str = ""
    """Scheduler's own state of a failed job, such as TIMEOUT; "" if it has no such state."""
