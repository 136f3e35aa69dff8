"""The final record of a job whose run directory became unwritable, and who may write it."""

import os
import tempfile
import time

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory import final_record, observed_state
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import RunDir, new_job_id


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Create a temporary folder that other users can write to, like /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def job(workspace):
    """Create a job whose job.json says RUNNING and whose supervisor is dead."""
    job = RunDir.named("tiny").job(new_job_id())
    job.make_folders()
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    JobRecord(job.job_id, "run", "tiny", "RUNNING", time.time(), 1, supervisor=gone).write(job.job_json)
    return job


def ended(job):
    record = JobRecord.read(job.job_json)
    record.state, record.cause = "FAILED", "the run directory is on a read-only disk"
    return record


def test_status_reports_the_final_record(job, temporary):
    """The status is the recorded end instead of LOST, until a newer job of the run removes the record."""
    assert observed_state.read_state(job, time.time())[0] == "LOST"
    path = final_record.keep(ended(job))
    assert path.parent == temporary / f"nbtrain-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert observed_state.read_state(job, time.time()) == (
        "FAILED",
        "the run directory is on a read-only disk",
    )
    final_record.forget(ended(job))
    assert observed_state.read_state(job, time.time())[0] == "LOST"


def test_what_job_json_says_itself_counts_more(job, temporary):
    final_record.keep(ended(job))
    record = JobRecord.read(job.job_json)
    record.state, record.cause = "SUCCEEDED", "done"
    record.write(job.job_json)
    assert observed_state.read_state(job, time.time()) == ("SUCCEEDED", "done")


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
def test_a_folder_that_others_could_have_made_is_not_used(job, temporary, tmp_path, trap):
    """A folder that another user could have created is neither written to nor read."""
    path = final_record.keep(ended(job))
    folder, real = path.parent, tmp_path / "real"
    if trap == "open to others":
        folder.chmod(0o777)
    else:
        folder.rename(real)
        folder.symlink_to(real) if trap == "a link" else folder.write_text("")
    assert final_record.read(ended(job)) is None
    assert final_record.keep(ended(job)) is None
    assert observed_state.read_state(job, time.time())[0] == "LOST"


def test_words_about_another_job_and_damaged_ones_are_not_believed(job, temporary):
    other = ended(job)
    other.run_id = "../../another"
    assert final_record.keep(other).parent.parent == temporary
    assert final_record.read(ended(job)) is None
    path = final_record.keep(ended(job))
    path.write_text("{")
    assert final_record.read(ended(job)) is None
    other.write(path)
    assert final_record.read(ended(job)) is None


def test_a_lost_job_on_a_read_only_disk_says_so(job, temporary, monkeypatch):
    """The cause of a LOST job mentions that its disk is read-only, even without a final record."""
    monkeypatch.setattr(observed_state, "is_read_only", lambda folder: True)
    state, cause = observed_state.read_state(job, time.time())
    assert state == "LOST"
    assert cause.endswith(
        "(killed, out of memory, or the machine was restarted); output/tiny is on a read-only disk"
    )


def test_this_disk_can_be_written(tmp_path):
    assert not files.is_read_only(tmp_path)
