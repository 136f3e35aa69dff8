"""The process groups of a layout, created once on every rank, in the same order.

    tensor_model_parallel     ranks that shard each layer's weights; adjacent ranks, usually on one node
    pipeline_model_parallel   ranks that hold the stages of one model
    model_parallel            tensor times pipeline: the ranks that hold one whole model
    data_parallel             ranks with the same weights and different samples
    sequence_parallel         Ulysses or context parallelism: ranks between which each sequence is split,
                              adjacent on the data axis
    sequence_data_parallel    data times sequence: the whole data axis, across which ZeRO shards the optimizer
    tensor_and_data_parallel  tensor times the data axis: all ranks of one pipeline stage
    alone                     this rank only

The names are Megatron's and DeepSpeed's. Megatron's sequence parallelism uses the tensor group.
"""

from dataclasses import dataclass, fields
from datetime import timedelta

import torch.distributed as dist

from nbtrain.base.topology import Topology


@dataclass(frozen=True)
class Group:
    """A group of ranks that communicate for one kind of parallelism, and this process's rank in it."""

    ranks: tuple[int, ...] = (0,)
    """Global ranks of the group's members, in the order of the group."""
    rank: int = 0
    """This process's rank in the group, not its global rank."""
    process_group: dist.ProcessGroup | None = None
    """Torch's process group. None only in ALONE, because torch interprets None as all ranks."""

    @property
    def size(self) -> int:
        return len(self.ranks)


ALONE = Group()
"""The group of a single process: its layers never communicate and need no process group."""


def group_ranks(topology: Topology, sequence_parallel_size: int = 1) -> dict[str, list[tuple[int, ...]]]:
    """Return {kind of group: all groups of this kind, as tuples of global ranks}.

    Every rank is in one group of each kind. Each sequence is split between `sequence_parallel_size` adjacent
    ranks of the topology's data axis. Raises ValueError unless the size of the axis is a multiple of this
    number.
    """
    axis = topology.data_parallel_size
    if sequence_parallel_size < 1 or axis % sequence_parallel_size:
        raise ValueError(
            f"a data axis of {axis} ranks cannot be split into sequence-parallel groups of "
            f"{sequence_parallel_size}: the size must be a divisor of {axis}."
        )
    pipelines = range(topology.pipeline_parallel_size)
    tensors = range(topology.tensor_parallel_size)
    starts = range(0, axis, sequence_parallel_size)

    def ranks(stages, data, columns) -> tuple[int, ...]:
        return tuple(topology.rank(p, d, t) for p in stages for d in data for t in columns)

    return {
        "tensor_model_parallel": [ranks([p], [d], tensors) for p in pipelines for d in range(axis)],
        "pipeline_model_parallel": [ranks(pipelines, [d], [t]) for d in range(axis) for t in tensors],
        "model_parallel": [ranks(pipelines, [d], tensors) for d in range(axis)],
        "data_parallel": [
            ranks([p], range(place, axis, sequence_parallel_size), [t])
            for p in pipelines
            for place in range(sequence_parallel_size)
            for t in tensors
        ],
        "sequence_parallel": [
            ranks([p], range(start, start + sequence_parallel_size), [t])
            for p in pipelines
            for start in starts
            for t in tensors
        ],
        "sequence_data_parallel": [ranks([p], range(axis), [t]) for p in pipelines for t in tensors],
        "tensor_and_data_parallel": [ranks([p], range(axis), tensors) for p in pipelines],
        "alone": [(rank,) for rank in range(topology.world_size)],
    }


@dataclass(frozen=True)
class ParallelGroups:
    """The groups that this rank belongs to, one of each kind."""

    tensor_model_parallel: Group
    pipeline_model_parallel: Group
    model_parallel: Group
    data_parallel: Group
    sequence_parallel: Group
    sequence_data_parallel: Group
    tensor_and_data_parallel: Group
    alone: Group

    @classmethod
    def create(
        cls, topology: Topology, sequence_parallel_size: int = 1, timeout_seconds: float | None = None
    ) -> "ParallelGroups":
        """Create the groups. All ranks must call this together, once. Nothing is sent until a group is used.

        Groups with the same ranks share a process group. A group of all ranks is torch's world group, and a
        group of one rank has a real process group, never None. `timeout_seconds` is set for each group,
        because new groups do not inherit the world's timeout. Raises ValueError if the layout's number of
        ranks is not the number of ranks in the world.
        """
        world, me = dist.get_world_size(), dist.get_rank()
        if topology.world_size != world:
            raise ValueError(
                f"a layout of pipeline({topology.pipeline_parallel_size}) * "
                f"data({topology.data_parallel_size}) * "
                f"tensor({topology.tensor_parallel_size}) = {topology.world_size} ranks cannot run on "
                f"{world} ranks."
            )
        kinds = group_ranks(topology, sequence_parallel_size)
        timeout = timedelta(seconds=timeout_seconds) if timeout_seconds is not None else None
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {tuple(range(world)): dist.group.WORLD}
        if world > 1:
            # Only the member itself takes part, so that a thousand ranks do not create a thousand groups
            # each.
            made[(me,)] = dist.new_group([me], timeout, use_local_synchronization=True)
        for ranks in (ranks for kind in KINDS for ranks in kinds[kind]):
            # This condition is the same on every rank, because all ranks must create all groups in the same
            # order.
            if len(ranks) > 1 and ranks not in made:
                made[ranks] = dist.new_group(list(ranks), timeout)
        mine = {kind: next(ranks for ranks in kinds[kind] if me in ranks) for kind in KINDS}
        return cls(**{kind: Group(ranks, ranks.index(me), made[ranks]) for kind, ranks in mine.items()})


KINDS = tuple(field.name for field in fields(ParallelGroups))


class MegatronUnits:
    """The `mpu` argument of deepspeed.initialize and deepspeed.zero.Init, with Megatron's method names.

    It is for engines without a pipeline, because a PipelineModule creates its own mpu from its topology.
    """

    def __init__(self, groups: ParallelGroups):
        self._groups = groups

    def __getattr__(self, name: str):
        """Return get_<kind>_{group,rank,world_size,group_ranks,src_rank} for any kind in ParallelGroups.

        Raises AttributeError for an unknown name, because DeepSpeed tests for methods with hasattr.
        """
        asked = name.removeprefix("get_")
        if asked != name:
            for ending, value in _ANSWERS.items():
                if asked.endswith(ending) and (kind := asked.removesuffix(ending)) in KINDS:
                    group = getattr(self._groups, kind)
                    return lambda: value(group)
        raise AttributeError(f"{type(self).__name__} has no {name!r}")


_ANSWERS = {
    "_group_ranks": lambda group: list(group.ranks),
    "_world_size": lambda group: group.size,
    "_src_rank": lambda group: group.ranks[0],
    "_group": lambda group: group.process_group,
    "_rank": lambda group: group.rank,
}
