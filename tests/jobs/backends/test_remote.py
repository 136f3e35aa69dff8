"""RemoteLauncher with agents that consist only of files: the orders it writes and the records it reads."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base.run_directory.node_records import LaunchOrder, NodeExit, NodeRecord, SignalOrders
from nbtrain.base.run_directory.records import (
    STACK_SIGNAL,
    Collective,
    ExitRecord,
    Heartbeat,
    ProcessIdentity,
)
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt import attempt as attempt_module
from nbtrain.jobs.attempt.attempt import Attempt
from nbtrain.jobs.attempt.verdict import Circumstances, judge
from nbtrain.jobs.backends import remote
from nbtrain.jobs.backends.remote import RemoteLauncher
from tests.jobs.conftest import TINY
from tests.messages import lacks

NODES = 2


class Clock:
    """The supervisor's two clocks, which the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Started:
    """A stand-in for the program that starts the agents."""

    end_message = ""

    def __init__(self) -> None:
        self.code: int | None = None
        self.ended = False

    def poll(self) -> int | None:
        return self.code

    def end(self) -> None:
        self.ended = True


class Launcher(RemoteLauncher):
    """A launcher that counts how often it starts agents."""

    starts: list[Started]

    def start_agents(self, config: RunConfig) -> Started:
        self.starts.append(Started())
        return self.starts[-1]


