"""Finding the rank that the others wait for, from where each rank is."""

import dataclasses
import os

import pytest

from nbtrain.base.run_directory.records import Collective, Heartbeat, ProcessIdentity
from nbtrain.jobs.attempt import hang
from nbtrain.jobs.attempt.hang import Standstill, culprits, main_stack, report, stuck_words
from nbtrain.jobs.machine import processes

ME = ProcessIdentity.of(os.getpid())


def rank(
    number,
    collective=None,
    step=6,
    still=30.0,
    unwritten=0.5,
    host="a",
    phase="train",
    spoke=True,
    process=ME,
):
    beat = Heartbeat(number, 0, process, 0.0, step, phase, 0.0, collective=collective, host=host)
    return Standstill(number, beat if spoke else None, still, unwritten)


def inside(ranks, number=13, name="all_reduce", kind="data_parallel", waiting=True, group="0"):
    return Collective(name, kind, list(ranks), number, 0.0, waiting, group)


def test_the_rank_outside_the_collective_is_named():
    """The rank outside the collective is named, not the one that has been silent for longest or has the
    lowest number.
    """
    everyone = [
        rank(0, inside(range(4)), still=31),
        rank(1, inside(range(4)), still=32),
        rank(2, inside(range(4), 12, waiting=False), still=30.4),
        rank(3, inside(range(4)), still=31),
    ]
    assert [culprit.rank for culprit in culprits(everyone)] == [2]
    assert report(everyone) == (
        "rank 2 stopped: last reported at step 6, 30 s ago, while training, outside any collective (last: "
        "all_reduce no. 12 of data_parallel ranks 0-3); ranks 0, 1, 3 wait in all_reduce no. 13 of "
        "data_parallel ranks 0-3"
    )


def test_waiting_is_followed_to_its_end():
    """A chain of waiting ranks is followed to its end: rank 0 waits for rank 2, which waits for rank 3, which
    is not in a collective.
    """
    everyone = [
        rank(0, inside([0, 2], name="recv (from rank 2)", kind="pipeline_model_parallel")),
        rank(1, inside([1, 3], name="recv (from rank 3)", kind="pipeline_model_parallel")),
        rank(2, inside([2, 3])),
        rank(3, inside([1, 3], name="send (to rank 1)", waiting=False)),
    ]
    assert [culprit.rank for culprit in culprits(everyone)] == [3]


def test_another_collective_of_the_same_group_is_another_place():
    """If ranks are in different calls of the same group, the one that is behind is named."""
    everyone = [rank(0, inside([0, 1], 12)), rank(1, inside([0, 1], 13, name="broadcast"))]
    assert [culprit.rank for culprit in culprits(everyone)] == [0]
    assert hang.culprit(everyone) == 0


def test_a_sender_and_its_receiver_are_together():
    """If a sender and its receiver are both in their call, both are named."""
    everyone = [
        rank(0, inside([0, 1], 4, "send (to rank 1)")),
        rank(1, inside([0, 1], 4, "recv (from rank 0)")),
    ]
    assert [culprit.rank for culprit in culprits(everyone)] == [0, 1]
    # Which of the two the other waits for is not known.
    assert hang.culprit(everyone) is None and hang.culprit(everyone[1:]) == 1


def test_a_link_between_machines_is_suspected_if_nothing_tells_the_ranks_apart():
    """If all ranks are in the same state, the network between the two hosts is suspected; on a single
    machine, all ranks are named.
    """
    everyone = [rank(number, inside(range(4), 5), host=f"host{number // 2}") for number in range(4)]
    assert report(everyone) == (
        "all ranks have waited for 30 s in all_reduce no. 5 of data_parallel ranks 0-3, and no rank is "
        "behind: the network between host0 and host1 may be down"
    )
    assert report([rank(number, spoke=False) for number in range(4)]) == (
        "no rank has reported within 30 s: no rank was started, or the machines cannot reach each other; "
        "see logs/"
    )
    here = [rank(number, inside(range(2), 5)) for number in range(2)]
    assert report(here).startswith("rank 0 stopped: last reported at step 6, 30 s ago")


