"""What a checkpoint needs before it is written."""

import collections
import shutil

import pytest
import torch

from nbtrain.base.rundir import RunDir
from nbtrain.checkpoint.checkpointer import Checkpointer
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.load import load
from nbtrain.parallel.startup import World

Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture
def checkpointer(tmp_path):
    world = World(0, 1, 0, torch.device("cpu"))
    return Checkpointer(RunDir(tmp_path / "run"), load("gpt-tiny"), None, world, None, None)


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(checkpointer, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 12_345_678))
    run = checkpointer.run
    needed = checkpoint_room_bytes(checkpointer.config)
    assert checkpointer._prepare(run.checkpoint(10)) == (
        f"{run.model}: a checkpoint needs {needed / 1e9:.2f} GB and 0.01 GB are free. Free space, or lower "
        "checkpoint.keep_last; then resume the run."
    )
    assert run.checkpoint_steps() == []


def test_a_torn_folder_of_the_same_step_makes_room(checkpointer):
    folder = checkpointer.run.checkpoint(10)
    folder.mkdir(parents=True)
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"half")
    assert checkpointer._prepare(folder) is None
    assert not folder.exists()
