"""Which checkpoints count as complete, and which are kept."""

import errno
import json
import os
import shutil

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step, newest_whole
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.jobs.attempt import leftovers


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "it's a run")


def write(run: RunDir, step: int, content: bytes = b"weights") -> None:
    folder = run.checkpoint(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "offloaded_tensors.swp").write_bytes(content)
    described = manifests.describe(folder, manifests.payload(folder))
    files.write_json(folder / "manifest.json", {"schema_version": 2, "step": step, "files": described})


def test_a_written_checkpoint_is_whole(run):
    write(run, 10)
    assert manifests.problem(run.checkpoint(10)) is None
    assert newest_whole(run, manifests.problem) == (10, [])


@pytest.mark.parametrize(
    "damage, reason",
    [
        (
            lambda folder: (folder / "manifest.json").unlink(),
            "manifest.json is missing: the save was interrupted",
        ),
        (lambda folder: (folder / "manifest.json").write_text('{"schema'), "manifest.json is not JSON"),
        (
            lambda folder: (folder / "manifest.json").write_text(json.dumps({"schema_version": 9})),
            "manifest.json has schema_version 9, but this nbtrain reads 2",
        ),
        (
            lambda folder: (folder / "offloaded_tensors.swp").unlink(),
            "offloaded_tensors.swp is missing",
        ),
        (
            lambda folder: (folder / "offloaded_tensors.swp").write_bytes(b"wei"),
            "offloaded_tensors.swp has 3 bytes, but manifest.json lists 7",
        ),
        (
            lambda folder: (folder / "offloaded_tensors.swp").write_bytes(b"weighty"),
            "offloaded_tensors.swp does not have the SHA-256 in its manifest",
        ),
    ],
)
def test_a_torn_checkpoint_is_passed_over_with_its_reason(run, damage, reason):
    write(run, 10)
    write(run, 20)
    damage(run.checkpoint(20))
    assert newest_whole(run, manifests.problem) == (10, [(20, reason)])


NO_SHA256 = '{"schema_version": 2, "files": {"offloaded_tensors.swp": {"bytes": 7}}}'


@pytest.mark.parametrize(
    "content", ["[]", '{"schema_version": 2}', '{"schema_version": 2, "files": {"a": 1}}', NO_SHA256]
)
def test_a_manifest_of_another_form_is_reported(run, content):
    write(run, 10)
    write(run, 20)
    run.checkpoint_manifest(20).write_text(content)
    found, [(step, reason)] = newest_whole(run, manifests.problem)
    assert (found, step) == (10, 20)
    assert reason in (
        "manifest.json must be a JSON object, not list",
        "manifest.json does not list the size and SHA-256 of each file",
    )
    assert newest_checkpoint_step(run) == 10


def test_a_rejected_checkpoint_counts_no_more_and_keeps_its_files(run):
    """A rejected checkpoint keeps its files but counts no longer, until it is saved again."""
    for step in (10, 20, 30):
        write(run, step)
    manifests.reject(run.checkpoint(30), "its weights rot")
    assert newest_whole(run) == (20, [(30, "its weights rot")])
    assert newest_checkpoint_step(run) == 20
    leftovers.sweep(run, since=0.0)
    assert (run.checkpoint(30) / "offloaded_tensors.swp").exists()
    assert manifests.prune(run, 20, keep_last=2, keep_every_steps=None) == []
    assert run.checkpoint_steps() == [10, 20, 30]
    write(run, 30)
    assert newest_whole(run, manifests.problem) == (30, [])


class RunsCode:
    """A class that runs os.mkdir when its pickle is loaded."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize(
    "options", [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}], ids=str
)
def test_a_checkpoint_that_holds_code_is_not_loaded(run, tmp_path, options):
    """A checkpoint that contains code is refused even if its manifest is right; torch's
    advice to allow it is omitted.
    """
    write(run, 10)
    write(run, 20)
    path = run.checkpoint(20) / "mp_rank_00_model_states.pt"
    torch.save({"module": {"weight": torch.ones(3)}, "more": RunsCode(tmp_path / "made")}, path, **options)
    described = manifests.describe(run.checkpoint(20), manifests.payload(run.checkpoint(20)))
    files.write_json(run.checkpoint_manifest(20), {"schema_version": 2, "step": 20, "files": described})
    newest, [(step, reason)] = newest_whole(run, manifests.problem)
    assert (newest, step) == (10, 20)
    assert reason.startswith("mp_rank_00_model_states.pt holds code ") or options
    assert reason.startswith("mp_rank_00_model_states.pt ") and reason.endswith("; not loaded")
    assert "weights_only" not in reason
    with pytest.raises(CheckpointError, match="; not loaded") as refused:
        load_model_weights(run.path, 20)
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "made").exists()


def test_a_step_that_was_never_saved(run):
    """A step that was never saved is reported differently from an interrupted save."""
    assert manifests.problem(run.checkpoint(7)) == "there is no such checkpoint"


def test_no_whole_checkpoint(run):
    assert newest_whole(run, manifests.problem) == (None, [])
    run.checkpoint(5).mkdir(parents=True)
    assert newest_whole(run, manifests.problem) == (
        None,
        [(5, "manifest.json is missing: the save was interrupted")],
    )


@pytest.mark.parametrize(
    "keep_last, keep_every_steps, left", [(1, None, [50]), (2, None, [40, 50]), (1, 20, [20, 40, 50])]
)
def test_pruning_keeps_the_newest_and_the_multiples(run, keep_last, keep_every_steps, left):
    for step in (10, 20, 30, 40, 50):
        write(run, step)
    run.checkpoint(45).mkdir()
    removed = manifests.prune(run, 50, keep_last, keep_every_steps)
    assert run.checkpoint_steps() == left
    assert sorted(removed) == sorted({10, 20, 30, 40, 45, 50} - set(left))


def test_a_folder_that_somebody_reads_does_not_undo_the_new_checkpoint(run, monkeypatch):
    """A pruned checkpoint counts no longer, even if its folder cannot be removed
    because a process reads it over NFS.
    """
    for step in (10, 20):
        write(run, step)
    remove = shutil.rmtree

    def stubborn(path, ignore_errors=False):
        (path / ".nfs0001").touch()
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(manifests.shutil, "rmtree", stubborn)
    assert manifests.prune(run, 20, 1, None) == [10]
    assert not run.checkpoint_manifest(10).exists() and newest_checkpoint_step(run) == 20
    monkeypatch.setattr(manifests.shutil, "rmtree", remove)
    assert manifests.prune(run, 20, 1, None) == [10]
    assert run.checkpoint_steps() == [20]


def test_the_best_one_stays(run):
    """The checkpoint with the lowest loss measured at its own step is kept; a loss of NaN does not count."""
    for step, loss, at in (
        (10, 2.0, 8),
        (20, 3.0, 20),
        (30, 2.5, 30),
        (40, float("nan"), 40),
        (50, 2.5, 50),
        (60, 4.0, 60),
    ):
        write(run, step)
        path = run.checkpoint_manifest(step)
        manifest = {**files.read_json(path), "validation_loss": loss, "evaluated_step": at}
        files.write_json(path, manifest)
    assert manifests.prune(run, 60, 1, None, keep_best=True) == [10, 20, 30, 40]
    assert run.checkpoint_steps() == [50, 60]


def test_pruning_leaves_newer_folders_alone(run):
    """Pruning keeps folders of newer steps, which a run that resumed from an older step overwrites later."""
    write(run, 10)
    run.checkpoint(30).mkdir()
    assert manifests.prune(run, 10, 1, None) == []