def test_a_link_that_was_cut_within_a_collective_that_one_rank_had_ended():
    """Call numbers of different groups are not compared, here after the network was cut during a
    collective.
    """
    everyone = [
        rank(number, inside(range(4), 51, group="1"), host=f"host{number // 2}") for number in range(4)
    ]
    everyone[0] = rank(0, inside(range(4), 179), host="host0")
    assert report(everyone) == (
        "all ranks have waited in collectives for 30 s: "
        "rank 0 in all_reduce no. 179 of data_parallel ranks 0-3; "
        "ranks 1-3 in all_reduce no. 51 of data_parallel ranks 0-3; the network between host0 and host1 "
        "may be down, or the ranks do not make the same calls"
    )


def test_a_link_that_was_cut_between_two_collectives():
    """If every rank of two hosts waits in a collective, but some wait in the next one already, the network is
    suspected. On a single machine, the ranks that are behind are named.
    """
    hosts, earlier = ("host0", "host0", "host1", "host1"), (1, 2)
    calls = [inside(range(4), 51 if number in earlier else 52, kind="") for number in range(4)]
    everyone = [rank(number, calls[number], host=hosts[number]) for number in range(4)]
    assert report(everyone) == (
        "all ranks have waited in collectives for 30 s: "
        "ranks 0, 3 in all_reduce no. 52 of ranks 0-3; ranks 1, 2 "
        "in all_reduce no. 51 of ranks 0-3; the network between host0 and host1 may be down, or the ranks do "
        "not make the same calls"
    )
    assert hang.culprit(everyone) is None
    # A rank that has waited for less time than the others is not behind.
    everyone[0] = rank(0, calls[0], host="host0", still=9)
    assert hang.culprit(everyone) is None
    here = [rank(number, calls[number]) for number in range(4)]
    assert [culprit.rank for culprit in culprits(here)] == [1, 2]


def test_a_link_that_was_cut_while_a_host_waits_for_its_own_rank():
    """If the ranks that others wait for are in a collective of two hosts, the network is suspected."""
    everyone = [
        rank(0, inside([0, 2], 8), host="host0"),
        rank(1, inside([0, 1], 20, kind="tensor_model_parallel"), host="host0"),
        rank(2, inside([0, 2], 8), host="host1"),
        rank(3, inside([1, 3], 8), host="host1"),
    ]
    assert report(everyone) == (
        "all ranks have waited in collectives for 30 s: "
        "ranks 0, 2 in all_reduce no. 8 of data_parallel ranks 0, "
        "2; rank 1 in all_reduce no. 20 of tensor_model_parallel ranks 0, 1; rank 3 in all_reduce no. 8 of "
        "data_parallel ranks 1, 3; the network between host0 and host1 may be down, or the ranks do not make "
        "the same calls"
    )
    # A rank outside any collective is late.
    late = rank(0, inside([0, 2], 7, waiting=False), host="host0")
    assert [culprit.rank for culprit in culprits([late, *everyone[1:]])] == [0]
    # A collective within one host does not need the network.
    here = rank(0, inside([0, 1], 20, kind="tensor_model_parallel"), host="host0")
    assert [culprit.rank for culprit in culprits([here, *everyone[1:]])] == [0, 1]


def test_ranks_that_are_all_in_one_collective_wait_for_none_of_its_own():
    """If some ranks are in a collective that does not end, they are named, and not a rank in another
    collective that waits for them.
    """
    everyone = [rank(0, inside([0, 1], 5)), rank(1, inside([0, 1], 5)), rank(2, inside(range(3), 9))]
    assert [culprit.rank for culprit in culprits(everyone)] == [0, 1]


def test_a_rank_that_went_on_until_lately_is_not_to_blame():
    """A rank that is one step behind is not blamed if it has made progress more recently than half of the
    others' silence.
    """
    others = [rank(0, step=7, still=100), rank(1, step=7, still=100)]
    assert [culprit.rank for culprit in culprits([*others, rank(2, step=6, still=49)])] == [0, 1]
    assert [culprit.rank for culprit in culprits([*others, rank(2, step=6, still=50)])] == [2]


def test_a_rank_that_never_spoke_is_named_before_one_that_waits_for_nobody():
    """A rank that has never reported is named rather than a rank that is in no collective."""
    assert [culprit.rank for culprit in culprits([rank(0, step=5), rank(1, spoke=False)])] == [1]


