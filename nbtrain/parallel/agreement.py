"""Lets all ranks agree on one decision at each step boundary, without delaying the step.

Each rank has a wish, where a larger number is a stronger wish, and the decision is the largest wish. The
all-reduce of this integer uses a separate gloo group. It starts with the step and is awaited at the step's
end, so training does not wait for it and NCCL's streams are not involved. A single process decides by its own
wish.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

# LEAVE ends the job after a validation that is due (train/requests.py). STOP ends it at once, because a batch
# system may leave seconds only.
NOTHING, SAVE, LEAVE, STOP = 0, 1, 2, 3


class Agreement:
    """A vote of all ranks: every rank calls begin(wish) when a step starts and finish(wish) when it ends."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
        self._wish = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def begin(self, wish: Callable[[], int]) -> None:
        """Start the vote with this rank's current wish."""
        if self._group is not None:
            self._wish.fill_(wish())
            self._work = dist.all_reduce(self._wish, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def finish(self, wish: Callable[[], int]) -> int:
        """Return the largest wish of all ranks; for a single process, its own wish."""
        if self._work is None:
            return wish()
        self._work.wait()
        self._work = None
        return int(self._wish.item())

    def now(self, wish: Callable[[], int]) -> int:
        """Vote between two steps, and wait for the result."""
        self.begin(wish)
        return self.finish(wish)


def broadcast_object(value: object, source: int = 0) -> object:
    """Return `value` of rank `source` on every rank; for small objects only."""
    if dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def gather_objects(value: object) -> list:
    """Return the values of all ranks, by rank, on every rank; for small objects only."""
    if dist.get_world_size() == 1:
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
