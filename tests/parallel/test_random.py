"""Random states: apart by rank, restored exactly, left alone."""

import random

import numpy as np
import pytest
import torch

from nbtrain.parallel import random as states


@pytest.fixture(autouse=True)
def _keep():
    with states.preserved():
        yield


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_saved_state_repeats_its_numbers(tmp_path):
    """Through a file that torch reads as plain data."""
    states.seed_rank(1, 0)
    draw()
    torch.save(states.get_state(), tmp_path / "state.pt")
    expected = draw()
    states.set_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == expected


def test_ranks_draw_different_numbers_and_the_same_again():
    drawn = []
    for rank in (0, 1, 0):
        states.seed_rank(1234, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(one != other for one, other in zip(drawn[0], drawn[1]))


def test_preserved_leaves_no_trace_even_of_an_error():
    states.seed_rank(1, 0)
    expected = draw()
    states.seed_rank(1, 0)
    with pytest.raises(ZeroDivisionError), states.preserved():
        draw()
        raise ZeroDivisionError
    assert draw() == expected
