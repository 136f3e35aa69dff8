"""The time of collectives: each call is counted once, and all patched functions are restored afterwards."""

import time

import pytest
import torch
from deepspeed.comm import comm as deepspeed_comm

from nbtrain.parallel.startup import World
from nbtrain.train.figures.communication import CommunicationTimer
from nbtrain.train.figures.throughput import StepTimer
from nbtrain.train.health.collectives import GROUPED

CPU = torch.device("cpu")


class Backend:
    """A backend with a collective that calls another one and a collective that returns early; each advances a
    clock.
    """

    seconds = 0.0

    def reduce_scatter(self):
        return self.reduce_scatter_tensor()

    def reduce_scatter_tensor(self):
        Backend.seconds += 2

    def all_reduce(self):
        class Work:
            def wait(self):
                Backend.seconds += 3

        return Work()


@pytest.fixture
def backend(monkeypatch):
    one = Backend()
    monkeypatch.setattr(deepspeed_comm, "cdb", one)
    monkeypatch.setattr(time, "perf_counter", lambda: Backend.seconds)
    return one


def test_a_collective_inside_another_counts_once_and_all_are_waited_for(backend):
    """A collective inside another one is counted once, asynchronous ones are waited for, and the backend is
    restored afterwards.
    """
    timer = StepTimer(CPU)
    with CommunicationTimer().measured(World(0, 2, 0, CPU), True, timer):
        backend.reduce_scatter()
        with timer.part("backward"):
            backend.all_reduce()
    assert timer.communication == {None: 2, "backward": 3}
    assert vars(backend) == {}


def test_collectives_of_our_own_layers_count_too(backend, monkeypatch):
    """Collectives that our layers call through torch.distributed are counted, and torch's functions are
    restored afterwards.
    """

    def all_reduce(tensor):
        Backend.seconds += 4

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    before = vars(torch.distributed).copy()
    timer = StepTimer(CPU)
    with CommunicationTimer().measured(World(0, 2, 0, CPU), True, timer), timer.part("forward"):
        torch.distributed.all_reduce(torch.zeros(1))
    assert timer.communication == {"forward": 4}
    assert timer.compute_seconds() == 0
    assert vars(torch.distributed) == before


def test_all_collectives_but_barriers_are_timed(backend):
    """Every function of torch.distributed that the watch of hangs records is timed, except barriers: also
    those that move objects, and the names that later versions of torch prefer.
    """
    before = vars(torch.distributed).copy()
    with CommunicationTimer().measured(World(0, 2, 0, CPU), True, StepTimer(CPU)):
        timed = {name for name, value in vars(torch.distributed).items() if value is not before[name]}
    known = {name for name in GROUPED if name in before}
    assert known - timed == {"barrier", "monitored_barrier"} and timed <= known
    assert {"all_gather_object", "gather", "scatter"} <= timed


def test_a_failing_step_leaves_nothing_behind(backend):
    before = vars(torch.distributed).copy()
    with (
        pytest.raises(ValueError, match="broken"),
        CommunicationTimer().measured(World(0, 2, 0, CPU), True, StepTimer(CPU)),
    ):
        raise ValueError("broken")
    assert vars(torch.distributed) == before
    assert vars(backend) == {}


@pytest.mark.parametrize(("size", "wanted"), [(1, True), (2, False)])
def test_one_rank_or_an_unlogged_step_is_not_measured(backend, size, wanted):
    """With one rank or in a step that is not logged, the communication time is None, not zero."""
    timer = StepTimer(CPU)
    with CommunicationTimer().measured(World(0, size, 0, CPU), wanted, timer):
        backend.all_reduce()
    assert timer.communication_seconds is None
