"""Following the checkpoints of a run while it trains, until it ends."""

import pytest

from nbtrain.api.follow import POLL_SECONDS, each_checkpoint
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.rundir import RunDir


def followed(tmp_path, looks, act=lambda step: step):
    """Follow a run that reports the states `looks` one after another; return the results of `act` and the
    waits.
    """
    waits = []
    seen = iter(looks)
    steps = each_checkpoint(RunDir(tmp_path / "run"), act, lambda run: next(seen), waits.append)
    return list(steps), waits


def test_each_checkpoint_once_and_the_last_one_after_the_end(tmp_path):
    """Each look visits the newest checkpoint unless it was visited before; the last one
    is visited after the run ends.
    """
    looks = [(True, None), (True, 10), (True, 10), (True, 40), (False, 50), (False, 50)]
    assert followed(tmp_path, looks) == ([10, 40, 50], [POLL_SECONDS] * 2)


def test_an_ended_run_is_done_once(tmp_path):
    assert followed(tmp_path, [(False, 7), (False, 7)]) == ([7], [])


def test_a_checkpoint_that_was_pruned_meanwhile_is_passed_over(tmp_path):
    def act(step):
        if step == 10:
            raise CheckpointError("gone")
        return step

    assert followed(tmp_path, [(True, 10), (True, 20), (True, 20), (False, 20)], act) == ([20], [])


def test_other_errors_are_raised(tmp_path):
    """An unreadable newest checkpoint raises an error, and so does a run that never saved one."""

    def act(step):
        raise CheckpointError("torn")

    with pytest.raises(CheckpointError, match="torn"):
        followed(tmp_path, [(True, 10), (True, 10)], act)
    with pytest.raises(CheckpointError) as error:
        followed(tmp_path, [(True, None), (False, None)])
    assert str(error.value) == "run has ended without a complete checkpoint."
