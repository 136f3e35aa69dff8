"""Run ranks on several machines, through a node agent on each machine.

The supervisor and the agents communicate through files in the run directory:

    supervisor --launch.json, signals.json--> agents (jobs/node/agent.py) --nodes/, exit/, heartbeat/-->

Each backend starts the agents in its own way (ssh, srun, or a pod's command), in start_agents(). This module
never compares the clocks of two machines: a record counts as new when its contents change, and the times in
exit records are converted to the supervisor's clock.
"""

import math
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from nbtrain.base.run_directory.node_records import (
    LaunchOrder,
    NodeExit,
    NodeRecord,
    SignalOrder,
    SignalOrders,
    node_of_rank,
)
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import network_interface
from nbtrain.jobs.attempt.phases import stop_patience_seconds
from nbtrain.jobs.attempt.ranks import PAUSE_SECONDS
from nbtrain.jobs.machine.environment import common_variables
from nbtrain.jobs.machine.host_memory import HostMemory

# Age up to which an agent's record shows that the agent is alive. The agent renews the record every second,
# but a shared disk may delay that.
FRESH_SECONDS = 20.0
# Seconds from the order to kill a rank until its wrapper's record is visible on a shared disk.
KILL_SECONDS = 8.0
# Seconds to wait for a failed rank's record. It is written before the node's launcher ends, but a shared disk
# may show it later.
RANKS_WORD_SECONDS = 10.0
FINISH_SECONDS = 10.0
POLL_SECONDS = 0.1
# Number of signal orders to keep, enough for any restart; older orders have been carried out.
KEPT_ORDERS = 20


class Agents(Protocol):
    """The process that started the agents on all nodes."""

    end_message: str
    """Why the process ended; "" if that is not known."""

    def poll(self) -> int | None:
        """Return the exit code of the process; None while it runs."""

    def end(self) -> None:
        """End the remaining agents and the processes that they started."""


@dataclass
class NodeWatch:
    """The last report of an agent, with times by the supervisor's clocks."""

    record: NodeRecord
    heard_at: float
    """Monotonic time at which the agent's record last changed."""
    ahead_at_least: float
    """Lower bound for the seconds by which the agent's wall clock is ahead of the supervisor's.

    It follows from the fact that a record is written before the supervisor reads it.
    """
    ahead_at_most: float = math.inf
    """Upper bound for the seconds by which the agent's wall clock is ahead of the supervisor's.

    It follows from the fact that an order is given before an agent reads it.
    """

    @property
    def clock_ahead_seconds(self) -> float:
        """Seconds by which the agent's wall clock is ahead: the value nearest to 0 that both bounds allow.

        It is 0 if disk delays can explain the difference, and negative if the agent's clock is behind.
        """
        return max(self.ahead_at_least, min(0.0, self.ahead_at_most))


