"""The job tabs in the panel: replicas, ranks, logs, and times in the reader's time zone."""

from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base.run_directory.records import AttemptRecord, ExitRecord, Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.job.job_description import basics
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.job.job_tables import RANK_HEADS, REPLICA_HEADS, job_tables
from tests.lab.widgets.fake_run import FakeJob, measure


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=2)
    for _ in range(3):
        job.one_step()
    measure(job, gpu=True)
    job.job.log(1, 0).write_text("")
    job.job.log(1, 1).write_text("")
    job.job.supervisor_log.write_text("started\n")
    return job


def test_a_replica_names_its_place_its_use_and_its_logs(job: FakeJob) -> None:
    """A replica shows its host, its resource usage and its logs: first its ranks' logs, newest attempt first,
    and then its agent's.
    """
    (row,) = job_tables(job.run)["replicas"]["rows"]
    cells = dict(zip(REPLICA_HEADS, row["cells"], strict=True))
    assert cells["host"] and (cells["replica"], cells["role"], cells["ranks"]) == (
        "worker 0",
        "worker 0",
        "0 to 1",
    )
    assert (cells["CPU"], cells["memory"]) == ("2.00 of 4.00", "5.0 GiB of 8.0 GiB")
    assert cells["GPUs"] == "1 x H100, 90 % busy"
    assert row["logs"] == [
        ["0", 0, "rank 0"],
        ["1", 1, "rank 1, attempt 1"],
        ["supervisor", None, "supervisor"],
    ]


def test_a_rank_says_how_it_ended_and_has_all_its_logs(job: FakeJob) -> None:
    job.finish("FAILED", "rank 1 failed: boom")
    shown = job_tables(job.run)
    ranks = [dict(zip(RANK_HEADS, row["cells"], strict=True)) for row in shown["ranks"]["rows"]]
    assert [(rank["rank"], rank["phase"], rank["step"], rank["exit code"]) for rank in ranks[:1]] == [
        ("0", "Error", "3", "1")
    ]
    assert shown["ranks"]["rows"][0]["kind"] == "bad"
    assert [log[2] for log in shown["ranks"]["rows"][1]["logs"]] == [
        "rank 1, attempt 1",
        "rank 1, attempt 0",
    ]
    assert [log[2] for log in shown["logs"]] == [
        *("rank 0", "rank 1, attempt 1", "rank 1, attempt 0", "supervisor"),
    ]


def test_of_many_logs_the_newest_of_every_rank_can_be_chosen(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in range(1, 4):
        job.job.log(0, attempt).write_text("")
    monkeypatch.setattr("nbtrain.monitor.job.job_tables.MOST_LOGS", 4)
    assert [log[2] for log in job_tables(job.run)["logs"]] == [
        *("rank 0, attempt 3", "rank 1, attempt 1", "rank 0, attempt 2", "rank 1, attempt 0"),
        "supervisor",
    ]


def test_times_are_numbers_for_the_readers_zone(job: FakeJob) -> None:
    """Times are sent as numbers and formatted in the reader's time zone; static pictures show them in UTC."""
    shown = job_tables(job.run)
    assert shown["times"] == {"submitted": job.record.created_at}
    basics = dict(shown["basics"])
    assert basics["submitted"].endswith(" UTC")
    assert basics["command"].startswith("python ") and basics["command"].endswith(f" {job.run.path}")
    assert (basics["replicas"], basics["restart policy"]) == (
        "1 x worker: 1 Running",
        "restarts from the newest checkpoint after a failure, at most 3 times",
    )
    job.finish("SUCCEEDED", "done")
    assert set(job_tables(job.run)["times"]) == {"submitted", "ended"}


def test_the_cost_of_the_run_is_shown_once(job: FakeJob) -> None:
    """A page of the run shows the job's facts next to its own, which have the cost already."""
    begin = job.record.created_at
    job.record.attempts = [AttemptRecord(0, begin, 2, 1, running_at=begin)]
    job.record.write(job.job.job_json)
    page = dict(basics(describe_job(job.run, now=begin + 3600)))
    assert page["cost of the run"].startswith("2 process hours, goodput ")
    shown = dict(job_tables(job.run, now=begin + 3600)["basics"])
    assert page.keys() - shown.keys() == {"cost of the run"}


def test_a_fault_has_a_row_with_its_cost(job: FakeJob) -> None:
    begin = job.record.created_at
    cause = "rank 1 was killed by SIGKILL"
    job.record.attempts = [
        AttemptRecord(0, begin, 2, 1, running_at=begin, ended_at=begin + 60, reached_step=10, cause=cause),
        AttemptRecord(1, begin + 60, 2, 1, first_step=6, running_at=begin + 90, resumed_from_step=6),
    ]
    job.record.write(job.job.job_json)
    found = job_tables(job.run, now=begin + 3600)["faults"]
    (row,) = found["rows"]
    cells = dict(zip(found["heads"][1:], row["cells"], strict=True))
    assert row["time"] == begin + 60 and (cells["attempt"], cells["cause"]) == ("0", cause)
    assert cells["cost"].startswith("4 steps trained again (")


def test_the_strip_compares_each_rank_with_the_median(job: FakeJob) -> None:
    """State, computing time and memory of each rank, with the slowest rank by name."""
    for rank, seconds in ((0, 0.1), (1, 0.4)):
        beat = Heartbeat.read(job.job.heartbeat(rank))
        replace(beat, attempt=rank, compute_seconds=seconds).write(job.job.heartbeat(rank))
    ended = ExitRecord(1, 1, 10.0, 1, None, "failed", 3, "boom")
    ended.write(job.job.exit_record(1, 1))
    strip = job_tables(job.run)["strip"]
    assert strip["measures"][:2] == [
        ["state", "state", "1 Running, 1 Error"],
        ["seconds", "computing time", "median 0.250 s, lowest 0.100 s (rank 0), highest 0.400 s (rank 1)"],
    ]
    first, second = strip["cells"]
    assert (
        first["words"] == "rank 0: Running (training), step 3, 0.100 s of compute per step, 2.5 GiB of memory"
    )
    assert (first["tone"], first["levels"]["seconds"], first["levels"]["memory"]) == ("live", -1.0, 0.0)
    assert (second["tone"], second["message"]) == ("bad", "exit code 1: boom")
    assert second["texts"]["seconds"] == "0.400 s" and second["levels"]["seconds"] == 1.0
