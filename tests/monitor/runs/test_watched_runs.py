"""The cached list of runs: which runs are read again, and the text of the rows."""

import json
import os
import time

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.monitor.runs import watched_runs
from nbtrain.monitor.runs.watched_runs import WatchedRuns
from nbtrain.monitor.status.notes import change_notes
from nbtrain.monitor.status.run_status import UNKNOWN


@pytest.fixture
def root(workspace):
    return workspace / "output"


def made(name, state, seconds_ago=60.0):
    """Create a run whose newest job was written `seconds_ago`, also according to the modification times of
    its files.
    """
    run = RunDir.named(name)
    submit(run, state, seconds_ago)
    files.write_json(run.run_json, {"schema_version": 1, "run_id": name, "name": name, "created_at": 1.0})
    aged(run, seconds_ago)
    return run


def submit(run, state, seconds_ago):
    created = time.time() - seconds_ago
    job = run.job(new_job_id(created))
    job.make_folders()
    alive = ProcessIdentity.of(os.getpid())
    record = JobRecord(job.job_id, run.name, run.name, state, created, 1, "why", supervisor=alive)
    record.ended_at = None if state == "RUNNING" else created + 1
    record.write(job.job_json)


def aged(run, seconds_ago):
    for path in (run.path, run.jobs, *run.jobs.iterdir()):
        stamp = time.time() - seconds_ago
        os.utime(path, (stamp, stamp))


def states(watched):
    watched.expire()
    return {row["name"]: row["state"] for row in json.loads(watched.answer())["runs"]}


def test_only_what_has_changed_is_read(root, monkeypatch):
    """An ended run is read only once until its jobs or notes change; an active or recently ended run is read
    each time.
    """
    ended, _, young = made("ended", "FAILED"), made("active", "RUNNING"), made("young", "FAILED", 0.5)
    reads = []
    read = watched_runs.listed_status
    monkeypatch.setattr(
        watched_runs, "listed_status", lambda root, name, now: reads.append(name) or read(root, name, now)
    )
    watched = WatchedRuns(root)
    assert states(watched) == {"ended": "FAILED", "active": "RUNNING", "young": "FAILED"}
    reads.clear()
    states(watched)
    assert reads == ["active", "young"]
    change_notes(ended, notes="a word")
    states(watched)
    assert "a word" in watched.answer() and reads.count("ended") == 1
    submit(ended, "SUCCEEDED", 10.0)
    assert states(watched)["ended"] == "SUCCEEDED"
    aged(young, 60.0)
    states(watched)
    reads.clear()
    states(watched)
    assert "young" not in reads


def test_answers_are_shared_for_a_moment(root, monkeypatch):
    """Several lists share one reading for a short time; a change made by this process is shown at once."""
    monkeypatch.setattr(watched_runs, "ANSWER_AGE_SECONDS", 600.0)
    made("one", "FAILED")
    watched = WatchedRuns(root)
    assert json.loads(watched.answer())["runs"]
    made("two", "FAILED", 30.0)
    assert len(json.loads(watched.answer())["runs"]) == 1
    watched.expire()
    assert [row["name"] for row in json.loads(watched.answer())["runs"]] == ["two", "one"]


def test_a_state_that_is_not_known_costs_no_other_run(root):
    made("known", "FAILED")
    made("later", "MIGRATING")
    assert states(WatchedRuns(root)) == {"known": "FAILED", "later": "MIGRATING"}


def test_rows_are_in_words_and_by_archive(root):
    """Rows contain text and come newest first. Unknown values are a dash, and a run without a job says so."""
    run = made("old", "CANCELLED", 100.0)
    change_notes(run, archived=True)
    made("new", "RUNNING", 50.0)
    fresh = RunDir.named("fresh")
    fresh.path.mkdir()
    files.write_json(fresh.run_json, {"schema_version": 1, "run_id": "f", "name": "fresh", "created_at": 1.0})
    (root / ".new.1.deleted").mkdir()
    (root / "file").write_text("")
    rows = json.loads(WatchedRuns(root).answer())["runs"]
    assert [row["name"] for row in rows] == ["new", "old", "fresh"]
    words = dict.fromkeys(("step", "loss", "validation_loss"), UNKNOWN)
    assert rows[0]["words"] == {**words, "eta": "", "size": "1 rank"}
    assert [row["meaning"] for row in rows] == [
        "the ranks are training",
        "stopped on request; can be resumed",
        "no job was submitted",
    ]
    assert [row["name"] for row in json.loads(WatchedRuns(root).answer(True))["runs"]] == ["old"]
    assert [row["name"] for row in json.loads(WatchedRuns(root).answer(False))["runs"]] == ["new", "fresh"]
    change_notes(RunDir.named("new"), archived=True)
    assert [row["name"] for row in json.loads(WatchedRuns(root).answer(False))["runs"]] == ["new", "fresh"]
    assert [row["name"] for row in json.loads(WatchedRuns(root).answer(True))["runs"]] == ["new", "old"]


def test_without_a_root(tmp_path):
    """If the output directory does not exist yet, the list is empty."""
    value = json.loads(WatchedRuns(tmp_path / "none").answer())
    assert value["runs"] == [] and len(value["run_root_id"]) == 16
