"""Ranks that are forked from one preloaded process: their environment, how they end, and that none is
left.
"""

import signal
from pathlib import Path

import pytest

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import ProcessIdentity
from nbtrain.proof.fork_client import ForkServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]


def test_each_rank_has_its_environment_its_log_and_its_exit_code(fork_server, tmp_path):
    log = tmp_path / "log of {rank}"
    ended = fork_server.run(
        3,
        "tests.jobs.forked_rank:note",
        [str(tmp_path)],
        sys_path=[REPOSITORY],
        log=log,
        environment={"OWN": "mine"},
        linger_seconds=600,
    )
    assert ended.exit_codes == [0, 1, 2]
    assert not ended.succeeded and not ended.timed_out
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 3 3 mine"
        assert ended.launch.log_of(rank).read_text() == f"said by rank {rank}\n"
    assert ended.last_output() == "said by rank 1"


def test_two_launches_at_one_time_have_groups_of_their_own(fork_server, tmp_path):
    """Two launches at the same time have separate process groups on different ports; gradients and
    collectives work after a fork.
    """
    launches = [
        fork_server.start(
            ranks,
            "tests.jobs.forked_rank:reduce",
            [],
            sys_path=[REPOSITORY],
            log=tmp_path / f"{ranks}.{{rank}}",
            linger_seconds=600,
        )
        for ranks in (2, 3)
    ]
    assert fork_server.wait(launches[1]).exit_codes == [12, 12, 12]
    assert fork_server.wait(launches[0]).exit_codes == [6, 6]


def test_the_others_do_not_outlive_a_failed_rank(fork_server, tmp_path):
    """If a rank fails, its traceback is reported, and its peers are killed after some time."""
    ended = fork_server.run(
        3,
        "tests.jobs.forked_rank:fail_or_sleep",
        [],
        sys_path=[REPOSITORY],
        log=tmp_path / "{rank}",
        linger_seconds=0.2,
        timeout_seconds=800,
    )
    assert ended.exit_codes == [-signal.SIGKILL, 1, -signal.SIGKILL]
    assert ended.last_output(1) == "ValueError: no more"
    assert not ended.timed_out and ended.seconds < 800


def test_a_launch_ends_at_its_time_limit_or_by_a_signal(fork_server, tmp_path):
    late = fork_server.start(
        2,
        "tests.jobs.forked_rank:sleep",
        [],
        sys_path=[REPOSITORY],
        log=tmp_path / "late.{rank}",
        timeout_seconds=0.3,
    )
    hit = fork_server.start(
        2,
        "tests.jobs.forked_rank:sleep",
        [],
        sys_path=[REPOSITORY],
        log=tmp_path / "hit.{rank}",
        linger_seconds=0.1,
    )
    fork_server.signal(hit, signal.SIGTERM, rank=1)
    assert fork_server.wait(hit).exit_codes == [-signal.SIGKILL, -signal.SIGTERM]
    ended = fork_server.wait(late)
    assert ended.exit_codes == [-signal.SIGKILL, -signal.SIGKILL] and ended.timed_out


def test_a_function_that_is_not_there_is_said_by_its_ranks(fork_server, tmp_path):
    ended = fork_server.run(
        1, "tests.jobs.forked_rank:nothing", [], sys_path=[REPOSITORY], log=tmp_path / "{rank}"
    )
    assert ended.exit_codes == [1]
    assert "has no attribute 'nothing'" in ended.last_output()


def test_it_says_what_can_be_trained_here(fork_server):
    assert fork_server.abilities["bf16"] is True and set(fork_server.abilities) == {"bf16", "fp16"}


def test_no_rank_outlives_the_server(tmp_path):
    """No rank outlives the server, and the server does not outlive its client; if an import fails, that is
    reported.
    """
    with ForkServer() as server:
        launch = server.start(
            2, "tests.jobs.forked_rank:sleep", [], sys_path=[REPOSITORY], log=tmp_path / "{rank}"
        )
        identities = [ProcessIdentity.of(pid) for pid in launch.pids]
        assert None not in identities
    wait_until(lambda: not any(identity.alive() for identity in identities), "ranks are left")
    with ForkServer(modules=["no_such_module"]) as server, pytest.raises(JobError, match="no_such_module"):
        server.start(1, "tests.jobs.forked_rank:sleep", [], sys_path=[REPOSITORY], log=tmp_path / "{rank}")
