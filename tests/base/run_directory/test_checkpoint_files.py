"""Checkpoints on the nodes' own disks (model/local.json), as the readers of a run directory see them."""

import os
import shutil
import time

import pytest

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import (
    LISTED_LOCAL_SAVES,
    LocalSave,
    LocalSaves,
    local_folder,
    local_run_folder,
    measured_save_seconds,
    newest_saved_step,
    on_nodes_words,
    only_on_nodes,
    step_to_export,
)
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Rollback,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import RunDir

JOB = "20261121-031500-a1b2"


def save(step: int, attempt: int = 0, copied: bool = False) -> LocalSave:
    return LocalSave(step, f"id{step}", ["node-a", "node-b"], JOB, attempt, 0.0, copied)


@pytest.fixture
def run(tmp_path) -> RunDir:
    """Create a run with a complete checkpoint of step 10 in model/."""
    run = RunDir(tmp_path / "run")
    run.checkpoint(10).mkdir(parents=True)
    files.write_json(run.checkpoint_manifest(10), {"schema_version": 2, "files": {}})
    return run


@pytest.mark.parametrize(
    ("saves", "newest"),
    [
        ([], 10),
        ([save(8)], 10),
        ([save(10)], 10),
        ([save(10, copied=True), save(12)], 12),
        ([save(12, copied=True)], 10),
    ],
)
def test_the_newest_step_that_a_resume_may_find(run, saves, newest):
    """A step on the nodes counts if it is newer than every step in model/ and was not copied there."""
    LocalSaves(saves).keep(run)
    assert newest_saved_step(run) == newest
    assert (only_on_nodes(run) is None) == (newest == 10)


def test_an_export_takes_the_newest_checkpoint_that_is_not_being_saved(run, workspace):
    """An export passes over a checkpoint that the job is just saving and refuses a torn one; without any, it
    has the weights that the run started from.
    """

    def said(has_start: bool = False) -> str:
        with pytest.raises(CheckpointError) as refused:
            step_to_export(run, has_start, time.time())
        return str(refused.value)

    run.checkpoint(12).mkdir()
    assert said().endswith(
        "the newest checkpoint is not complete (global_step12: manifest.json is missing: the save was "
        "interrupted). Pass `--step 10` to export the newest complete checkpoint."
    )
    job, now = run.job(JOB), time.time()
    attempt = AttemptRecord(attempt=0, started_at=now - 50, world_size=1, data_parallel_size=1)
    supervisor = ProcessIdentity.of(os.getpid())
    job.make_folders()
    record = JobRecord(JOB, "a", "run", "RUNNING", now, 1, supervisor=supervisor, attempts=[attempt])
    record.write(job.job_json)
    assert step_to_export(run, False, now) == step_to_export(run, True, now) == 10
    shutil.rmtree(run.checkpoint(10))
    assert step_to_export(run, True, now) == 0
    assert said().endswith("Train the run first.\n  global_step12: is being saved by the running job")
    os.utime(run.checkpoint(12), (now - 99, now - 99))
    assert "contains no complete checkpoint" in said() and said(True) == said()
    shutil.rmtree(run.checkpoint(12))
    assert step_to_export(run, True, now) == 0
    assert said().endswith("model contains no checkpoint. Train the run first.")


def test_a_save_that_is_copied_meanwhile_is_found(run, monkeypatch):
    """A save that is copied between the reading of the list and of model/ counts, in either place."""
    LocalSaves([save(12)]).keep(run)
    read = LocalSaves.of

    def copied(run: RunDir) -> LocalSaves:
        run.checkpoint(12).mkdir()
        files.write_json(run.checkpoint_manifest(12), {"schema_version": 2, "files": {}})
        LocalSaves([save(12, copied=True)]).keep(run)
        return read(run)

    monkeypatch.setattr(LocalSaves, "of", copied)
    assert newest_saved_step(run) == 12


def test_a_rollback_goes_back_to_what_counts(run):
    """A rollback invalidates earlier saves on the nodes, but not saves of a later attempt."""
    rollback = Rollback(JOB, 1, 0.0, 13, 10, 40, 52, "NaN")
    rollback.append(run.rollbacks_json)
    LocalSaves([save(12, attempt=1)]).keep(run)
    assert only_on_nodes(run) is None and on_nodes_words(run) == ""
    LocalSaves([save(12, attempt=2)]).keep(run)
    assert on_nodes_words(run) == (
        "the checkpoint of step 12 is only on the local disks of node-a, node-b (checkpoint.local_dir): to "
        "continue from it, resume on the same nodes"
    )


def test_the_list_is_bounded(run):
    """The list keeps only the newest saves."""
    LocalSaves([save(step) for step in range(20, 200)]).keep(run)
    assert [one.step for one in LocalSaves.of(run).saves] == list(range(200 - LISTED_LOCAL_SAVES, 200))


def test_the_folder_of_a_node(run):
    """The folder's pattern is filled in with the node's number and name; a run has a folder in it, by its
    name and id.
    """
    pattern = "/nvme/{host}/n{node}"
    assert str(local_folder(pattern, 3, "gpu-7")) == "/nvme/gpu-7/n3"
    assert str(local_run_folder(pattern, 3, "gpu-7", run)) == f"/nvme/gpu-7/n3/{run.name}-"
    files.write_json(run.run_json, {"run_id": "4be1"})
    assert str(local_run_folder(pattern, 3, "gpu-7", run)) == f"/nvme/gpu-7/n3/{run.name}-4be1"


def test_the_longest_save_of_all_jobs_is_remembered(tmp_path):
    """The longest measured save of all jobs is returned; a job that measured none is ignored."""
    run = RunDir(tmp_path / "gpt")
    assert measured_save_seconds(run) == 0.0
    for number, seconds in enumerate((4.5, None, 2.0)):
        job = run.job(f"20260101-00000{number}-aaaa")
        job.make_folders()
        progress = TrainingProgress(total_steps=10, train_tokens=100, save_seconds=seconds)
        identity = ProcessIdentity.of(os.getpid())
        Heartbeat(0, 0, identity, 1.0, 5, "train", 1.0, progress).write(job.heartbeat(0))
    assert measured_save_seconds(run) == 4.5
