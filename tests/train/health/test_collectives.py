"""The watch records which collective a rank is in, by replacing torch's functions."""

import inspect
import types

import pytest
import torch
import torch.distributed as dist

from nbtrain.train.health.collectives import GROUPED, PAIRED, CollectiveWatch


@pytest.fixture
def watch(monkeypatch):
    """Install the watch, and restore torch's functions afterwards."""
    for name in [name for name in (*GROUPED, *PAIRED) if hasattr(dist, name)]:
        monkeypatch.setattr(dist, name, getattr(dist, name))
    monkeypatch.setattr(dist.Work, "wait", dist.Work.wait)
    watch = CollectiveWatch()
    watch.install()
    return watch


@pytest.fixture
def alone(tmp_path):
    """Create a process group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_collective_of_torch_is_known():
    """The watch covers every function of torch that has a process group as argument, except those that only
    query or destroy a group.
    """
    taking = {
        name
        for name, function in vars(dist).items()
        if type(function) is types.FunctionType and "group" in inspect.signature(function).parameters
    }
    asking = {name for name in taking if name.startswith("get_")}
    others = {"_coalescing_manager", "_rank_not_in_group", "_time_estimator", "new_subgroups"}
    ending = {"destroy_process_group", "shrink_group"}
    # Built from send and recv of objects, which nbtrain does not call.
    objects = {"send_object_list", "recv_object_list"}
    assert taking - asking - others - ending - objects <= {*GROUPED, *PAIRED}


def test_the_current_one_is_told(watch, alone):
    """The watch reports the name of the collective, its group, its number in the group, and whether the call
    has returned.
    """
    assert watch.current() is None
    seen = []
    # Read while the call runs, as the heartbeat's thread reads it.
    inner = watch._noted("all_gather", lambda *arguments, **named: seen.append(watch.current()))
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2), group=dist.group.WORLD)
    watch.name_group("data_parallel", dist.group.WORLD)
    inner(group=dist.group.WORLD)
    (inside,) = seen
    assert (inside.name, inside.kind, inside.ranks, inside.number, inside.waiting) == (
        "all_gather",
        "data_parallel",
        [0],
        2,
        True,
    )
    assert watch.current().waiting is False
    assert watch.current().group == dist.group.WORLD.group_name
    # Enter and leave: torch itself waits for the work of a synchronous call.
    assert watch.calls == 2 * 3 + 2 * 2


def test_waiting_for_an_asynchronous_one_is_noted(watch, alone):
    work = dist.all_reduce(torch.ones(2), async_op=True)
    before = watch.calls
    work.wait()
    assert watch.calls == before + 2
    assert watch.current().name == "all_reduce"


def test_a_failing_collective_is_left(watch, alone):
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        dist.all_reduce("no tensor")
    assert watch.current().waiting is False


def test_point_to_point_names_the_other_rank(watch):
    names = []
    for name, peer in PAIRED.items():
        watch._noted(name, lambda *arguments, **named: names.append(watch._last[0]), peer)(torch.ones(1), 3)
    assert names == ["send (to rank 3)", "recv (from rank 3)", "isend (to rank 3)", "irecv (from rank 3)"]


@pytest.mark.slow
def test_a_compiled_function_keeps_its_graph(watch, alone):
    """The watch causes no graph break in a compiled function, because the compiler traces through it to
    torch's own function.
    """

    def reduce(x):
        dist.all_reduce(x)
        return x * 2

    explained = torch._dynamo.explain(reduce)(torch.ones(2))
    assert explained.graph_break_count == 0
