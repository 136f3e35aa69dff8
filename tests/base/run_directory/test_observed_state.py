"""The state of a job on a scheduler, from its records, the scheduler's last report and the time since its
heartbeat.
"""

import os
import time
from dataclasses import replace

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    CANCELLED,
    FAILED,
    FINAL,
    LOST,
    QUEUED,
    RESTARTING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.run_directory.observed_state import (
    QUEUED_GRACE_SECONDS,
    preempted_words,
    read_state,
    state_with_engine,
)
from nbtrain.base.run_directory.records import JobRecord, Preemption
from nbtrain.base.run_directory.rundir import JobDir, RunDir

NAME = "Slurm job 12"
UNKNOWN, NEVER = "unknown", "never"
"""The scheduler does not know the job; the scheduler never answered."""


def record_of(state: str, cause: str | None = None) -> JobRecord:
    return JobRecord("20260101-120000-abcd", "id", "tiny", state, 0.0, 4, cause=cause, backend="slurm")


def word_of(said: str, seen: bool = True) -> EngineWord | None:
    if said == NEVER:
        return None
    return EngineWord(None if said == UNKNOWN else said, "", 0.0, seen=seen, engine=NAME)


def seen_as(state: str, said: str, silent: float, seen: bool = True, asked: float | None = None) -> str:
    """Return the state; `asked` is the age of the scheduler's report in seconds, by default `silent`."""
    known = silent if asked is None and said != NEVER else asked
    return state_with_engine(record_of(state), word_of(said, seen), silent, known)[0]


SAID = (QUEUED, RUNNING, SUSPENDED, SUCCEEDED, FAILED, CANCELLED, UNKNOWN, NEVER)


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("state", sorted(FINAL - {LOST}))
def test_what_the_job_says_of_its_own_end_counts(state: str, said: str) -> None:
    """A final state in the job's record is kept, whatever the scheduler reports and however old the record
    is.
    """
    assert {seen_as(state, said, silent) for silent in (0, 100, 1e6)} == {state}


@pytest.mark.parametrize("state", [STARTING, RUNNING, RESTARTING])
def test_a_supervisor_that_is_heard_of_is_believed(state: str) -> None:
    """A job keeps its state for 30 s after a heartbeat, or 15 minutes if the scheduler is silent, unless
    suspended.
    """
    for said in SAID:
        assert seen_as(state, said, 29) == (SUSPENDED if said == SUSPENDED else state)
    assert seen_as(state, RUNNING, 1e6) == state
    assert seen_as(state, NEVER, 899) == seen_as(state, RUNNING, 899, seen=False) == state


@pytest.mark.parametrize(
    ("said", "seen", "silent", "expected"),
    [
        (QUEUED, True, 30, QUEUED),
        (CANCELLED, True, 30, CANCELLED),
        (FAILED, True, 30, LOST),
        (SUCCEEDED, True, 30, LOST),
        (UNKNOWN, True, 30, LOST),
        (FAILED, False, 30, LOST),
        (UNKNOWN, False, 30, RUNNING),
        (RUNNING, False, 901, LOST),
        (UNKNOWN, False, 901, LOST),
        (NEVER, True, 901, LOST),
        (SUSPENDED, True, 1e6, SUSPENDED),
        (SUSPENDED, False, 1e6, SUSPENDED),
    ],
)
def test_the_engine_speaks_for_a_silent_supervisor(
    said: str, seen: bool, silent: float, expected: str
) -> None:
    """Without a heartbeat the scheduler's report decides, and a job with no recorded end never succeeded."""
    assert seen_as(RUNNING, said, silent, seen) == expected


