"""What follows the end of an attempt: wait, restart with fewer ranks, or give up."""

import itertools

from nbtrain.base.records import Rollback

LONGEST_BACKOFF_SECONDS = 300.0

# With other samples each time, so often at the same step from the same checkpoint: a fourth would be no different.
VAIN_ROLLBACKS = 3

# With less a rank cannot leave the record of its end.
NO_ROOM_BYTES = 1 << 20

# Beside a checkpoint: events, logs, heartbeats.
SPARE_BYTES = 64 << 20

DISK_POLL_SECONDS = 1.0


def in_vain(entries: list[Rollback]) -> int:
    """How many of the newest rollbacks, of one job and to one checkpoint, have not come behind the step of the first of them."""
    newest = entries[-1]
    place = (newest.job_id, newest.checkpoint_step)
    same = list(
        itertools.takewhile(lambda one: (one.job_id, one.checkpoint_step) == place, reversed(entries))
    )
    steps = [one.step for one in reversed(same)]
    return len(steps) - steps.index(max(steps))
