"""Limits of time or steps at which a job stops."""

import time

import pytest

from nbtrain.base.run_directory.records import AttemptRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.parallel.agreement import LEAVE, NOTHING
from nbtrain.train.requests import ExitLimits, job_age_seconds


def limits(age_seconds: float, **batch) -> ExitLimits:
    return ExitLimits(
        load("gpt-tiny", {f"batch.{key}": value for key, value in batch.items()}).batch, age_seconds
    )


@pytest.fixture
def clock(monkeypatch):
    """A replacement for time.monotonic() that returns a value set by the test."""
    return lambda now: monkeypatch.setattr(time, "monotonic", lambda: now)


def test_minutes_count_from_the_jobs_start(clock):
    """Minutes are counted from the start of the job, whatever happens to the system clock."""
    clock(1000.0)
    limit = limits(60.0, exit_duration_minutes=1.5)
    clock(1000.0 + 29.9)
    assert (limit.wish(), limit.cause(7)) == (NOTHING, "")
    clock(1000.0 + 30.0)
    assert (limit.wish(), limit.cause(7)) == (LEAVE, "batch.exit_duration_minutes = 1.5 is reached")


def test_steps_that_the_interval_divides():
    limit = limits(0.0, exit_interval_steps=5)
    assert [step for step in range(1, 16) if limit.ends_at(step)] == [5, 10, 15]
    assert limit.wish() == NOTHING
    assert [limit.cause(step) for step in (4, 5)] == ["", "batch.exit_interval_steps = 5 is reached"]


def test_without_limits_nothing_ends():
    limit = limits(0.0)
    assert (limit.wish(), limit.ends_at(100), limit.cause(100)) == (NOTHING, False, "")


def test_a_restart_does_not_wind_the_clock_back(tmp_path, monkeypatch):
    """The time limit counts from the start of the job, not of the attempt. For a rank that is started by
    hand, it counts from the rank's start.
    """
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    job = RunDir(tmp_path / "run").job("20261121-031500-a1b2")
    job.make_folders()
    record = JobRecord(job.job_id, "run", "run", "RUNNING", 10.0, 1, started_at=20.0)
    record.write(job.job_json)
    monkeypatch.delenv("NBTRAIN_JOB", raising=False)
    monkeypatch.delenv("NBTRAIN_ATTEMPT", raising=False)
    assert job_age_seconds(job) == 0.0
    monkeypatch.setenv("NBTRAIN_JOB", job.job_id)
    assert job_age_seconds(job) == 4980.0


def test_a_pause_is_no_time_of_the_job(tmp_path, monkeypatch):
    """Each attempt excludes the time that the job was paused or waited for its devices before it."""
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    job = RunDir(tmp_path / "run").job("20261121-031500-a1b2")
    job.make_folders()
    record = JobRecord(job.job_id, "run", "run", "RUNNING", 10.0, 1, started_at=20.0)
    record.attempts = [AttemptRecord(0, 20.0, 1, 1), AttemptRecord(1, 4900.0, 1, 1, paused_seconds=3600.0)]
    record.write(job.job_json)
    monkeypatch.setenv("NBTRAIN_JOB", job.job_id)
    ages = []
    for attempt in ("0", "1"):
        monkeypatch.setenv("NBTRAIN_ATTEMPT", attempt)
        ages.append(job_age_seconds(job))
    assert ages == [4980.0, 1380.0]