@pytest.mark.parametrize(
    ("said", "silent", "expected"),
    [
        (QUEUED, 1e6, QUEUED),
        (RUNNING, 1e6, QUEUED),
        (NEVER, 1e6, QUEUED),
        (UNKNOWN, 30, QUEUED),
        (UNKNOWN, 31, LOST),
        (CANCELLED, 1, CANCELLED),
        (FAILED, 1, FAILED),
        (SUCCEEDED, 1, FAILED),
        (SUSPENDED, 1, SUSPENDED),
    ],
)
def test_before_its_supervisor_the_engine_decides(said: str, silent: float, expected: str) -> None:
    """Before the supervisor starts, the scheduler's report decides, and a job may wait for weeks."""
    assert seen_as(QUEUED, said, silent) == expected


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_a_wrong_clock_loses_no_live_job(ahead: float) -> None:
    """A clock that is off by 10 minutes does no harm, because only two file times are compared."""
    for said in (UNKNOWN, FAILED, QUEUED):
        assert seen_as(RUNNING, said, ahead, asked=3) == RUNNING
        assert seen_as(RUNNING, said, ahead, asked=31) != RUNNING


def test_who_was_heard_of_after_the_engine_is_not_suspended_any_more() -> None:
    """A heartbeat that is newer than the scheduler's report of a suspension means that the job runs again."""
    assert seen_as(RUNNING, SUSPENDED, 2, asked=-20) == SUSPENDED
    assert seen_as(RUNNING, SUSPENDED, 2, asked=-31) == RUNNING


def test_an_old_word_is_no_answer() -> None:
    """An old report of the scheduler does not show that the job still runs."""
    assert seen_as(RUNNING, RUNNING, 3600, asked=5) == LOST
    assert seen_as(RUNNING, RUNNING, 3600, asked=3590) == RUNNING


def test_the_words_of_every_state() -> None:
    """Each state comes with a cause, which is shown to the user."""

    def cause(state: str, said: str, reason: str = "", silent: float = 40, seen: bool = True) -> str | None:
        word = word_of(said, seen)
        if word:
            word.reason = reason
        return state_with_engine(record_of(state, "own"), word, silent, silent if word else None)[1]

    ended = f"{NAME} ended as FAILED, exit code 0:9"
    silent = "its supervisor has been silent for 40 s while the job was RUNNING"
    assert cause(RUNNING, FAILED, ended) == f"{silent}; {ended}"
    assert cause(RUNNING, UNKNOWN) == f"{silent}; {NAME} is no longer known to its scheduler"
    assert cause(RUNNING, RUNNING) == "own"
    assert cause(RUNNING, FAILED, ended, silent=4) == (
        f"{ended}; its supervisor has been silent for 4 s, and the job counts as LOST after 30 s"
    )
    assert cause(RUNNING, CANCELLED) == f"{NAME} was cancelled, while the job was RUNNING"
    assert cause(RUNNING, QUEUED) == f"{NAME} is back in the queue"
    assert cause(RUNNING, RUNNING, silent=1000, seen=False) == (
        "no sign of life from its supervisor for 1000 s while the job was RUNNING, and the scheduler of "
        "Slurm job 12 does not answer"
    )
    assert cause(QUEUED, QUEUED, "waits (Resources)") == "waits (Resources)"
    assert cause(QUEUED, UNKNOWN) == f"{NAME} is not known to its scheduler, and its supervisor never started"
    # Slurm has given the job no number.
    unnamed = replace(word_of(UNKNOWN, True), engine="Slurm")
    assert state_with_engine(record_of(QUEUED, "own"), unnamed, 40, 40)[1] == (
        "the Slurm job is not known to its scheduler, and its supervisor never started"
    )
    handed_over = replace(record_of(QUEUED, "saved at step 7"), started_at=1.0)
    assert state_with_engine(handed_over, word_of(UNKNOWN, True), 40, 40) == (
        LOST,
        f"{NAME} is no longer known to its scheduler, and nothing continues the job: saved at step 7",
    )
    assert cause(QUEUED, SUCCEEDED) == (
        f"{NAME} has ended, and no supervisor has started; see logs/supervisor.log"
    )
    assert cause(RUNNING, SUSPENDED) == f"{NAME} is suspended"
    assert SUSPENDED in ACTIVE


