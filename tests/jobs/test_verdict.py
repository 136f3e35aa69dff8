"""How an attempt's end is judged from its exit records."""

import pytest

from nbtrain.jobs.verdict import Circumstances, judge, user_error
from nbtrain.rundir import ExitRecord

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n'


def record(rank, outcome, time=0.0, code=0, signal=None, step=7, message="words", detail=""):
    return ExitRecord(rank, 0, time, code, signal, outcome, step, message, detail)


def judged(*records, **circumstances):
    around = Circumstances(**{"world_size": len(records), **circumstances})
    return judge({entry.rank: entry for entry in records}, around)


def test_all_finished_is_success():
    """Every rank finished: SUCCEEDED, even if a stop was asked for at the same moment."""
    verdict = judged(record(0, "finished"), record(1, "finished"), stop_requested=True)
    assert (verdict.state, verdict.retry) == ("SUCCEEDED", False)


def test_success_needs_every_rank():
    """One rank without a record is no success, whatever the others say."""
    verdict = judged(record(0, "finished"), world_size=2)
    assert verdict.state == "FAILED"
    assert verdict.retry
    assert verdict.cause == "rank 1 left no exit record: killed together with its wrapper"


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (True, "stopped on request at step 7; saved"),
        (False, "its ranks were told to stop by a signal from outside at step 7; saved"),
    ],
)
def test_stopped_is_cancelled(asked, cause):
    """Ranks that saved and left: CANCELLED, and who asked is told apart."""
    verdict = judged(record(0, "stopped"), record(1, "stopped"), stop_requested=asked)
    assert (verdict.state, verdict.cause) == ("CANCELLED", cause)


def test_a_limit_of_the_run_is_the_cause():
    """One rank's word is enough: only that of the clock that ran out knows it. A request still comes first."""
    records = (record(0, "stopped", detail="batch.exit_duration_minutes = 5 are over"), record(1, "stopped"))
    verdict = judged(*records)
    assert (verdict.state, verdict.retry) == ("CANCELLED", False)
    assert (
        verdict.cause == "batch.exit_duration_minutes = 5 are over at step 7; saved, `nbtrain resume` goes on"
    )
    assert judged(*records, stop_requested=True).cause == "stopped on request at step 7; saved"


def test_mode_perf_saves_nothing_and_says_so():
    assert judged(record(0, "finished"), mode="perf").cause == "all steps are measured, none is saved"
    stopped = judged(record(0, "stopped"), mode="perf", stop_requested=True)
    assert stopped.cause == "stopped on request at step 7; mode: perf saves nothing"
    limited = judged(record(0, "stopped", detail="batch.exit_interval_steps = 7 is reached"), mode="perf")
    assert limited.cause == "batch.exit_interval_steps = 7 is reached at step 7; mode: perf saves nothing"


def test_a_killed_torchrun_is_tried_again():
    """Its death made the ranks save and stop, but nobody asked for an end; a request to stop still wins."""
    verdict = judged(record(0, "stopped"), record(1, "stopped"), launcher_signal=9)
    assert (verdict.state, verdict.retry) == ("FAILED", True)
    assert verdict.cause == "torchrun was killed by signal 9, so its ranks stopped at step 7; saved"
    verdict = judged(record(0, "stopped"), record(1, "stopped"), launcher_signal=9, stop_requested=True)
    assert (verdict.state, verdict.retry) == ("CANCELLED", False)


def test_a_stop_that_did_not_save_says_so():
    """Killed during a stop, or failed while stopping: CANCELLED with what was missed."""
    killed = judged(record(0, "killed", signal=9, code=None), stop_requested=True, killed_by_us=True)
    assert (killed.state, killed.cause) == (
        "CANCELLED",
        "stopped on request; killed before it had saved at step 7",
    )
    failed = judged(record(0, "failed", code=1, message="no room"), stop_requested=True)
    assert failed.cause == "stopped on request before it could save at step 7 (rank 0: no room)"


def test_the_first_failure_is_the_cause():
    """Peers fail because the first one did: the earliest record names the cause, not the lowest rank."""
    verdict = judged(
        record(0, "failed", time=5.0, code=1, message="connection closed"),
        record(
            1,
            "failed",
            time=4.0,
            code=1,
            message="RuntimeError: boom",
            detail=f"{TRACEBACK}RuntimeError: boom",
        ),
    )
    assert verdict.cause == "rank 1 failed at step 7: RuntimeError: boom"
    assert verdict.retry
    assert verdict.signature == (7, "RuntimeError: boom")


@pytest.mark.parametrize(
    ("oom_kills", "words"),
    [
        (1, "out of host memory: the kernel ended it (SIGKILL, counted by its cgroup)"),
        (
            0,
            "killed by SIGKILL, not by nbtrain: by hand, by another program, or out of host memory (the cgroup counts",
        ),
        (None, "or out of host memory (the kernel's counter is not readable)"),
    ],
)
def test_signal_9_tells_memory_from_a_person(oom_kills, words):
    """A rank that nobody of ours killed: out of memory where the kernel counted it, else both are named."""
    entry = record(1, "killed", code=None, signal=9, step=None, message="killed by SIGKILL")
    verdict = judged(record(0, "failed", time=1.0, code=1), entry, oom_kills=oom_kills)
    assert verdict.cause.startswith("rank 1 was killed: ")
    assert words in verdict.cause
    assert verdict.retry


def test_a_full_disk_is_told_and_not_tried_again():
    """No space left on device: trying again would fill it again."""
    said = "OSError: [Errno 28] No space left on device"
    verdict = judged(record(0, "failed", code=1, message=said, detail=f"{TRACEBACK}{said}"))
    assert verdict.cause == f"rank 0 failed at step 7: the disk is full: {said}"
    assert not verdict.retry


def test_a_hang_is_the_cause_whatever_the_kill_left():
    """Ranks killed for hanging are no unknown deaths."""
    verdict = judged(
        record(0, "killed", code=None, signal=9), hang="no heartbeat for 5 s: rank 0", killed_by_us=True
    )
    assert (verdict.state, verdict.cause, verdict.retry) == ("FAILED", "no heartbeat for 5 s: rank 0", True)


def test_a_launcher_that_never_started_a_rank():
    """No record at all: its last words are all there is."""
    verdict = judge(
        {}, Circumstances(2, launcher_message="torchrun ended with code 1; see logs/supervisor.log")
    )
    assert verdict.cause == (
        "the launcher ended before any rank had left a record: torchrun ended with code 1; see logs/supervisor.log"
    )
    assert verdict.retry


@pytest.mark.parametrize(
    ("message", "detail", "expected"),
    [
        ("data/x.bin: truncated", "data/x.bin: truncated: 3 bytes", True),
        ("boom", f"{TRACEBACK}nbtrain.errors.CheckpointError: it does not fit", True),
        ("ConfigError: a.yaml:3", "", True),
        ("RuntimeError: boom", f"{TRACEBACK}RuntimeError: a DataError in the text", False),
        ("exit code 7 without a word", "", False),
    ],
)
def test_errors_of_the_user_are_known(message, detail, expected):
    """An nbtrain error, told in words or at a traceback's end; nothing else."""
    assert user_error(record(0, "failed", code=1, message=message, detail=detail)) is expected
