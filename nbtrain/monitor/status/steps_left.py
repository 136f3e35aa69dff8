"""Whether a run that succeeded still has steps to train, as after mode: eval on an earlier checkpoint."""

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
    """Return whether a job with this configuration only evaluates a checkpoint before the last step."""
    return config.mode == "eval" and (saved_step or 0) < config.train_steps


def has_steps_left(run: RunDir, state: str) -> bool:
    """Return whether a SUCCEEDED run was only evaluated before its last step, so a resume can train it.

    Returns False for other states and if the configuration cannot be read. The configuration is read only if
    rank 0's heartbeat does not show the last step, because reading it takes 10 ms.
    """
    job = run.newest_job() if state == SUCCEEDED else None
    if job is None:
        return False
    with contextlib.suppress(NbtrainError):
        beat = Heartbeat.read(job.heartbeat(0))
        if beat is not None and beat.progress is not None and beat.step >= beat.progress.total_steps:
            return False
        # Imported here, because this module loads pydantic.
        from nbtrain.config.load.resolved_cache import kept_config

        return evaluates_early(kept_config(run.config_yaml), newest_checkpoint_step(run))
    return False
