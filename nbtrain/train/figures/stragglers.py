"""Detects the rank that slows the others down, from every rank's computing time on logged steps.

All ranks wait for the slowest one, and their clocks count the wait as communication. The ranks are therefore
compared by their own work: forward and backward pass without the collectives inside
(StepTimer.compute_seconds). Only ranks of the same pipeline stage are compared, because stages may have
different amounts of work.

The times are collected by one small gather over gloo, so that NCCL's streams are not involved.
"""

import socket
import statistics
from dataclasses import dataclass

import torch
import torch.distributed as dist

from nbtrain.config.schema import RunConfig
from nbtrain.parallel.startup import World
from nbtrain.train.figures.throughput import StepTimer


@dataclass(frozen=True)
class Spread:
    """The computing time of each rank in one logged step, and how much slower it was than its stage."""

    seconds: tuple[float, ...]
    """Seconds of forward and backward pass without collectives, by rank."""
    slowdowns: tuple[float, ...]
    """Slowdown of each rank against the median of its stage, as a fraction; negative if the rank is
    faster.
    """
    hosts: tuple[str, ...]
    """Host name of each rank."""

    @classmethod
    def of(cls, seconds: list[float], stages: list[int], hosts: list[str]) -> "Spread":
        """Compare the ranks' seconds, given each rank's pipeline stage and host name."""
        # median_low() returns the lower of two middle values, so of two ranks the faster one is the
        # reference.
        pairs = list(zip(seconds, stages, strict=True))
        medians = {
            stage: statistics.median_low(own for own, other in pairs if other == stage)
            for stage in set(stages)
        }
        slowdowns = [own / medians[stage] - 1 if medians[stage] > 0 else 0.0 for own, stage in pairs]
        return cls(tuple(seconds), tuple(slowdowns), tuple(hosts))

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def slowest_rank(self) -> int:
        """The rank with the largest slowdown."""
        return max(range(len(self.slowdowns)), key=self.slowdowns.__getitem__)

    @property
    def slowdown(self) -> float:
        """Slowdown of the slowest rank, as a fraction."""
        return self.slowdowns[self.slowest_rank]

    def __str__(self) -> str:
        slowest = self.slowest_rank
        return (
            f"rank {slowest} on {self.hosts[slowest]} needs {self.seconds[slowest]:.3g} s of compute, "
            f"{self.slowdown:.0%} above the median of its pipeline stage"
        )


class Stragglers:
    """Collects the seconds of all ranks on rank 0."""

    def __init__(self, world: World, config: RunConfig):
        """Set up the collection. All ranks call it together."""
        self._world = world
        if world.size == 1:
            return
        self._group = dist.new_group(backend="gloo")
        self._stages = [config.topology.coordinate(rank)[0] for rank in range(world.size)]
        self._hosts = [""] * world.size
        dist.all_gather_object(self._hosts, socket.gethostname(), group=self._group)

    def gather(self, timer: StepTimer) -> Spread | None:
        """Return the spread on rank 0; None on other ranks, or if the run has only one rank. All ranks call
        it together. Waits for a GPU.
        """
        if self._world.size == 1:
            return None
        own = torch.tensor([timer.compute_seconds()], dtype=torch.float64)
        parts = [torch.zeros_like(own) for _ in range(self._world.size)] if self._world.rank == 0 else None
        dist.gather(own, parts, dst=0, group=self._group)
        return Spread.of([part.item() for part in parts], self._stages, self._hosts) if parts else None