class RemoteLauncher:
    """Launcher that runs the ranks on every node through the agents. Each backend provides start_agents()."""

    def __init__(self, job: JobDir, command: Iterable[str]):
        """Create the launcher.

        `command` contains the Python arguments that start a rank; the run directory is appended.
        """
        self._job = job
        self._command = [*command, str(job.run.path)]
        self._attempt = 0
        self._launched_at = 0.0
        self._ordered_at = 0.0
        self._agents: Agents | None = None
        self._watches: dict[int, NodeWatch] = {}
        # Records that existed before the agents were started. A record left by an earlier allocation looks
        # like a new one, except that it never changes.
        self._first_seen: dict[int, NodeRecord] = {}
        self._order: LaunchOrder | None = None
        self._signals: list[SignalOrder] = []
        self._ended: int | None = None
        self._looked_at: float | None = None
        # Time at which a node's launcher was first seen to have failed.
        self._failed_at: dict[int, float] = {}
        self.end_message = ""
        """Why the attempt ended, in case no rank reports a reason."""

    def start_agents(self, config: RunConfig) -> Agents:
        """Start an agent on each of resources.nodes machines. Raises JobError."""
        raise NotImplementedError

    def launch(self, config: RunConfig, attempt: int) -> None:
        """Start the agents, unless all of them report already.

        Once all have reported, poll() starts the ranks.
        """
        self._config, self._attempt, self._order, self._ended = config, attempt, None, None
        self._failed_at = {}
        self.end_message = ""
        # The supervisor does not poll between two attempts, so a long pause there does not mean that the
        # machine was suspended.
        self._looked_at = None
        self._look_at_nodes()
        if self._agents is None or self._agents.poll() is not None or not self._all_fresh():
            if self._agents is not None:
                self._agents.end()
            self._watches, self._first_seen = {}, {record.node: record for record in self._known_agents()}
            self._agents = self.start_agents(config)
        self._launched_at = time.monotonic()

    def poll(self) -> int | None:
        """Return 0, or the largest exit code of all nodes, once the attempt has ended; None while it runs."""
        if self._ended is None:
            self._look_at_nodes()
            self._ended = self._after_order() if self._order else self._before_order()
        return self._ended

    def signal(self, number: int, only: Iterable[ProcessIdentity] | None = None) -> None:
        """Signal the ranks through an order that each agent carries out when it next reads its orders."""
        if self._order is None:
            return
        following = self._signals[-1].number + 1 if self._signals else self._first_signal()
        wanted = None if only is None else list(only)
        self._signals = [
            *self._signals[-KEPT_ORDERS:],
            SignalOrder(following, self._attempt, int(number), wanted),
        ]
        SignalOrders(self._signals).write(self._job.control_signals)

    def kill(self) -> None:
        """Make the agents kill their ranks.

        Agents that do not respond are ended by the process that started them.
        """
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline and self.poll() is None:
            time.sleep(POLL_SECONDS)
        if self.poll() is None:
            self._end_agents(self._unanswered())

    def processes_left(self) -> bool:
        """Return whether processes of the attempt may be left on a node.

        That is so if a node is not lost and has not reported that its last process has ended.
        """
        self._look_at_nodes()
        return self._order is not None and any(
            self._exit_of(node) is None and not self._lost(node) for node in range(len(self._order.agents))
        )

    def finish(self) -> bool:
        """Wait for every node's final report; return whether a process was killed.

        Agents that do not send a report are ended.
        """
        deadline = time.monotonic() + FINISH_SECONDS
        while self.processes_left() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if left := self.processes_left():
            self._end_agents("the agents did not report that their ranks have ended")
        ends = (self._exit_of(node) for node in range(self._config.resources.nodes))
        return left or any(end.killed_processes for end in ends if end)

    def close(self) -> None:
        """End the agents, once the job has ended."""
        if self._agents is not None and self._agents.poll() is None:
            # Agents read the job's end in job.json and exit by themselves; this ends agents that cannot.
            deadline = time.monotonic() + FINISH_SECONDS
            while self._agents.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            self._agents.end()

    def abandon(self) -> None:
        """End the agents as close() does.

        Agents read in job.json that another supervisor owns the job, and kill their ranks themselves.
        """
        self.close()

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the rank's heartbeat from the run directory; None if an earlier attempt wrote it."""
        beat = Heartbeat.read(self._job.heartbeat(rank))
        return beat if beat and beat.attempt == self._attempt else None

    def exit_record(self, rank: int) -> ExitRecord | None:
        """Return the rank's exit record, with its time converted to the supervisor's clock.

        Returns None if there is no record yet.
        """
        record = ExitRecord.read(self._job.exit_record(rank, self._attempt))
        watch = self._watches.get(self._node_of(rank))
        if record is None or watch is None:
            return record
        return replace(record, time=record.time - watch.clock_ahead_seconds)

    def memory(self) -> HostMemory:
        """Return the memory counters of all nodes.

        Kills are added up over the nodes; limit and peak come from the node with the highest peak.
        """
        ends = [one for node in range(self._config.resources.nodes) if (one := self._exit_of(node))]
        fullest = max(ends, key=lambda end: end.peak_bytes or 0, default=None)
        # Process ids repeat across machines: only a rank's own machine can have killed it.
        killed = {
            (end.node, beat.process.pid)
            for rank in range(self._config.world_size)
            if (beat := self.heartbeat(rank))
            for end in ends
            if end.node == self._node_of(rank) and beat.process.pid in end.oom_killed_pids
        }
        return HostMemory(
            _added(end.oom_kills for end in ends),
            _added(end.machine_oom_kills for end in ends),
            fullest.limit_bytes if fullest else None,
            fullest.peak_bytes if fullest else None,
            frozenset(killed),
        )

    def devices(self, config: RunConfig) -> list[int] | None:
        """Return the number of GPUs on each node, with 0 for a node that does not report; None on CPU."""
        if config.resources.device != "gpu":
            return None
        self._look_at_nodes()
        return [
            0 if self._lost(node) else self._watches[node].record.gpus
            for node in range(config.resources.nodes)
        ]

    def preemption(self, signalled: bool = False) -> str:
        """Return the preemption notice of a machine, or the scheduler's record; "" if there is neither.

        The scheduler's record is requested only if machines were told to exit or `signalled` is True.
        """
        self._look_at_nodes()
        there = {node: watch.record for node, watch in sorted(self._watches.items()) if not self._lost(node)}
        notices = [f"{record.host}: {record.notice}" for record in there.values() if record.notice]
        if notices:
            return notices[0]
        leaving = [node for node, record in there.items() if record.phase == "leaving"]
        return self.scheduler_preemption(leaving) if leaving or signalled else ""

    def scheduler_preemption(self, leaving: list[int]) -> str:
        """Return text about a preemption of these machines or the job; "" if the scheduler reports none."""
        return ""

    def preemption_trouble(self) -> str:
        """Return why a machine's preemption notice could not be read; "" if all could."""
        records = [watch.record for _, watch in sorted(self._watches.items())]
        troubles = [f"{record.host}: {record.notice_trouble}" for record in records if record.notice_trouble]
        return troubles[0] if troubles else ""

    def give_back(self) -> None:
        """Do nothing; the scheduler takes the devices itself."""

    def missing(self) -> str:
        """Return the nodes whose agents are silent or exiting, such as "nodes 1, 3"; "" if there are none."""
        self._look_at_nodes()
        nodes = range(self._config.resources.nodes)
        gone = [str(node) for node in nodes if not self._fresh(node)]
        return f"node{'s' if len(gone) > 1 else ''} {', '.join(gone)}" if gone else ""

    def _before_order(self) -> int | None:
        """Give the launch order once every agent has reported.

        Returns an exit code if agents are missing for too long; otherwise None.
        """
        nodes = self._config.resources.nodes
        fresh = [node for node in range(nodes) if node in self._watches]
        if len(fresh) == nodes:
            return self._give_order()
        assert self._agents is not None, "launch() comes first"
        if (code := self._agents.poll()) is not None:
            ended = f"the process that starts the agents exited with code {code}"
            self.end_message = self._missing(fresh, f": {self._agents.end_message or ended}")
            return code or 1
        limit = self._config.backend.start_timeout_seconds
        if time.monotonic() - self._launched_at > limit:
            self.end_message = self._missing(
                fresh, f" within {limit:g} s (backend.start_timeout_seconds = {limit:g})"
            )
            self._agents.end()
            return 1
        return None

    def _missing(self, fresh: list[int], why: str) -> str:
        nodes = self._config.resources.nodes
        missing = [str(node) for node in range(nodes) if node not in fresh]
        named = f"node{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        logs = "see logs/node<k>.log and logs/supervisor.log"
        return f"{len(missing)} of {amounts.counted(nodes, 'agent')} ({named}) did not report{why}; {logs}"

    def _give_order(self) -> int | None:
        records = [self._watches[node].record for node in range(self._config.resources.nodes)]
        machines = {(record.host, record.agent.boot_id) for record in records}
        loopback = sorted({record.host for record in records if record.address.startswith("127.")})
        if len(machines) > 1 and loopback:
            kind = self._config.backend.kind
            section = getattr(self._config.backend, kind, None)
            fix = (
                f"Set backend.{kind}.network_interface to an interface that all machines have"
                if hasattr(section, "network_interface")
                else "Check the network of these machines"
            )
            has = "have only loopback addresses" if len(loopback) > 1 else "has only a loopback address"
            self.end_message = f"{', '.join(loopback)} {has}, which no other machine can reach. {fix}"
            return 1
        self._order = LaunchOrder(
            attempt=self._attempt,
            agents=[record.agent for record in records],
            ranks=self._config.ranks_by_node,
            address=records[0].address,
            port=records[0].port,
            command=self._command,
            environment=common_variables(self._config, self._job, self._attempt),
            cpus_per_node=self._config.resources.cpus_per_node,
            shutdown_timeout_seconds=stop_patience_seconds(self._job.run, self._config),
            same_machine=len(machines) == 1,
            network_interface=network_interface(self._config),
            supervisor=ProcessIdentity.of(os.getpid()),
        )
        self._ordered_at = time.time()
        self._order.write(self._job.control_launch)
        return None

    def _node_of(self, rank: int) -> int:
        node = node_of_rank(self._config.ranks_by_node, rank)
        assert node is not None, f"rank {rank} of {self._config.world_size}"
        return node

    def _after_order(self) -> int | None:
        assert self._order is not None
        nodes = range(len(self._order.agents))
        ends = {node: one for node in nodes if (one := self._exit_of(node))}
        if all(node in ends or self._lost(node) for node in nodes):
            words = [end.message for end in ends.values() if end.message]
            self.end_message = "; ".join([*words, *self._gone([node for node in nodes if node not in ends])])
            codes = [end.exit_code for end in ends.values()]
            without_word = len(ends) < len(nodes) or None in codes
            return max((abs(code) for code in codes if code), default=int(without_word))
        return None

    def trouble(self) -> str:
        """Return why the attempt cannot continue although some ranks are running; "" if it can."""
        if self._order is None or self._ended is not None:
            return ""
        nodes = range(len(self._order.agents))
        ends = {node: one for node in nodes if (one := self._exit_of(node))}
        # The ranks' rendezvous would wait forever for a node that refused to start.
        if refused := [end.message for end in ends.values() if end.exit_code is None]:
            return "; ".join(refused)
        if gone := self._gone([node for node in nodes if node not in ends and self._lost(node)]):
            return gone[0]
        # If a node's launcher failed, none of its ranks can report that, and the other nodes wait for it in
        # the rendezvous.
        now = time.monotonic()
        for node, one in ends.items():
            since = self._failed_at.setdefault(node, now) if one.exit_code else now
            if now - since > RANKS_WORD_SECONDS:
                return (
                    f"the launcher on node {self._hosts_of([node])} exited with code {one.exit_code}, and "
                    f"the other nodes are waiting for its ranks; see logs/node{node}.log"
                )
        assert self._agents is not None
        if (code := self._agents.poll()) is not None and not self._reporting(ends):
            return (
                f"the process that started the agents exited with code {code}, and the agents have stopped "
                "reporting; see logs/supervisor.log"
            )
        return ""

    def _gone(self, lost: list[int]) -> list[str]:
        """Return a list with one sentence about the lost nodes; [] if no node is lost."""
        if not lost:
            return []
        silent = min(time.monotonic() - self._watches[node].heard_at for node in lost)
        limit = self._config.backend.node_timeout_seconds
        return [f"{self._silent_words(lost, silent)} (limit: backend.node_timeout_seconds = {limit:g})"]

    def _unanswered(self) -> str:
        """Return text about the nodes that did not respond to the order to end their ranks.

        Nodes that are also silent are reported as gone.
        """
        waiting = [node for node, watch in sorted(self._watches.items()) if self._exit_of(node) is None]
        heard = {node: time.monotonic() - self._watches[node].heard_at for node in waiting}
        if not (silent := [node for node in waiting if heard[node] > KILL_SECONDS]):
            named, its = ("nodes", "their") if len(waiting) > 1 else ("node", "its")
            return f"{named} {self._hosts_of(waiting)} did not respond to the order to end {its} ranks"
        words = self._silent_words(silent, min(heard[node] for node in silent))
        return f"{words}, not even after the order to end the ranks"

    def _silent_words(self, nodes: list[int], seconds: float) -> str:
        """Return a message that these nodes are gone because their agents have not reported for `seconds`."""
        if len(nodes) == 1:
            return f"node {self._hosts_of(nodes)} is gone: its agent has not reported for {seconds:.0f} s"
        return (
            f"nodes {self._hosts_of(nodes)} are gone: their agents have not reported for at least "
            f"{seconds:.0f} s"
        )

    def _hosts_of(self, nodes: Iterable[int]) -> str:
        return ", ".join(self._watches[node].record.host for node in nodes)

    def _reporting(self, ends: dict[int, NodeExit]) -> bool:
        """Return whether an agent without a final report still renews its record.

        An agent can outlive the process that started it.
        """
        now = time.monotonic()
        return any(
            now - watch.heard_at < FRESH_SECONDS for node, watch in self._watches.items() if node not in ends
        )

    def _lost(self, node: int) -> bool:
        watch = self._watches.get(node)
        limit = self._config.backend.node_timeout_seconds
        return watch is None or time.monotonic() - watch.heard_at > limit

    def _exit_of(self, node: int) -> NodeExit | None:
        return NodeExit.read(self._job.node_exit(node, self._attempt))

    def _all_fresh(self) -> bool:
        return len(self._watches) == self._config.resources.nodes and all(map(self._fresh, self._watches))

    def _fresh(self, node: int) -> bool:
        watch = self._watches.get(node)
        limit = min(FRESH_SECONDS, self._config.backend.node_timeout_seconds)
        return (
            watch is not None
            and time.monotonic() - watch.heard_at < limit
            and watch.record.phase != "leaving"
        )

    def _known_agents(self) -> list[NodeRecord]:
        nodes = range(self._config.resources.nodes)
        return [record for node in nodes if (record := NodeRecord.read(self._job.node(node)))]

    def _look_at_nodes(self) -> None:
        """Read every agent's record; update the bounds of an agent's clock from each new record."""
        now, wall = time.monotonic(), time.time()
        stood_still = now - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = now
        if stood_still > PAUSE_SECONDS:
            # The job was suspended, together with its agents.
            self._launched_at += stood_still
            for known in self._watches.values():
                known.heard_at += stood_still
        for record in self._known_agents():
            watch = self._watches.get(record.node)
            if watch is None:
                if record != self._first_seen.get(record.node):
                    self._watches[record.node] = NodeWatch(record, now, record.time - wall)
            elif record != watch.record:
                least, most = record.time - wall, math.inf
                if self._order is not None and record.attempt == self._attempt:
                    most = record.time - self._ordered_at
                if record.agent == watch.record.agent:
                    least, most = max(watch.ahead_at_least, least), min(watch.ahead_at_most, most)
                self._watches[record.node] = NodeWatch(record, now, least, most)

    def _first_signal(self) -> int:
        orders = SignalOrders.read(self._job.control_signals)
        return orders.orders[-1].number + 1 if orders and orders.orders else 1

    def _end_agents(self, why: str) -> None:
        if self._agents is not None:
            self._agents.end()
            self._agents = None
        self.end_message = self.end_message or why
        self._ended = self._ended if self._ended is not None else 1


def _added(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