class Cluster:
    """The simulated agents of two nodes."""

    def __init__(self, job: JobDir, clock: Clock, config: RunConfig):
        self.job, self.clock, self.config = job, clock, config
        self.ahead = [0.0] * NODES
        self.life = 0
        self.launcher = Launcher(job, ("rank.py",))
        self.launcher.starts = []

    def beat(self, *nodes: int, attempt: int | None = None, phase: str = "waiting", host: str = "") -> None:
        """Renew the records of these agents, or of all agents."""
        for node in nodes or range(NODES):
            agent = ProcessIdentity(100 + 10 * self.life + node, 1, f"boot {node}", f"node{node}")
            record = NodeRecord(
                node,
                agent,
                host or f"node{node}",
                f"10.0.0.{node}",
                5000,
                self.clock.time() + self.ahead[node],
                phase=phase,
                attempt=attempt,
            )
            record.write(self.job.node(node))

    def launch(self, attempt: int = 0) -> int | None:
        """Launch an attempt and run it until its order is written."""
        self.launcher.launch(self.config, attempt)
        self.beat()
        return self.launcher.poll()

    def pass_seconds(self, seconds: int, *alive: int, attempt: int = 0) -> None:
        """Advance the clock with one poll per second, while these agents stay alive."""
        for _ in range(seconds):
            self.clock.sleep(1)
            if alive:
                self.beat(*alive, attempt=attempt, phase="running")
            self.launcher.poll()

    def ended(self, node: int, code: int | None = 0, attempt: int = 0, message: str = "") -> None:
        NodeExit(node, attempt, self.clock.time(), code, message).write(self.job.node_exit(node, attempt))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Create two nodes with two ranks each, with a node_timeout_seconds of 30."""
    clock = Clock()
    monkeypatch.setattr(remote, "time", clock)
    settings = {
        "backend.kind": "slurm",
        "backend.node_timeout_seconds": 30,
        "parallel.data_parallel_size": 4,
        "resources.nodes": NODES,
    }
    (tmp_path / "tiny.yaml").write_text(TINY)
    config = load(tmp_path / "tiny.yaml", settings)
    job = JobDir(RunDir(tmp_path / "run"), "20260101-120000-abcd")
    for folder in ("nodes", "exit", "control", "heartbeat", "logs"):
        (job.path / folder).mkdir(parents=True)
    return Cluster(job, clock, config)


def test_the_order_waits_for_every_agent(cluster: Cluster) -> None:
    """The order is written when every agent has reported; a record of an earlier allocation, which does not
    change, does not count.
    """
    cluster.beat()
    cluster.launcher.launch(cluster.config, 0)
    cluster.clock.sleep(1)
    assert cluster.launcher.poll() is None
    assert LaunchOrder.read(cluster.job.control_launch) is None
    cluster.life = 1
    cluster.beat(0)
    assert cluster.launcher.poll() is None and LaunchOrder.read(cluster.job.control_launch) is None
    cluster.beat(1)
    assert cluster.launcher.poll() is None
    order = LaunchOrder.read(cluster.job.control_launch)
    assert order is not None
    assert (order.ranks, order.address, order.port, order.same_machine) == ([2, 2], "10.0.0.0", 5000, False)
    assert [agent.pid for agent in order.agents] == [110, 111]


def test_agents_that_do_not_come_are_named(cluster: Cluster) -> None:
    """Agents that do not report are named, either by the program that started them or after the timeout."""
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat(0)
    cluster.launcher.poll()
    cluster.launcher.starts[0].code = 3
    assert cluster.launcher.poll() == 3
    logs = ("logs/node<k>.log", "logs/supervisor.log")
    assert lacks(cluster.launcher.end_message, "1 of 2 agents (node 1) ", "code 3;", *logs) == []
    cluster.launcher.launch(cluster.config, 1)
    cluster.pass_seconds(700)
    assert cluster.launcher.poll() == 1
    assert " within 600 s (backend.start_timeout_seconds = 600); " in cluster.launcher.end_message
    assert cluster.launcher.starts[1].ended


def test_a_machine_with_loopback_alone_is_named(cluster: Cluster) -> None:
    """A machine that has only a loopback address is named before any rank waits for it."""
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat()
    path = cluster.job.node(1)
    record = NodeRecord.read(path)
    assert record is not None
    replace(record, address="127.0.0.1").write(path)
    assert cluster.launcher.poll() == 1
    assert cluster.launcher.end_message.startswith("node1 has only a loopback address")


def test_a_lost_node_is_named_with_its_silence(cluster: Cluster) -> None:
    """A lost node is named with the time since its last record, when the other ranks have ended."""
    assert cluster.launch() is None
    cluster.pass_seconds(5, 0, 1)
    cluster.pass_seconds(30, 0)
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(1, 0)
    parts = ("node node1 is gone: ", " for 31 s (limit: backend.node_timeout_seconds = 30)")
    assert lacks(cluster.launcher.trouble(), *parts) == []
    assert cluster.launcher.poll() is None
    cluster.ended(0, 1)
    assert cluster.launcher.poll() == 1
    # With the real trainer the peers fail first, because their connections to it are closed.
    ends = {rank: ExitRecord(rank, 0, 10.0, 1, None, "failed", 6, "connection reset") for rank in (0, 1)}
    verdict = judge(ends, Circumstances(4, cluster.config, node_left=cluster.launcher.end_message))
    assert verdict.retry and lacks(verdict.cause, *parts, "; no exit record from ranks 2, 3") == []


def test_a_suspended_job_has_lost_no_node(cluster: Cluster) -> None:
    """When a job was suspended, no node counts as lost, because the supervisor was suspended for as long as
    its agents.
    """
    assert cluster.launch() is None
    cluster.pass_seconds(5, 0, 1)
    cluster.clock.sleep(3600)
    assert cluster.launcher.poll() is None
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(3, 0, 1)
    cluster.pass_seconds(31, 0)
    assert "node node1 is gone" in cluster.launcher.trouble()


def test_a_node_that_refuses_says_why(cluster: Cluster) -> None:
    """A node that cannot start its ranks reports the reason, so that the other nodes do not wait for it."""
    assert cluster.launch() is None
    cluster.ended(1, None, message="10.0.0.0 does not resolve on node1")
    assert cluster.launcher.trouble() == "10.0.0.0 does not resolve on node1"
    cluster.ended(0, -15)
    assert cluster.launcher.poll() == 15
    assert cluster.launcher.end_message == "10.0.0.0 does not resolve on node1"


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_wrong_clock_does_not_change_who_failed_first(cluster: Cluster, ahead: float) -> None:
    """Which rank failed first does not depend on clock skew; the clock of rank 2's machine is off by 5
    minutes.
    """
    cluster.ahead[1] = ahead
    assert cluster.launch() is None
    cluster.pass_seconds(3, 0, 1)
    first = cluster.clock.time()
    ExitRecord(0, 0, first, 1, None, "failed").write(cluster.job.exit_record(0, 0))
    ExitRecord(2, 0, first + 2 + ahead, 1, None, "failed").write(cluster.job.exit_record(2, 0))
    records = [cluster.launcher.exit_record(rank) for rank in (0, 2)]
    times = [record.time - first for record in records if record]
    assert times[0] == 0 and 1 <= times[1] <= 3


def test_slow_disks_do_not_change_who_failed_first(cluster: Cluster) -> None:
    """Records that arrive late because of a slow disk are not mistaken for clock skew."""
    cluster.ahead[1] = -3.0
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat()
    cluster.launcher.poll()
    first = cluster.clock.time()
    ExitRecord(2, 0, first - 1, 1, None, "failed").write(cluster.job.exit_record(2, 0))
    record = cluster.launcher.exit_record(2)
    assert record is not None and record.time == first - 1


def test_the_next_attempt_takes_the_same_agents(cluster: Cluster) -> None:
    """The next attempt uses the same agents; agents that are silent or have exited are replaced."""
    assert cluster.launch() is None
    cluster.pass_seconds(5, 0, 1)
    cluster.ended(0, 1)
    cluster.ended(1, 1)
    assert cluster.launcher.poll() == 1
    cluster.beat()
    assert cluster.launch(attempt=1) is None
    assert len(cluster.launcher.starts) == 1
    order = LaunchOrder.read(cluster.job.control_launch)
    assert order is not None and order.attempt == 1
    cluster.ended(0, 1, attempt=1)
    cluster.ended(1, 1, attempt=1)
    cluster.clock.sleep(60)
    cluster.launcher.launch(cluster.config, 2)
    assert len(cluster.launcher.starts) == 2 and cluster.launcher.starts[0].ended


def test_orders_rise_over_supervisors(cluster: Cluster) -> None:
    """Order numbers keep increasing when the supervisor changes, so that agents in a new allocation obey
    them.
    """
    assert cluster.launch() is None
    cluster.launcher.signal(15)
    cluster.launcher.signal(10, [ProcessIdentity(7, 1, "boot")])
    other = Launcher(cluster.job, ("rank.py",))
    other.starts = []
    other.launch(cluster.config, 1)
    cluster.clock.sleep(1)
    cluster.life = 1
    cluster.beat()
    other.poll()
    other.signal(9)
    orders = SignalOrders.read(cluster.job.control_signals)
    assert orders is not None
    assert [(order.number, order.attempt, order.signal) for order in orders.orders] == [(3, 1, 9)]


def identity(rank: int) -> ProcessIdentity:
    """Return a process identity. Rank 2 has the same pid as rank 0, but on another machine."""
    return ProcessIdentity(500 + rank % 2, 1, f"boot {rank // 2}", f"node{rank // 2}")


def test_a_hang_on_another_node_names_its_rank(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a hang on another node, the message names rank 3, which is not in the collective of the other
    ranks.
    """
    clock, job = cluster.clock, cluster.job
    monkeypatch.setattr(attempt_module, "time", clock)
    limit = {"heartbeat_timeout_seconds": 10.0}
    job.log(3, 0).write_text("")
    config = cluster.config.model_copy(update={"backend": cluster.config.backend.model_copy(update=limit)})
    attempt = Attempt(job, config, 0, cluster.launcher)
    attempt.start()
    cluster.beat()
    attempt.poll()
    for _ in range(12):
        clock.sleep(1)
        cluster.beat(attempt=0, phase="running")
        for rank in range(4):
            waits = Collective("all_reduce", "data_parallel", [0, 1, 2, 3], 13 - (rank == 3), 0.0, rank != 3)
            Heartbeat(
                rank,
                0,
                identity(rank),
                clock.time(),
                6,
                "train",
                0.0,
                collective=waits,
                host=f"node{rank // 2}",
                dumps_stack=True,
            ).write(job.heartbeat(rank))
        if attempt.hang is None:
            attempt.poll()
    assert attempt.hang is not None
    assert attempt.hang.startswith(
        "no progress for 10 s: rank 3 stopped: last reported at step 6, 11 s ago, "
    )
    assert "ranks 0-2 wait in all_reduce no. 13 of data_parallel ranks 0-3" in attempt.hang
    orders = SignalOrders.read(job.control_signals)
    assert orders is not None
    assert [(order.signal, order.processes) for order in orders.orders] == [
        (STACK_SIGNAL, [identity(rank) for rank in range(4)]),
        (signal.SIGKILL, None),
    ]