def test_on_a_gpu_the_count_tells():
    """On a GPU, where calls return before their collectives have ended, the rank with fewer calls is
    behind.
    """
    everyone = [rank(0, inside(range(3), 40, waiting=False)), rank(1, inside(range(3), 39, waiting=False))]
    everyone.append(rank(2, inside(range(3), 40, waiting=False)))
    assert [culprit.rank for culprit in culprits(everyone)] == [1]
    assert [culprit.rank for culprit in culprits([rank(0, step=6), rank(1, step=5)])] == [1]
    assert [culprit.rank for culprit in culprits([rank(0), rank(1)])] == [0, 1]
    # Equal call counts in a group do not tell its ranks apart.
    level = [rank(number, inside([0, 1], 40, waiting=False)) for number in (0, 1)]
    assert [culprit.rank for culprit in culprits([*level, rank(2, step=5)])] == [2]


def test_groups_of_the_same_ranks_count_apart():
    """Calls of two groups with the same ranks are counted separately, so the rank that is a step behind is
    named.
    """
    everyone = [
        rank(0, inside([0, 1], 40, waiting=False), step=7),
        rank(1, inside([0, 1], 8, waiting=False, group="3")),
    ]
    assert [culprit.rank for culprit in culprits(everyone)] == [1]
    assert [
        culprit.rank for culprit in culprits([everyone[0], rank(1, everyone[1].beat.collective, step=8)])
    ] == [0]


def test_a_stopped_process_is_reported(monkeypatch):
    """A process that SIGSTOP has stopped is reported, whatever state the other ranks are in."""
    monkeypatch.setattr(processes, "process_state", lambda pid: "T")
    assert report([rank(0)]) == (
        "rank 0 stopped: last reported at step 6, 30 s ago, while training; its process is stopped by a "
        "signal"
    )


def test_only_a_live_process_counts_as_stopped_by_a_signal(monkeypatch):
    """Only a live process can count as stopped by a signal, because another process may have the pid of a
    dead rank.
    """
    monkeypatch.setattr(processes, "process_state", lambda pid: "T")
    assert rank(0).stopped
    assert rank(0, spoke=False).stopped is False
    gone = rank(0, process=dataclasses.replace(ME, start_ticks=ME.start_ticks + 1))
    assert gone.stopped is False


def test_of_ranks_that_are_all_stopped_by_a_signal_the_awaited_one_is_named(monkeypatch):
    """If a signal has stopped every rank, the message names the rank that the others wait for."""
    monkeypatch.setattr(processes, "process_state", lambda pid: "T")
    everyone = [rank(0, inside([0, 1])), rank(1, inside([0, 1], 12, waiting=False))]
    assert [culprit.rank for culprit in culprits(everyone)] == [1]


@pytest.mark.parametrize(("unwritten", "frozen"), [(0.5, False), (9.5, False), (10.0, False), (10.5, True)])
def test_a_rank_is_frozen_after_ten_seconds_without_a_heartbeat(unwritten, frozen):
    assert rank(0, unwritten=unwritten).frozen is frozen


def test_a_sender_and_a_rank_in_another_call_are_not_together():
    """Two ranks that wait for each other in calls that do not match do not count as being in the same
    call.
    """
    everyone = [
        rank(0, inside([0, 1], 4, "send (to rank 1)")),
        rank(1, inside([0, 1], 4)),
        rank(2, inside([0, 2], 9)),
    ]
    assert [culprit.rank for culprit in culprits(everyone)] == [0, 1, 2]


