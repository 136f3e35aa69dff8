"""The agent of a node: which orders it obeys, and when it exits. No rank is started."""

import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base.run_directory.jobstate import CANCELLED, QUEUED, RUNNING
from nbtrain.base.run_directory.node_records import (
    LaunchOrder,
    NodeExit,
    NodeRecord,
    SignalOrder,
    SignalOrders,
)
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.jobs.node import agent as agent_module
from nbtrain.jobs.node.agent import Agent, Leaving
from nbtrain.jobs.node.ranks_here import NodeRanks
from tests.jobs.conftest import TINY

SUPERVISOR = ProcessIdentity(7, 1, "other boot", "node0")


class Ranks:
    """A stand-in for the ranks that records the orders it gets."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def start(self, command: object, ranks: NodeRanks, *more: object) -> None:
        self.told.append("start")
        self.node_ranks = ranks

    def poll(self) -> int | None:
        return None

    def signal(self, number: int) -> None:
        self.told.append(number)

    def kill(self) -> None:
        self.told.append("kill")

    def abandon(self) -> None:
        self.told.append("abandon")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Create the agent of node 1 of 2; the test moves its clock through `agent_module.time`."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    job = JobDir(RunDir(tmp_path / "run"), "20260101-120000-abcd")
    for folder in ("control", "nodes", "exit", "logs", "resources"):
        (job.path / folder).mkdir(parents=True)
    sampler = {"__enter__": lambda self: self, "__exit__": lambda *given: None, "failure": ""}
    monkeypatch.setattr(agent_module, "Sampler", lambda *given: type("", (), sampler)())
    become(job, RUNNING)
    made = Agent(job, 1, load(tmp_path / "tiny.yaml", {"backend.node_timeout_seconds": 30}))
    made._ranks = Ranks()
    return made


def become(job: JobDir, state: str, supervisor: ProcessIdentity | None = SUPERVISOR) -> None:
    record = JobRecord(job.job_id, "id", "tiny", state, 0.0, 4, backend="slurm")
    record.supervisor = supervisor
    record.write(job.job_json)


def order(
    agent: Agent,
    attempt: int = 0,
    address: str = "10.0.0.1",
    me: bool = True,
    ranks: tuple[int, int] = (2, 2),
) -> LaunchOrder:
    mine = agent.record.agent if me else replace(agent.record.agent, pid=1)
    given = LaunchOrder(attempt, [SUPERVISOR, mine], [*ranks], address, 5000, [], {}, None, 60.0, False)
    given.write(agent._job.control_launch)
    return given


def test_an_order_is_taken_once_and_only_if_it_is_meant(agent: Agent) -> None:
    """An agent obeys each order once, and only if the order names this agent, not one of an earlier
    allocation.
    """
    order(agent, me=False)
    agent._look()
    assert agent._ranks.told == []
    order(agent)
    agent._look()
    agent._look()
    assert agent._ranks.told == ["start"]
    assert (agent.record.phase, agent.record.attempt) == ("running", 0)


def test_the_ranks_of_a_node_follow_those_of_the_nodes_before_it(agent: Agent) -> None:
    """Ranks are numbered across the nodes, which may have different numbers of them."""
    order(agent, ranks=(3, 2))
    agent._look()
    ranks = agent._ranks.node_ranks
    assert (ranks.first_rank, ranks.count) == (3, 2)
    assert ranks.variables() == {
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5000",
    }


def test_a_wrong_address_is_refused_before_the_ranks_start(agent: Agent) -> None:
    """A wrong address is rejected before the ranks are started; otherwise the rendezvous would time out."""
    order(agent, address="localhost")
    agent._look()
    ended = NodeExit.read(agent._job.node_exit(1, 0))
    assert ended is not None and ended.exit_code is None
    assert ended.message.startswith("localhost resolves to loopback on ")
    assert agent._ranks.told == [] and agent.record.attempt == 0


def test_signals_are_carried_out_once_and_only_for_this_attempt(agent: Agent) -> None:
    """A signal is sent once, and only in its attempt. KILL is sent to the ranks before their wrappers."""
    SignalOrders([SignalOrder(3, 0, 15)]).write(agent._job.control_signals)
    agent._skip_old_orders()
    order(agent, attempt=1)
    agent._look()
    sent = [SignalOrder(3, 0, 15), SignalOrder(4, 0, 15), SignalOrder(5, 1, 15), SignalOrder(6, 1, 9)]
    SignalOrders(sent).write(agent._job.control_signals)
    agent._look()
    agent._look()
    assert agent._ranks.told == ["start", signal.SIGTERM, "kill"]
    assert agent.record.signals_done == 6


def test_a_notice_is_in_its_record_until_it_is_withdrawn(agent: Agent) -> None:
    """The agent reports its machine's notice at once, and again when the program no longer gives it."""

    class Notice:
        answer, trouble = "spot", ""

        def poll(self) -> str:
            return self.answer

    agent._notice = notice = Notice()  # type: ignore[assignment]
    agent.report()
    for answer in ("spot", ""):
        notice.answer = answer
        agent._look()
        record = NodeRecord.read(agent._job.node(1))
        assert record is not None and record.notice == answer