def test_out_of_memory_on_another_node_is_its_ranks(cluster: Cluster) -> None:
    """A process on node 1 that was killed for lack of memory is identified as rank 2, although node 0 has a
    process with the same pid.
    """
    assert cluster.launch() is None
    for rank in range(4):
        Heartbeat(rank, 0, identity(rank), 0.0, 6, "train", 0.0).write(cluster.job.heartbeat(rank))
    cluster.ended(0, 1)
    full = NodeExit(1, 0, cluster.clock.time(), 1, "", False, 1, 1, 1 << 30, 1 << 30, [500, 9])
    full.write(cluster.job.node_exit(1, 0))
    memory = cluster.launcher.memory()
    assert (memory.oom_kills, memory.limit_bytes, memory.peak_bytes) == (1, 1 << 30, 1 << 30)
    assert memory.killed == {(1, 500)}
    ends = {
        rank: ExitRecord(
            rank, 0, 10.0 + rank, None if rank == 2 else 1, 9 if rank == 2 else None, outcome, 6, words
        )
        for rank, outcome, words in (
            (0, "failed", "connection closed by peer"),
            (1, "failed", "connection closed by peer"),
            (2, "killed", "killed by SIGKILL"),
            (3, "failed", "connection closed by peer"),
        )
    }
    around = Circumstances(4, cluster.config, memory=memory, pids={rank: 500 + rank % 2 for rank in range(4)})
    verdict = judge(ends, around)
    assert verdict.kind == "host memory"
    assert verdict.cause.startswith("rank 2 was killed at step 6: out of host memory: ")
    evidence = ("(SIGKILL; the kernel's log names process 500; ", "1.00 of 1.00 GiB")
    assert (
        lacks(
            verdict.cause, *evidence, "Lower batch.micro_batch_size, or raise resources.memory_per_node_bytes"
        )
        == []
    )