def test_where_the_others_are_is_said_of_one_and_of_many(monkeypatch):
    """The message says where each of the other ranks is: in a phase after a step, in a collective, or
    silent.
    """
    monkeypatch.setattr(processes, "process_state", lambda pid: "T" if pid == ME.pid else "S")
    monkeypatch.setattr(ProcessIdentity, "alive", lambda self: True)
    other = dataclasses.replace(ME, pid=ME.pid + 1)
    everyone = [
        rank(0),
        rank(1, process=other, phase="save"),
        rank(2, spoke=False),
        rank(3, inside([0, 3, 4]), process=other),
        rank(4, inside([0, 3, 4]), process=other),
    ]
    assert report(everyone) == (
        "rank 0 stopped: last reported at step 6, 30 s ago, while training; its process is stopped by a "
        "signal; rank 1 is saving after step 6; rank 2 is silent; ranks 3, 4 wait in all_reduce no. "
        "13 of data_parallel ranks 0, 3, 4"
    )
    everyone = [rank(0), rank(1, process=other), rank(2, process=other)]
    assert report(everyone).endswith("; ranks 1, 2 are training after step 6")


@pytest.mark.parametrize(
    ("guilty", "more"), [(3, ""), (4, ""), (5, "; 1 more rank stopped"), (6, "; 2 more ranks stopped")]
)
def test_of_many_culprits_four_are_described(guilty, more):
    everyone = [rank(number, step=5) for number in range(guilty)] + [rank(9, step=6)]
    described = min(guilty, 4)
    text = report(everyone)
    assert text.count(" stopped: ") == described and f"rank {described - 1} stopped: " in text
    assert text.endswith(f"while training{more}; rank 9 is training after step 6")


def test_nodes_that_are_all_gone_are_not_named():
    """If all ranks of both hosts are silent, the fault is on the supervisor's side, and no node is named."""
    everyone = [rank(0, unwritten=40), rank(1, host="b", unwritten=40)]
    assert report(everyone).startswith("rank 0 stopped: ") and "node" not in report(everyone)


def test_a_rank_that_never_spoke_is_reported():
    assert report([rank(0, inside([0, 1])), rank(1, spoke=False, still=130)]) == (
        "rank 1 stopped: no heartbeat yet after 130 s; rank 0 waits in all_reduce no. 13 of data_parallel "
        "ranks 0, 1"
    )


def test_a_rank_that_cannot_even_write_is_reported():
    """A rank whose heartbeat thread is silent is reported, even if the rank is in the same collective as the
    others.
    """
    everyone = [rank(0, inside([0, 1])), rank(1, inside([0, 1]), unwritten=29)]
    assert report(everyone).startswith(
        "rank 1 stopped: last reported at step 6, 30 s ago, while training, in all_reduce no. 13"
    )
    assert "its process does not even write its heartbeat" in report(everyone)


def test_a_node_that_is_gone_is_reported():
    """If all ranks of a node are silent and another host still writes heartbeats, the node is named instead
    of a rank.
    """
    everyone = [rank(number, inside(range(4))) for number in (0, 1)]
    everyone += [rank(number, inside(range(4), 12), host="b", unwritten=40 + number) for number in (2, 3)]
    assert report(everyone) == "node b is gone: no heartbeat from its ranks 2, 3 for 42 s"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1], "0, 1"), ([3, 0, 1, 2], "0-3"), ([0, 1, 2, 7, 9, 10, 11], "0-2, 7, 9-11")],
)
def test_ranks_in_few_characters(ranks, text):
    assert hang.numbers(ranks) == text


def test_the_main_threads_stack():
    """The stack of the main thread is taken from faulthandler's newest dump and shortened to its innermost
    frames.
    """
    old = 'Current thread 0x00 (most recent call first):\n  File "old.py", line 1 in old\n'
    log = old + (
        "step 6 | loss 4.2\n"
        'Thread 0x01 (most recent call first):\n  File "heartbeat.py", line 4 in _renew\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "a.py", line 3 in inner\n  File "a.py", line 9 in outer\n'
        "and words after it\n"
    )
    assert main_stack(log) == ['File "a.py", line 3 in inner', 'File "a.py", line 9 in outer']
    assert main_stack(log, frames=1) == ['File "a.py", line 3 in inner']
    assert main_stack("step 6\n") == []
    assert stuck_words(3, main_stack(log)) == (
        "rank 3 was stuck at a.py:3 in inner; its log has the stacks of all threads"
    )
    assert stuck_words(3, []) == "rank 3 was stuck; its log does not show at which line of its Python code"
    deep = "".join(f'  File "a.py", line {number} in f\n' for number in range(20))
    assert len(main_stack(f"Current thread 0x02 (most recent call first):\n{deep}")) == 8
