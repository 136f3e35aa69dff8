"""Conditions under which a checkpoint is written."""

import collections
import errno
import shutil
from types import SimpleNamespace

import pytest

from nbtrain.base.errors import CheckpointError, DiskFullError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint import save
from nbtrain.checkpoint.save import make_room
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.load import load

Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "run")


def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(run, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 12_345_678))
    config = load("gpt-tiny")
    needed = checkpoint_room_bytes(config)
    error = make_room(run, config, run.checkpoint(10))
    # The supervisor recognizes a full disk by this class.
    assert type(error) is DiskFullError and error.exit_code == CheckpointError.exit_code
    for part in (f"needs {needed / 1e9:.2f} GB", "0.01 GB is free", "checkpoint.keep_last"):
        assert part in str(error)
    assert run.checkpoint_steps() == []


def test_a_torn_folder_of_the_same_step_makes_room(run):
    folder = run.checkpoint(10)
    folder.mkdir(parents=True)
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"half")
    assert make_room(run, load("gpt-tiny"), folder) is None
    assert not folder.exists()


def test_no_collective_waits_for_a_slow_copy(monkeypatch):
    """Ranks synchronize every few seconds during a slow copy, so that no collective operation times out."""
    answers, asked = [False, False, True], []
    saving = SimpleNamespace(
        is_written=lambda seconds: answers.pop(0), wait_published=lambda: None, error=None, folder=None
    )
    monkeypatch.setattr(save, "gather_objects", lambda mine: asked.append(mine) or [mine])
    monkeypatch.setattr(save, "broadcast_object", lambda mine: mine)
    saver = object.__new__(save.Saver)
    saver.live = SimpleNamespace(world=SimpleNamespace(rank=0))
    saver._local, saver._saved, saver._in_flight = None, None, saving
    saver.finish()
    assert asked == [False, False, True, None]


def test_a_leftover_that_cannot_be_removed_is_a_message(run, monkeypatch):
    """If rank 0 cannot remove an old folder, all ranks receive the error instead of waiting."""
    folder = run.checkpoint(10)
    folder.mkdir(parents=True)

    def busy(path):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(save.shutil, "rmtree", busy)
    error = make_room(run, load("gpt-tiny"), folder)
    assert type(error) is CheckpointError
    assert str(error) == f"{folder}: the files of an earlier save cannot be removed: Directory not empty."


@pytest.mark.parametrize("counts", [False, True])
def test_what_counts_is_not_removed_by_an_error_that_comes_later(run, counts, monkeypatch):
    """A checkpoint that already has its manifest is kept if a later operation fails; any other is removed."""
    folder = run.checkpoint(10)
    folder.mkdir(parents=True)
    monkeypatch.setattr(
        save.manifests, "size_problem", lambda _: None if counts else "it has no manifest.json"
    )
    monkeypatch.setattr(save, "gather_objects", lambda mine: [mine])
    monkeypatch.setattr(save, "broadcast_object", lambda mine: mine)
    saver = object.__new__(save.Saver)
    saver.live = SimpleNamespace(world=SimpleNamespace(rank=0), run=run)
    saver._local, saver._saved = None, None
    saver._in_flight = SimpleNamespace(
        is_written=lambda seconds: True, wait_published=lambda: "no space", error=None, folder=folder
    )
    with pytest.raises(
        CheckpointError, match=r"could not be written: no space\. It would have been the first"
    ):
        saver.finish()
    assert folder.exists() == counts
