"""Whether a run that has succeeded still has steps to train: mode: eval succeeds before the last step too."""

import contextlib
from typing import TYPE_CHECKING

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.jobstate import SUCCEEDED
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir

if TYPE_CHECKING:
    from nbtrain.config.schema import RunConfig


def evaluates_early(config: "RunConfig", saved_step: int | None) -> bool:
    """Return whether a job of this configuration evaluates a checkpoint that is not the last step's."""
    return config.mode == "eval" and (saved_step or 0) < config.train_steps


def has_steps_left(run: RunDir, state: str) -> bool:
    """Return whether a run in state SUCCEEDED was only evaluated, before its last step: a resume trains on.

    False for other states, and if the configuration cannot be read. It is read only if rank 0's heartbeat
    does not show the last step, because that takes 10 ms.
    """
    job = run.newest_job() if state == SUCCEEDED else None
    if job is None:
        return False
    with contextlib.suppress(NbtrainError):
        beat = Heartbeat.read(job.heartbeat(0))
        if beat is not None and beat.progress is not None and beat.step >= beat.progress.total_steps:
            return False
        # Imported here, because it loads pydantic.
        from nbtrain.config.load.resolved_cache import kept_config

        return evaluates_early(kept_config(run.config_yaml), newest_checkpoint_step(run))
    return False