def test_a_preempted_job_says_since_when_it_waits_and_what_it_lost() -> None:
    """While the scheduler still reports the old allocation, only the preemption is shown; later also why the
    job waits.
    """
    record = record_of(QUEUED)
    record.preemptions = [Preemption(0, "Slurm preempted job 12", 1_795_939_256.0, 3, 384)]
    record.cause = preempted_words(record.preemptions[0])
    assert record.cause == (
        "preempted, waiting in the queue since 2026-11-29 08:00:56 UTC, lost 3 steps; Slurm preempted job 12"
    )
    word = EngineWord(RUNNING, "Slurm job 12 is RUNNING on n[0-1]", 0.0, engine=NAME)
    assert state_with_engine(record, word, 0.0) == (QUEUED, record.cause)
    word = EngineWord(QUEUED, "Slurm job 12 waits (Resources)", 0.0, engine=NAME)
    assert state_with_engine(record, word, 0.0) == (QUEUED, f"{record.cause}; Slurm job 12 waits (Resources)")


def test_the_silence_is_read_from_the_time_stamps_of_the_disk(tmp_path) -> None:
    """The time since the heartbeat is the difference of two file times, which come from the same disk's
    clock.
    """
    job = JobDir(RunDir(tmp_path), "20260101-120000-abcd")
    job.path.mkdir(parents=True)
    record_of(RUNNING).write(job.job_json)
    EngineWord(FAILED, "Slurm job 12 ended as NODE_FAIL", 0.0, engine=NAME).write(job.engine_json)
    now = time.time()
    for path, age in ((job.job_json, 20), (job.engine_json, 0)):
        os.utime(path, (now - age, now - age))
    assert read_state(job, now + 300)[0] == RUNNING
    os.utime(job.job_json, (now - 31, now - 31))
    assert read_state(job, now - 300)[0] == LOST


def test_a_job_that_only_tunes_has_no_supervisor_and_succeeds_without_one() -> None:
    """A job that only autotunes succeeds without a supervisor; a job that is to train afterwards does not."""
    record = record_of(QUEUED)
    record.autotune = "tune"
    assert state_with_engine(record, word_of(RUNNING), 0.0) == (
        RUNNING,
        "DeepSpeed's autotuner tries ZeRO stages and micro-batch sizes",
    )
    assert state_with_engine(record, word_of(SUCCEEDED), 0.0) == (
        SUCCEEDED,
        "DeepSpeed's autotuner has ended; `nbtrain job tiny` says what it found",
    )
    record.autotune = "run"
    assert state_with_engine(record, word_of(RUNNING), 0.0)[0] == RUNNING
    assert state_with_engine(record, word_of(SUCCEEDED), 0.0)[0] == FAILED


def test_a_job_that_is_being_submitted_is_not_lost(tmp_path):
    """A folder without job.json is a submission in progress, and an interrupted submission once it is old."""
    job = RunDir(tmp_path / "tiny").job("20260101-120000-abcd")
    assert read_state(job, time.time())[0] == LOST
    job.make_folders()
    assert read_state(job, time.time()) == (QUEUED, "the job is being submitted")
    cut_off = (LOST, "the submission was interrupted before job.json was written")
    assert read_state(job, time.time() + QUEUED_GRACE_SECONDS + 1) == cut_off


def test_a_job_whose_pods_ended_for_a_pause_is_suspended_before_the_cluster_says_so(tmp_path):
    """The supervisor of a paused job on Kubernetes leaves with its pods; the pause counts until it is
    withdrawn.
    """
    job = RunDir(tmp_path / "tiny").job("20260101-120000-abcd")
    job.make_folders()
    for asked in (False, True):
        files.write_json(job.control_pause, {"pause": asked, "time": 0.0})
        replace(record_of(QUEUED, "saved; paused"), backend="kubernetes").write(job.job_json)
        word_of(RUNNING).write(job.engine_json)
        assert read_state(job, time.time()) == (SUSPENDED if asked else QUEUED, "saved; paused")
    record_of(QUEUED, "Slurm has it").write(job.job_json)
    assert read_state(job, time.time())[0] == QUEUED
    # The pause was asked after the supervisor had left: only the cluster knows whether pods follow.
    replace(record_of(QUEUED, "evicted"), backend="kubernetes").write(job.job_json)
    later = job.job_json.stat().st_mtime + 1
    os.utime(job.control_pause, (later, later))
    assert read_state(job, time.time()) == (QUEUED, "evicted")
