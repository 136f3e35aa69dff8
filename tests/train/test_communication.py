"""The time of collectives: each counted once, nothing left behind."""

import time

import pytest
import torch
from deepspeed.comm import comm as deepspeed_comm

from nbtrain.parallel.startup import World
from nbtrain.train.communication import CommunicationTimer

CPU = torch.device("cpu")


class Backend:
    """One collective that is made of another, one that comes back before it is done; each moves a clock."""

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
    """2 s and 3 s; afterwards the backend is as it was."""
    timer = CommunicationTimer()
    with timer.measured(World(0, 2, 0, CPU), wanted=True):
        backend.reduce_scatter()
        backend.all_reduce()
    assert timer.seconds == 5
    assert vars(backend) == {}


@pytest.mark.parametrize(("size", "wanted"), [(1, True), (2, False)])
def test_one_rank_or_an_unlogged_step_is_not_measured(backend, size, wanted):
    """None, not zero: nothing is known."""
    timer = CommunicationTimer()
    with timer.measured(World(0, size, 0, CPU), wanted):
        backend.all_reduce()
    assert timer.seconds is None
