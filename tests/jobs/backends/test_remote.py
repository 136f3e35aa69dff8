"""RemoteLauncher with agents that are files alone: what it orders, and what it makes of their records."""

from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base.node_records import LaunchOrder, NodeExit, NodeRecord, SignalOrders
from nbtrain.base.records import ExitRecord, ProcessIdentity
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends import remote
from nbtrain.jobs.backends.remote import RemoteLauncher
from tests.jobs.conftest import TINY

NODES = 2


class Clock:
    """The supervisor's two clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Started:
    """What has started the agents."""

    last_words = ""

    def __init__(self) -> None:
        self.code: int | None = None
        self.ended = False

    def poll(self) -> int | None:
        return self.code

    def end(self) -> None:
        self.ended = True


class Launcher(RemoteLauncher):
    """Counts the starts of agents."""

    starts: list[Started]

    def start_agents(self, config: RunConfig) -> Started:
        self.starts.append(Started())
        return self.starts[-1]


class Cluster:
    """The agents of two nodes."""

    def __init__(self, job: JobDir, clock: Clock, config: RunConfig):
        self.job, self.clock, self.config = job, clock, config
        self.ahead = [0.0] * NODES
        self.life = 0
        self.launcher = Launcher(job, ("rank.py",))
        self.launcher.starts = []

    def beat(self, *nodes: int, attempt: int | None = None, phase: str = "waiting", host: str = "") -> None:
        """These agents (all, if none is named) renew their records."""
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
        """To the order."""
        self.launcher.launch(self.config, attempt)
        self.beat()
        return self.launcher.poll()

    def pass_seconds(self, seconds: int, *alive: int, attempt: int = 0) -> None:
        """The supervisor looks once a second; these agents live."""
        for _ in range(seconds):
            self.clock.sleep(1)
            if alive:
                self.beat(*alive, attempt=attempt, phase="running")
            self.launcher.poll()

    def ended(self, node: int, code: int | None = 0, attempt: int = 0, message: str = "") -> None:
        NodeExit(node, attempt, self.clock.time(), code, message).write(self.job.node_exit(node, attempt))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two nodes with two ranks each; node_timeout_seconds is 30."""
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
    for folder in ("nodes", "exit", "control"):
        (job.path / folder).mkdir(parents=True)
    return Cluster(job, clock, config)


def test_the_order_waits_for_every_agent(cluster: Cluster) -> None:
    """What an earlier allocation has left in nodes/ is no agent: it does not change."""
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
    """By what started them, or by the time-out."""
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat(0)
    cluster.launcher.poll()
    cluster.launcher.starts[0].code = 3
    assert cluster.launcher.poll() == 3
    assert cluster.launcher.last_words == (
        "the agents of nodes 1 (of 2) did not report: what starts the agents ended with code 3; "
        "logs/node<k>.log and logs/supervisor.log say more"
    )
    cluster.launcher.launch(cluster.config, 1)
    cluster.pass_seconds(700)
    assert cluster.launcher.poll() == 1
    assert "within backend.start_timeout_seconds = 600" in cluster.launcher.last_words
    assert cluster.launcher.starts[1].ended


def test_a_machine_with_loopback_alone_is_named(cluster: Cluster) -> None:
    """Before any rank waits for it."""
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat()
    path = cluster.job.node(1)
    record = NodeRecord.read(path)
    assert record is not None
    replace(record, address="127.0.0.1").write(path)
    assert cluster.launcher.poll() == 1
    assert cluster.launcher.last_words.startswith("node1: no network address but loopback")


def test_a_lost_node_is_named_with_its_silence(cluster: Cluster) -> None:
    """Its ranks cannot say it; the attempt is over once the others have ended."""
    assert cluster.launch() is None
    cluster.pass_seconds(5, 0, 1)
    cluster.pass_seconds(30, 0)
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(1, 0)
    assert cluster.launcher.trouble() == (
        "node node1 is gone: nothing was heard of its agent for 31 s (backend.node_timeout_seconds = 30)"
    )
    assert cluster.launcher.poll() is None
    cluster.ended(0, 1)
    assert cluster.launcher.poll() == 1


def test_a_suspended_job_has_lost_no_node(cluster: Cluster) -> None:
    """The supervisor stood still as long as its agents did."""
    assert cluster.launch() is None
    cluster.pass_seconds(5, 0, 1)
    cluster.clock.sleep(3600)
    assert cluster.launcher.poll() is None
    assert cluster.launcher.trouble() == ""
    cluster.pass_seconds(3, 0, 1)
    cluster.pass_seconds(31, 0)
    assert "node node1 is gone" in cluster.launcher.trouble()


def test_a_node_that_refuses_says_why(cluster: Cluster) -> None:
    """The other nodes would wait for it in vain."""
    assert cluster.launch() is None
    cluster.ended(1, None, message="10.0.0.0 does not resolve on node1")
    assert cluster.launcher.trouble() == "10.0.0.0 does not resolve on node1"
    cluster.ended(0, -15)
    assert cluster.launcher.poll() == 15
    assert cluster.launcher.last_words == "10.0.0.0 does not resolve on node1"


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_wrong_clock_does_not_change_who_failed_first(cluster: Cluster, ahead: float) -> None:
    """Rank 0 failed a second before rank 2, whose machine's clock is 5 minutes off."""
    cluster.ahead[1] = ahead
    assert cluster.launch() is None
    cluster.pass_seconds(3, 0, 1)
    first = cluster.clock.time()
    ExitRecord(0, 0, first, 1, None, "failed").write(cluster.job.exit_record(0, 0))
    ExitRecord(2, 0, first + 2 + ahead, 1, None, "failed").write(cluster.job.exit_record(2, 0))
    records = [cluster.launcher.exit_record(rank) for rank in (0, 2)]
    times = [one.time - first for one in records if one]
    assert times[0] == 0 and 1 <= times[1] <= 3


def test_slow_disks_do_not_change_who_failed_first(cluster: Cluster) -> None:
    """The records of node 1 come 3 s late: that is no difference of clocks."""
    cluster.ahead[1] = -3.0
    cluster.launcher.launch(cluster.config, 0)
    cluster.beat()
    cluster.launcher.poll()
    first = cluster.clock.time()
    ExitRecord(2, 0, first - 1, 1, None, "failed").write(cluster.job.exit_record(2, 0))
    record = cluster.launcher.exit_record(2)
    assert record is not None and record.time == first - 1


def test_the_next_attempt_takes_the_same_agents(cluster: Cluster) -> None:
    """A rank failed: no other srun. Agents that are silent, or leave, are replaced."""
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
    """A supervisor of a new allocation goes on counting, so that agents heed what it sends."""
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
    assert [(one.number, one.attempt, one.signal) for one in orders.orders] == [(3, 1, 9)]
