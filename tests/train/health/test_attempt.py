"""A rank reads its attempt's settings from job.json."""

import pytest

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, to_yaml
from nbtrain.train.health.attempt import find_job, this_attempt

JOBS = ("20261121-031500-a1b2", "20261121-031501-a1b2")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Create a run with two jobs, the first of which has two attempts."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    env = {"NBTRAIN_FAULTS": '[{"step": 1, "do": "nan"}]'}
    run.config_yaml.write_text(to_yaml(load("gpt-tiny", {"backend.env": env})))
    for job_id in JOBS:
        run.job(job_id).make_folders()
    attempts = [AttemptRecord(0, 0.0, 4, 4), AttemptRecord(1, 0.0, 2, 2, faults=[{"step": 9, "do": "kill"}])]
    record = JobRecord(JOBS[0], "id", "run", "RUNNING", 0.0, 2, attempts=attempts)
    record.write(run.job(JOBS[0]).job_json)
    monkeypatch.delenv("NBTRAIN_JOB", raising=False)
    monkeypatch.delenv("NBTRAIN_ATTEMPT", raising=False)
    return run


def test_the_record_of_the_attempt_decides(run, monkeypatch):
    """The attempt's record in job.json takes precedence over environment variables and over the previous
    attempt.
    """
    monkeypatch.setenv("NBTRAIN_JOB", JOBS[0])
    monkeypatch.setenv("NBTRAIN_ATTEMPT", "1")
    monkeypatch.setenv("NBTRAIN_FAULTS", '[{"step": 2, "do": "stop"}]')
    assert this_attempt(run) == AttemptRecord(1, 0.0, 2, 2, faults=[{"step": 9, "do": "kill"}])


def test_a_rank_started_by_hand_goes_by_the_configuration(run):
    """A rank that a user starts by hand belongs to the newest job, which has no attempts, and uses the run's
    configuration.
    """
    assert find_job(run).job_id == JOBS[1]
    attempt = this_attempt(run)
    assert (attempt.attempt, attempt.data_parallel_size) == (0, 1)
    assert attempt.faults == [{"step": 1, "do": "nan"}]


def test_a_run_without_a_job_says_what_makes_one(tmp_path):
    with pytest.raises(JobError, match=r"has no job\. Run `nbtrain submit"):
        find_job(RunDir(tmp_path))
