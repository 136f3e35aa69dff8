"""The number of checkpoints that a run saves, compared with a count by the trainer's loop."""

import pytest

from nbtrain.config.arithmetic.saves import local_saves, shared_saves
from nbtrain.config.load import load


def trainers_saves(steps: int, interval: int, local: int, after: int) -> tuple[int, int]:
    """Count the saves of train/trainer.py after a step, step by step."""
    shared = own = 0
    for step in range(after + 1, steps + 1):
        if step == steps or step % interval == 0:
            shared += 1
        elif step % local == 0:
            own += 1
    return shared, own


@pytest.mark.parametrize(
    ("steps", "interval", "local"), [(100, 20, 10), (95, 20, 19), (61, 15, 4), (12, 50, 5)]
)
def test_each_step_is_saved_once(steps, interval, local):
    """A step that is due for both intervals, and the last step, is one save in the run directory."""
    overrides = {
        "batch.max_steps": steps,
        "checkpoint.save_interval_steps": interval,
        "checkpoint.local_dir": "/local",
        "checkpoint.local_save_interval_steps": local,
    }
    config = load("gpt-tiny", overrides)
    for after in range(steps + 1):
        expected = trainers_saves(steps, interval, local, after)
        assert (shared_saves(config, after), local_saves(config, after)) == expected


def test_modes_without_checkpoints_save_none():
    """Only mode: full saves, and only checkpoint.local_dir makes saves on the nodes' disks."""
    assert shared_saves(load("gpt-tiny", {"mode": "perf"})) == 0
    assert local_saves(load("gpt-tiny")) == 0
