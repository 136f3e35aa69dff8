"""The agent of one node: wait for launch orders, run the ranks on this machine, and report their end.

    waiting --launch order--> running --the last process is gone--> waiting
       |                        |
       +--- the job has ended, TERM, or no sign of life from the supervisor -> leaving

Agent and supervisor communicate only through the run directory (base/run_directory/node_records.py). Both use
their own monotonic clock to measure the time since the other last reported. A record counts as new if its
contents have changed, regardless of the time in it.
"""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from nbtrain.base.errors import JobError
from nbtrain.base.process.ports import LOOPBACK, port_to_listen_on
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.node_records import LaunchOrder, NodeExit, NodeRecord, SignalOrders
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.base.text.amounts import counted, moment
from nbtrain.base.version import __version__
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import network_interface
from nbtrain.jobs.attempt.rank_wrapper import FORWARDED
from nbtrain.jobs.attempt.ranks import PAUSE_SECONDS, Patience
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.device_needs import machine_of_run
from nbtrain.jobs.machine.environment import DROPPED_VARIABLES
from nbtrain.jobs.machine.node_address import own_address, resolves
from nbtrain.jobs.machine.preemption_notice import notice_of
from nbtrain.jobs.node.ranks_here import NodeRanks, RanksHere, send_to
from nbtrain.jobs.node.sampler import Sampler

POLL_SECONDS = 0.2
REPORT_SECONDS = 1.0


@dataclass
class Leaving:
    """The signal that told the agent to exit, set by a signal handler."""

    signal: int | None = None
    supervisor: subprocess.Popen | None = None
    """Supervisor that the agent has started; None if it has not started one.

    The signal is passed on to it, because the signal that ends a pod is sent only to its first process.
    """

    def listen(self) -> "Leaving":
        """Install the agent's signal handlers, and return self.

        On TERM and INT, the ranks save and exit, and then the agent exits. HUP is ignored, because the ssh
        connection may be gone.
        """

        def leave(number: int, frame: object) -> None:
            self.signal = number
            if self.supervisor is not None:
                self.supervisor.send_signal(number)

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)
        return self


@dataclass
class FileChange:
    """The time at which a file last changed, by this machine's monotonic clock."""

    path: Path
    mark: tuple[int, int] | None = None
    at: float = field(default_factory=time.monotonic)

    def silent_seconds(self) -> float:
        """Return the seconds since the file last changed; a file that cannot be read counts as unchanged."""
        mark = self.mark
        with contextlib.suppress(OSError):
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_ino)
        if mark != self.mark:
            self.mark, self.at = mark, time.monotonic()
        return time.monotonic() - self.at


