"""Number of checkpoints that a run saves in its run directory, and number that it saves only on local disks.

Local disks are the nodes' own disks (checkpoint.local_dir). If both kinds of checkpoints are due at the same
step, the run saves only the one in its run directory. It also saves its last step there.
"""

import math

from nbtrain.config.schema import RunConfig


def shared_saves(config: RunConfig, after_step: int = 0) -> int:
    """Return the number of checkpoints that the run saves in its run directory after `after_step`."""
    steps, interval = config.train_steps, config.checkpoint.save_interval_steps
    if config.mode != "full" or after_step >= steps:
        return 0
    return -(-steps // interval) - after_step // interval


def local_saves(config: RunConfig, after_step: int = 0) -> int:
    """Return the number of checkpoints after `after_step` that stay on the nodes' own disks.

    checkpoint.local_save_interval_steps sets how often they are saved.
    """
    checkpoint, last = config.checkpoint, config.train_steps - 1
    interval = checkpoint.local_save_interval_steps
    if config.mode != "full" or checkpoint.local_dir is None or interval is None or after_step >= last:
        return 0
    both = math.lcm(interval, checkpoint.save_interval_steps)
    return last // interval - after_step // interval - (last // both - after_step // both)
