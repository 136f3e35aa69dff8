"""The process groups of every layout with up to 8 ranks, and the ranks in each group."""

import itertools

import pytest
import torch
import torch.distributed as dist

from nbtrain.base.topology import Topology
from nbtrain.parallel.groups import ALONE, KINDS, MegatronUnits, ParallelGroups, group_ranks
from tests.parallel import ranks

LAYOUTS = [
    (Topology(p, d, t), s)
    for p, d, t in itertools.product((1, 2, 4), (1, 2, 4, 8), (1, 2, 4))
    if p * d * t <= 8
    for s in (1, 2, 4)
    if d % s == 0
]


@pytest.mark.parametrize(("topology", "sequence"), LAYOUTS)
def test_every_rank_is_in_one_group_of_each_kind_of_the_right_size(topology, sequence):
    sizes = {
        "tensor_model_parallel": topology.tensor_parallel_size,
        "pipeline_model_parallel": topology.pipeline_parallel_size,
        "model_parallel": topology.tensor_parallel_size * topology.pipeline_parallel_size,
        "data_parallel": topology.data_parallel_size // sequence,
        "sequence_parallel": sequence,
        "sequence_data_parallel": topology.data_parallel_size,
        "tensor_and_data_parallel": topology.data_parallel_size * topology.tensor_parallel_size,
        "alone": 1,
    }
    groups = group_ranks(topology, sequence)
    assert list(groups) == list(KINDS) and set(sizes) == set(KINDS)
    for kind, size in sizes.items():
        assert {len(members) for members in groups[kind]} == {size}, kind
        assert sorted(itertools.chain(*groups[kind])) == list(range(topology.world_size)), kind
        assert all(list(members) == sorted(members) for members in groups[kind]), kind


def test_the_groups_of_two_stages_two_replicas_and_two_tensor_ranks():
    """Two stages, two replicas and two tensor-parallel ranks have the groups of DeepSpeed's
    PipeModelDataParallelTopology(2, 2, 2).
    """
    groups = group_ranks(Topology(2, 2, 2))
    assert groups["tensor_model_parallel"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["data_parallel"] == groups["sequence_data_parallel"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups["pipeline_model_parallel"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert groups["model_parallel"] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert groups["tensor_and_data_parallel"] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_ulysses_ranks_are_neighbours_and_replicas_are_apart():
    groups = group_ranks(Topology(data_parallel_size=4), 2)
    assert groups["sequence_parallel"] == [(0, 1), (2, 3)]
    assert groups["data_parallel"] == [(0, 2), (1, 3)]
    assert groups["sequence_data_parallel"] == [(0, 1, 2, 3)]


def test_the_groups_of_ulysses_with_tensor_ranks_and_stages():
    """With two ranks of each kind, tensor-parallel ranks are neighbours, then Ulysses ranks, and a Ulysses
    group has the same tensor rank and stage.
    """
    groups = group_ranks(Topology(2, 2, 2), 2)
    assert groups["tensor_model_parallel"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups["sequence_parallel"] == groups["sequence_data_parallel"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert groups["data_parallel"] == groups["alone"] == [(rank,) for rank in range(8)]
    assert groups["pipeline_model_parallel"] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_sequence_group_that_does_not_divide_the_data_axis_is_refused():
    with pytest.raises(
        ValueError, match="a data axis of 4 ranks cannot be split into sequence-parallel groups of 3"
    ):
        group_ranks(Topology(data_parallel_size=4), 3)


def test_one_process_needs_no_group():
    assert (ALONE.size, ALONE.rank, ALONE.process_group) == (1, 0, None)


def check_each_group_adds_up_its_own_ranks():
    for topology, sequence in LAYOUTS:
        if topology.world_size != dist.get_world_size():
            continue
        for kind, group in vars(ParallelGroups.create(topology, sequence, 10)).items():
            assert group.ranks[group.rank] == dist.get_rank()
            total = torch.tensor(2.0 ** dist.get_rank())
            dist.all_reduce(total, group=group.process_group)
            assert total == sum(2.0**rank for rank in group.ranks), (topology, sequence, kind)


def check_a_group_of_one_is_real_and_equal_groups_are_shared():
    """A group of one rank is a real process group, because torch and DeepSpeed treat None as the world.
    Groups with the same ranks are one object.
    """
    groups = ParallelGroups.create(Topology(tensor_parallel_size=4))
    assert dist.get_world_size(groups.data_parallel.process_group) == 1
    assert groups.data_parallel.process_group is groups.pipeline_model_parallel.process_group
    assert (
        groups.tensor_model_parallel.process_group is groups.model_parallel.process_group is dist.group.WORLD
    )


def check_the_groups_have_the_timeout_asked_for():
    from torch.distributed.distributed_c10d import _get_pg_default_device

    groups = ParallelGroups.create(Topology(data_parallel_size=2, tensor_parallel_size=2), 1, 7)
    group = groups.tensor_model_parallel.process_group
    assert group._get_backend(_get_pg_default_device(group)).options._timeout.total_seconds() == 7


def check_deepspeed_is_answered_in_megatron_names():
    me = dist.get_rank()
    units = MegatronUnits(ParallelGroups.create(Topology(data_parallel_size=2, tensor_parallel_size=2)))
    assert units.get_tensor_model_parallel_rank() == units.get_model_parallel_rank() == me % 2
    assert units.get_data_parallel_rank() == me // 2
    assert units.get_data_parallel_world_size() == units.get_model_parallel_world_size() == 2
    assert units.get_pipeline_model_parallel_world_size() == units.get_sequence_parallel_world_size() == 1
    assert units.get_data_parallel_group_ranks() == [me % 2, me % 2 + 2]
    assert units.get_tensor_model_parallel_src_rank() == me // 2 * 2
    assert dist.get_world_size(units.get_sequence_data_parallel_group()) == 2
    # DeepSpeed's name for its own Ulysses module, whose data-parallel group it does not request.
    assert not hasattr(units, "initialize_sequence_parallel")
    assert not hasattr(units, "get_slice_parallel_rank")


def check_a_layout_of_another_number_of_ranks_is_refused():
    with pytest.raises(
        ValueError, match=r"pipeline\(2\) \* data\(2\) \* tensor\(2\) = 8 ranks cannot run on 4"
    ):
        ParallelGroups.create(Topology(2, 2, 2))


CHECKS = {4: ranks.names(globals())}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
