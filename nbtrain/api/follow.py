"""Calls a function for each checkpoint that a run saves, until the run ends."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.status.status_records import read_status

POLL_SECONDS = 5.0

Found = TypeVar("Found")


def each_checkpoint(
    run: RunDir,
    act: Callable[[int], Found],
    looks: Callable[[RunDir], tuple[bool, int | None]] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Found]:
    """Yield the result of `act` for the newest checkpoint, and for each newer one once it is complete.

    If several checkpoints were saved during a call of `act`, only the newest of them is used next. The
    iterator ends when the run's newest job has ended and its last checkpoint was used. Raises CheckpointError
    if the run saved no checkpoint. `looks` returns whether the run is active, and the step of its newest
    checkpoint or None.
    """
    look, done = looks or _look, -1
    while True:
        # Read the state first, because a job saves before it ends.
        is_active, newest = look(run)
        if newest is not None and newest > done:
            try:
                found = act(newest)
            except CheckpointError:
                # The job may have replaced this checkpoint with a newer one; otherwise the error is real.
                if look(run)[1] == newest:
                    raise
                continue
            done = newest
            yield found
        elif not is_active:
            break
        else:
            wait(POLL_SECONDS)
    if done < 0:
        raise CheckpointError(f"{run.name} has ended without a complete checkpoint.")


def _look(run: RunDir) -> tuple[bool, int | None]:
    is_active = read_status(run, time.time()).active
    return is_active, newest_checkpoint_step(run)