def test_a_rank_that_is_gone_with_its_wrapper_is_named(cluster: Cluster) -> None:
    """A rank that disappeared together with its wrapper is named, because its agent reports it as gone and it
    has no exit record.
    """
    assert cluster.launch() is None
    cluster.ended(0, 1)
    cluster.ended(1, -9)
    assert cluster.launcher.poll() == 9
    ends = {rank: ExitRecord(rank, 0, 10.0, 0, None, "stopped", 6) for rank in range(3)}
    verdict = judge(ends, Circumstances(4, cluster.config, launcher_message=cluster.launcher.end_message))
    assert verdict.cause.startswith("rank 3's wrapper process was killed, and rank 3 with it, not by nbtrain")


@pytest.mark.parametrize(
    ("alive", "words"),
    [
        ([0], "node node1 is gone: its agent has not reported for 18 s, not even after the order"),
        ([0, 1], "node node1 did not respond to the order to end its ranks"),
    ],
)
def test_the_node_that_does_not_answer_the_order_to_end_is_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, alive: list[int], words: str
) -> None:
    """If a node does not respond to the order to end, it is named as the cause, even if ranks on other nodes
    fail first.
    """
    assert cluster.launch() is None
    cluster.ended(0, 1)
    cluster.pass_seconds(10, *alive)
    look = cluster.launcher.poll

    def living() -> int | None:
        if 1 in alive:
            cluster.beat(1, attempt=0, phase="running")
        return look()

    monkeypatch.setattr(cluster.launcher, "poll", living)
    cluster.launcher.kill()
    assert cluster.launcher.end_message.startswith(words)


def test_a_node_whose_launcher_fails_before_any_rank_ends_the_wait_of_the_others(cluster: Cluster) -> None:
    """If the launcher fails early on one node, the other nodes stop waiting in the rendezvous instead of
    waiting 15 minutes.
    """
    assert cluster.launch() is None
    cluster.ended(0, 1)
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(int(remote.RANKS_WORD_SECONDS), 1)
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(1, 1)
    parts = ("node node0 exited with code 1", "the other nodes are waiting", "logs/node0.log")
    assert lacks(cluster.launcher.trouble(), *parts) == []
    # The next attempt starts from scratch.
    cluster.life = 1
    cluster.launch(1)
    assert cluster.launcher.trouble() == ""


def test_a_node_that_has_ended_well_is_no_trouble(cluster: Cluster) -> None:
    assert cluster.launch() is None
    cluster.ended(0, 0)
    cluster.launcher.trouble()
    cluster.pass_seconds(60, 1)
    assert cluster.launcher.trouble() == ""


def test_a_notice_or_the_schedulers_record_is_a_preemption(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's own notice counts until it is withdrawn. The scheduler is asked if an agent was told to
    leave, or if it signalled the supervisor; after the loss of a machine, the scheduler is not asked.
    """
    asked: list[list[int]] = []

    def record(launcher: RemoteLauncher, leaving: list[int]) -> str:
        asked.append(leaving)
        return "taken away"

    monkeypatch.setattr(Launcher, "scheduler_preemption", record)
    cluster.launch()
    launcher, path = cluster.launcher, cluster.job.node(1)
    assert (launcher.preemption(), launcher.missing()) == ("", "")
    noticed = NodeRecord.read(path)
    assert noticed is not None
    replace(noticed, notice="spot", notice_trouble="curl did not start", time=noticed.time + 1).write(path)
    assert (launcher.preemption(), launcher.preemption_trouble()) == (
        "node1: spot",
        "node1: curl did not start",
    )
    cluster.clock.sleep(1)
    cluster.beat()
    assert (launcher.preemption(), launcher.preemption_trouble(), asked) == ("", "", [])
    assert launcher.preemption(signalled=True) == "taken away"
    cluster.beat(1, phase="leaving")
    assert (launcher.preemption(), launcher.missing()) == ("taken away", "node 1")
    assert asked == [[], [1]]
    # The machine is gone: its agent no longer says that it leaves.
    for _ in range(40):
        cluster.clock.sleep(1)
        cluster.beat(0)
        launcher.poll()
    asked.clear()
    assert (launcher.preemption(), launcher.missing(), asked) == ("", "node 1", [])
    cluster.life = 1
    cluster.beat(1)
    assert launcher.missing() == ""