def test_it_leaves_when_it_is_not_needed(agent: Agent) -> None:
    """The agent exits on TERM, or when its job has ended, continues elsewhere or was deleted."""
    here = Leaving()
    assert agent._must_leave(here) == ""
    become(agent._job, QUEUED, supervisor=None)
    assert agent._must_leave(here) == "the job continues in another allocation"
    become(agent._job, CANCELLED)
    assert agent._must_leave(here) == "the job is CANCELLED"
    become(agent._job, RUNNING)
    order(agent, me=False, attempt=4)
    assert agent._must_leave(here) == "other agents have replaced it"
    agent._job.job_json.unlink()
    assert agent._must_leave(here) == "the job's folder is gone"
    assert agent._must_leave(Leaving(15)) == "its agent received SIGTERM"


@pytest.mark.parametrize("in_pod", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_ranks_of_another_supervisor_are_killed_unsaved(agent: Agent, asked: bool, in_pod: bool) -> None:
    """If another supervisor has replaced its own, an agent kills its ranks without saving and stops writing
    nodes/1.json; an agent in a pod continues.
    """
    agent.in_pod = in_pod
    replace(order(agent), supervisor=SUPERVISOR).write(agent._job.control_launch)
    agent._look()
    become(agent._job, QUEUED, supervisor=None)
    agent._look_at_owner()
    become(agent._job, RUNNING, supervisor=replace(SUPERVISOR, pid=8))
    agent._job.node(1).unlink()
    if asked:
        assert agent._leave("was asked to leave") == 0
    else:
        agent._look_at_owner()
    assert agent._ranks.told == ["start", "abandon"]
    assert agent._displaced != in_pod
    agent._reported_at = -1e9
    agent._look()
    assert agent._job.node(1).exists() == in_pod


def test_it_waits_for_a_supervisor_that_is_not_there_yet(agent: Agent) -> None:
    """An agent waits for a supervisor that has not started yet, because in a pod, agents may start first."""
    become(agent._job, QUEUED, supervisor=None)
    assert agent._must_leave(Leaving()) == ""


@pytest.mark.slow
def test_a_pod_waits_for_the_next_pod_of_node_0(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hand-over, pods wait for the next pod of node 0 for as long as a pod may take to start."""
    # Whole seconds, which add up without rounding: the bound is 600 s and not a hair more.
    now = float(math.ceil(agent_module.time.monotonic()))
    clock = type("", (), {"monotonic": staticmethod(lambda: now), "time": staticmethod(lambda: 0.0)})
    monkeypatch.setattr(agent_module, "time", clock)
    agent.in_pod = True

    def asked_each_second(seconds: int) -> str:
        nonlocal now
        for _ in range(seconds):
            now += 1
            agent._look()
            if why := agent._must_leave(Leaving()):
                return why
        return ""

    become(agent._job, QUEUED, supervisor=None)
    assert asked_each_second(601) == ""
    assert asked_each_second(1) == "no sign of life from the supervisor for 601 s"
    become(agent._job, RUNNING)
    assert asked_each_second(40) == "no sign of life from the supervisor for 31 s"


def test_silence_ends_it_but_not_its_own_standstill(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent exits if its supervisor is silent for too long, but not if the agent itself was suspended
    meanwhile.
    """
    now = float(math.ceil(agent_module.time.monotonic()))
    clock = type("", (), {"monotonic": staticmethod(lambda: now), "time": staticmethod(lambda: 0.0)})
    monkeypatch.setattr(agent_module, "time", clock)
    agent._look()
    assert agent._must_leave(Leaving()) == ""
    now += 3600
    agent._look()
    assert agent._must_leave(Leaving()) == ""
    for _ in range(31):
        now += 1
        agent._look()
    assert agent._must_leave(Leaving()).startswith("no sign of life from the supervisor for 31 s")