class Agent:
    """The agent of one node: it carries out launch orders and reports on the ranks that it has started."""

    def __init__(self, job: JobDir, number: int, config: RunConfig):
        """Create the agent. Raises JobError if the run's network interface does not exist."""
        self._job, self._number, self._config = job, number, config
        machine = machine_of_run(config)
        address, name = own_address(network_interface(config))
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None
        self.record = NodeRecord(
            node=number,
            agent=identity,
            host=socket.gethostname(),
            address=address,
            port=port_to_listen_on(address),
            time=time.time(),
            cores=machine.cores,
            gpus=len(machine.gpus),
            memory_bytes=machine.memory_bytes,
            python=platform.python_version(),
            version=__version__,
            interface=name,
        )
        self._ranks = RanksHere(job.job_id, job.node_log(number), number)
        self._order: LaunchOrder | None = None
        self._reported_at = 0.0
        self._supervisor = FileChange(job.job_json)
        self._ended_by_us = ""
        self._usage = UsageWriter(job.resources, number)
        self._notice = notice_of(config)
        self._sampler: Sampler | None = None
        self._looked_at = time.monotonic()
        self._supervised = False
        self._displaced = False
        """Whether another supervisor now runs the job, with other agents."""
        self.in_pod = False
        """Whether the agent runs in a pod.

        In a pod, it waits for node 0's next pod after a supervisor has given up the job.
        """

    def run(self, leaving: Leaving) -> int:
        """Run until the job has ended or the agent must exit; return the process's exit code."""
        processes.adopt_orphans()
        self._skip_old_orders()
        self.report()
        while True:
            self._look()
            if self._displaced:
                # There is no report, because nodes/<k>.json now belongs to another agent.
                self._notice.close()
                return 0
            if why := self._must_leave(leaving):
                self._notice.close()
                return self._leave(why)
            time.sleep(POLL_SECONDS)

    def report(self) -> None:
        """Renew this node's record, nodes/<k>.json."""
        self._reported_at = time.monotonic()
        self.record.time = time.time()
        try:
            self.record.write(self._job.node(self._number))
        except OSError as error:
            # A full disk must not end the ranks, although the supervisor gets no reports meanwhile.
            path = self._job.node(self._number)
            self.say(
                f"{path} cannot be written ({error.strerror}), so this node does not report to the supervisor"
            )

    def say(self, words: str) -> None:
        """Print a line to the agent's own log, which is its stdout."""
        print(f"{moment(time.time())} node {self._number}: {words}", flush=True)

    def _skip_old_orders(self) -> None:
        """Skip the orders that were given to earlier agents of this job."""
        if (order := LaunchOrder.read(self._job.control_launch)) and not self._is_for_me(order):
            self.record.attempt = order.attempt
        orders = SignalOrders.read(self._job.control_signals)
        self.record.signals_done = orders.orders[-1].number if orders and orders.orders else 0

    def _is_for_me(self, order: LaunchOrder) -> bool:
        return self._number < len(order.agents) and order.agents[self._number] == self.record.agent

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > PAUSE_SECONDS:
            # The job was suspended, with all its processes including the supervisor.
            self._supervisor.at += now - self._looked_at
        self._looked_at = now
        if self._order is None:
            self._take_order()
        else:
            self._obey_signals()
            if self._ranks.poll() is not None:
                self._attempt_ended()
        notice = self._notice.poll()
        told = (notice, self._notice.trouble) == (self.record.notice, self.record.notice_trouble)
        self.record.notice, self.record.notice_trouble = notice, self._notice.trouble
        if not told or time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._look_at_owner()
            if not self._displaced:
                self.report()

    def _look_at_owner(self) -> None:
        """Kill the ranks if another supervisor has taken over the job.

        Otherwise, two sets of ranks would write conflicting checkpoints.
        """
        if self._order is None or self._order.supervisor is None:
            return
        record = JobRecord.read(self._job.job_json)
        if record is None or record.supervisor in (None, self._order.supervisor):
            return
        self.say(
            "another supervisor has taken over the job; this agent kills the ranks of attempt "
            f"{self._order.attempt}"
        )
        self._ranks.abandon()
        self._stop_measuring()
        self._order, self.record.phase, self._displaced = None, "waiting", not self.in_pod

    def _take_order(self) -> None:
        order = LaunchOrder.read(self._job.control_launch)
        if order is None or order.attempt == self.record.attempt or not self._is_for_me(order):
            return
        self.record.attempt, self._ended_by_us = order.attempt, ""
        if problem := self._problem(order):
            self.say(problem)
            self._write_exit(NodeExit(self._number, order.attempt, time.time(), None, problem))
            return
        self._order, self.record.phase = order, "running"
        self._launch(order)
        self.report()

    def _problem(self, order: LaunchOrder) -> str:
        if order.same_machine or self._number == 0:
            return ""
        return resolves(order.address)

    def _launch(self, order: LaunchOrder) -> None:
        here = order.ranks[self._number]
        address = LOOPBACK if order.same_machine else order.address
        interface = "lo" if order.same_machine else self.record.interface
        cores = min(self.record.cores, order.cpus_per_node or self.record.cores)
        environment = {
            "OMP_NUM_THREADS": str(max(1, cores // here)),
            # Otherwise, gloo uses the interface to which the host's name resolves, often loopback.
            "GLOO_SOCKET_IFNAME": interface,
            **({"NCCL_SOCKET_IFNAME": interface} if order.network_interface else {}),
            **order.environment,
            processes.NODE_MARKER: str(self._number),
        }
        for name in DROPPED_VARIABLES:
            if name not in environment:
                os.environ.pop(name, None)
        ranks = NodeRanks(
            count=here,
            first_rank=self._ranks_of(order).start,
            world_size=sum(order.ranks),
            node=self._number,
            master_address=address,
            master_port=order.port,
        )
        self.say(
            f"attempt {order.attempt}: starts {counted(here, 'rank')}, rendezvous at {address}:{order.port}"
        )
        self._ranks.start(order.command, ranks, order.shutdown_timeout_seconds, environment)
        self._sampler = Sampler(
            self._usage, self._job.job_id, self._ranks_of(order), self._config
        ).__enter__()

    def _ranks_of(self, order: LaunchOrder) -> range:
        first = sum(order.ranks[: self._number])
        return range(first, first + order.ranks[self._number])

    def _obey_signals(self) -> None:
        assert self._order is not None
        known = SignalOrders.read(self._job.control_signals)
        for order in known.orders if known else ():
            if order.number <= self.record.signals_done:
                continue
            self.record.signals_done = order.number
            if order.attempt != self._order.attempt:
                continue
            if order.processes is not None:
                send_to(order.processes, order.signal)
            elif order.signal == signal.SIGKILL:
                self._ranks.kill()
            elif order.signal in FORWARDED:
                self._ranks.signal(order.signal)

    def _attempt_ended(self) -> None:
        assert self._order is not None
        killed = self._ranks.finish()
        self._stop_measuring()
        memory = self._ranks.memory()
        ended = NodeExit(
            self._number,
            self._order.attempt,
            time.time(),
            self._ranks.poll(),
            self._ended_by_us,
            killed,
            memory.oom_kills,
            memory.machine_oom_kills,
            memory.limit_bytes,
            memory.peak_bytes,
            sorted(pid for _, pid in memory.killed),
        )
        self.say(f"attempt {self._order.attempt}: its launcher ended with code {ended.exit_code}")
        self._order, self.record.phase = None, "waiting"
        # The next attempt gets another port for its rendezvous, because this one may stay in use for minutes.
        self.record.port = port_to_listen_on(self.record.address)
        self._write_exit(ended)
        self.report()

    def _stop_measuring(self) -> None:
        """Stop measuring resources before ranks are started again.

        A process with several threads should not fork.
        """
        if self._sampler is None:
            return
        self._sampler.__exit__(None, None, None)
        if self._sampler.failure:
            self.say(f"resources are no longer measured: {self._sampler.failure}")
        self._sampler = None

    def _write_exit(self, ended: NodeExit) -> None:
        try:
            ended.write(self._job.node_exit(self._number, ended.attempt))
        except OSError as error:
            path = self._job.node_exit(self._number, ended.attempt)
            self.say(f"the end of attempt {ended.attempt} could not be written to {path}: {error.strerror}")

    def _must_leave(self, leaving: Leaving) -> str:
        if leaving.signal is not None:
            return f"its agent received {processes.signal_name(leaving.signal)}"
        silent = self._supervisor.silent_seconds()
        record = JobRecord.read(self._job.job_json) if self._order is None else None
        if silent > self._most_silent_seconds(record):
            return f"no sign of life from the supervisor for {silent:.0f} s"
        if self._order is None:
            if record is None:
                return "the job's folder is gone"
            if record.state not in ACTIVE:
                return f"the job is {record.state}"
            if self._supervised and record.supervisor is None and not self.in_pod:
                return "the job continues in another allocation"
            self._supervised = record.supervisor is not None
            order = LaunchOrder.read(self._job.control_launch)
            mine = order is None or order.attempt == self.record.attempt or self._is_for_me(order)
            if not mine:
                return "other agents have replaced it"
        return ""

    def _most_silent_seconds(self, record: JobRecord | None) -> float:
        """Return the number of seconds of silence after which the agent counts the supervisor as gone."""
        backend = self._config.backend
        if self.in_pod and record is not None and record.supervisor is None:
            # The supervisor has given up the job, and node 0's next pod may start slowly, for example because
            # it pulls an image.
            return max(backend.node_timeout_seconds, backend.start_timeout_seconds)
        return backend.node_timeout_seconds

    def _leave(self, why: str) -> int:
        self._look_at_owner()
        if self._displaced:
            return 0
        self.say(f"{why}; leaves")
        self.record.phase = "leaving"
        self.report()
        if self._order is not None:
            self._ended_by_us = f"node {self._number}: {why}"
            self._ranks.signal(signal.SIGTERM)
            heartbeats = (self._job.heartbeat(rank) for rank in self._ranks_of(self._order))
            patience = Patience(heartbeats, self._order.shutdown_timeout_seconds)
            while self._ranks.poll() is None and not patience.over():
                self._obey_signals()
                self.report()
                time.sleep(POLL_SECONDS)
            if self._ranks.poll() is None:
                self._ranks.kill()
            self._attempt_ended()
        self.record.phase = "leaving"
        self.report()
        return 0


def agent_of(job: JobDir, number: int) -> Agent:
    """Return the agent of node `number`. Raises JobError if this machine does not see the job's folder."""
    if not job.job_json.is_file():
        raise JobError(
            f"{job.path} does not exist on {socket.gethostname()}. Every node must see the output folder "
            "under the same path. Set NBTRAIN_OUTPUT to a folder on a disk that all nodes share."
        )
    return Agent(job, number, load_resolved(job.run.config_yaml))
