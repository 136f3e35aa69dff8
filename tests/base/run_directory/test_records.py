"""Records written by other versions of nbtrain, and files that are not records."""

import errno
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.node_records import EngineWord, NodeRecord, SignalOrder, SignalOrders
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    Collective,
    ExitRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Rollback,
    Stamp,
    TrainingProgress,
)


def test_an_order_to_single_ranks_comes_back(tmp_path):
    """A signal order is read back unchanged, with a list of processes for some ranks or None for all."""
    orders = SignalOrders([SignalOrder(1, 0, 12, [ProcessIdentity.of(os.getpid())]), SignalOrder(2, 0, 15)])
    orders.write(tmp_path / "signals.json")
    assert SignalOrders.read(tmp_path / "signals.json") == orders


def test_a_process_that_this_user_may_not_see_has_no_identity(monkeypatch):
    """A process that /proc hides (another user's, with hidepid=1) has no identity."""

    def closed(path, *rest, **named):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "read_text", closed)
    assert ProcessIdentity.of(1) is None


def test_records_within_records_come_back(tmp_path):
    """Nested records are read back, such as a heartbeat with its process and progress,
    or a job with its attempts.
    """
    me = ProcessIdentity.of(os.getpid())
    collective = Collective("all_reduce", "data_parallel", [0, 1], 3, 1.0, True)
    beat = Heartbeat(0, 1, me, 1.0, 6, "train", 0.5, TrainingProgress(8, 1024), 3, collective)
    beat.write(tmp_path / "beat.json")
    assert Heartbeat.read(tmp_path / "beat.json") == beat
    job = JobRecord("20261121-031500-a1b2", "id", "run", "RUNNING", 0.0, 2, supervisor=me)
    job.attempts = [AttemptRecord(0, 0.0, 2, 2, faults=[{"step": 6, "do": "nan"}])]
    job.write(tmp_path / "job.json")
    assert JobRecord.read(tmp_path / "job.json") == job
    assert (job.attempt_record(0), job.attempt_record(1)) == (job.attempts[0], None)


def test_a_key_of_a_newer_version_is_passed_over_and_an_older_record_is_filled_up(tmp_path):
    path = tmp_path / "exit.json"
    files.write_json(path, asdict(ExitRecord(0, 0, 1.0, 0, None, "finished")) | {"colour": "blue"})
    assert ExitRecord.read(path).outcome == "finished"
    old = {"attempt": 0, "started_at": 0.0, "world_size": 2, "data_parallel_size": 2}
    assert AttemptRecord.of_json(old) == AttemptRecord(0, 0.0, 2, 2)
    assert ExitRecord.read(tmp_path / "none.json") is None


@pytest.mark.parametrize("value", [{"rank": 0}, [], 3, "x"])
def test_what_is_no_record_is_named(tmp_path, value):
    """The error about a damaged record names its file."""
    path = tmp_path / "0.0.json"
    files.write_json(path, value)
    with pytest.raises(RecordError, match=r"0\.0\.json: is not a ExitRecord"):
        ExitRecord.read(path)


@pytest.mark.parametrize("record", [Heartbeat, NodeRecord, EngineWord])
@pytest.mark.parametrize("content", [b"", b"\0" * 300])
def test_a_renewed_record_that_a_power_cut_has_emptied_counts_as_missing(tmp_path, record, content):
    """If a power cut empties a file, a record that is rewritten often counts as missing, and any other as
    damaged.
    """
    path = tmp_path / "0.json"
    path.write_bytes(content)
    assert record.read(path) is None
    with pytest.raises(RecordError, match=r"0\.json:1: not JSON: Expecting value \(column 1\)"):
        ExitRecord.read(path)
    path.write_text('{"rank":')
    with pytest.raises(RecordError, match=r"0\.json:1: not JSON"):
        record.read(path)


def test_what_is_no_record_within_one_is_named(tmp_path):
    path = tmp_path / "rollbacks.json"
    files.write_json(path, [{"step": 3}])
    with pytest.raises(RecordError, match=r"rollbacks\.json: is not a Rollback"):
        Rollback.read_all(path)
    job = asdict(JobRecord("20261121-031500-a1b2", "id", "run", "RUNNING", 0.0, 2)) | {"supervisor": 4}
    files.write_json(path, job)
    with pytest.raises(RecordError, match=r"rollbacks\.json: is not a ProcessIdentity"):
        JobRecord.read(path)


@pytest.fixture
def marked():
    """Create a job that started at 1000 s of the wall clock."""
    record = JobRecord("20261121-031500-a1b2", "id", "run", "RUNNING", 0.0, 2)
    record.mark("created_at")
    record.mark("ended_at")
    record.created_at = 1000.0
    return record


def test_a_clock_that_was_set_back_changes_no_duration(marked):
    """A measured hour stays an hour if the wall clock is set back by two hours meanwhile."""
    marked.stamps["ended_at"].seconds = marked.stamps["created_at"].seconds + 3600
    marked.ended_at = 1000.0 - 3600
    assert marked.seconds_between("created_at", "ended_at") == pytest.approx(3600)
    marked.stamps["created_at"].seconds -= 60
    assert marked.seconds_since("created_at", now=900.0) == pytest.approx(60, abs=30)


def test_without_stamps_of_one_boot_the_wall_clock_counts(marked):
    """Durations use the wall clock if a record has no boot time or is from another machine or boot."""
    marked.ended_at = 1005.0
    for stamps in ({}, {"created_at": Stamp("another boot", 1.0), "ended_at": marked.stamps["ended_at"]}):
        marked.stamps = stamps
        assert marked.seconds_between("created_at", "ended_at") == 5.0
        assert marked.seconds_since("created_at", now=1007.0) == 7.0
        assert marked.seconds_since("created_at", now=900.0) == 0.0


def test_stamps_survive_the_disk(tmp_path, marked):
    marked.write(tmp_path / "job.json")
    assert JobRecord.read(tmp_path / "job.json").stamps == marked.stamps
