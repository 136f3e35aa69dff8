"""Lets all ranks agree on one decision at each step boundary, without delaying the step.

Each rank votes with a number, and the decision is the largest number. The all-reduce of this integer uses a
separate gloo group. It starts with the step and is awaited at the end of the step, so training does not wait
for it, and NCCL's streams are not involved. A single process decides alone.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

# LEAVE ends the job after any validation that is due (train/requests.py). STOP ends it immediately, because a
# batch system may allow only a few seconds.
NOTHING, SAVE, LEAVE, STOP = 0, 1, 2, 3


class Agreement:
    """The votes of all ranks, one vote at each step boundary.

    Every rank calls begin(wish) when a step starts and finish(wish) when the step ends. wish() returns the
    number for which the rank votes.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        self._wish = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def begin(self, wish: Callable[[], int]) -> None:
        """Start a vote, in which this rank votes for the number that wish() returns now."""
        if self._group is not None:
            self._wish.fill_(wish())
            self._work = dist.all_reduce(self._wish, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def finish(self, wish: Callable[[], int]) -> int:
        """Wait for the vote, and return the largest number of all ranks.

        If no vote was started, as in a single process, return wish().
        """
        if self._work is None:
            return wish()
        self._work.wait()
        self._work = None
        return int(self._wish.item())

    def now(self, wish: Callable[[], int]) -> int:
        """Vote between two steps, and return the decision."""
        self.begin(wish)
        return self.finish(wish)


def broadcast_object(value: object, source: int = 0) -> object:
    """Return the `value` of rank `source` on every rank. Use it only for small objects."""
    if dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def gather_objects(value: object) -> list:
    """Return the values of all ranks, in the order of ranks, on every rank. Use it only for small objects."""
    if dist.get_world_size() == 1:
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
