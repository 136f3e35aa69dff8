"""Random states differ between ranks, are restored exactly, and are not affected by other code."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from nbtrain.parallel import random as states


@pytest.fixture(autouse=True)
def _keep():
    with states.preserved():
        yield


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_saved_state_repeats_its_numbers(tmp_path):
    """A state gives the same random numbers again after it was saved in a file that torch loads with
    weights_only.
    """
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


def test_inside_a_fork_tensor_ranks_differ_and_outside_they_agree():
    """Inside a fork, tensor-parallel ranks draw different numbers. Outside, they draw the same ones,
    unaffected by the fork.
    """
    inside, outside = [], []
    for tensor_rank in (0, 1):
        states.seed_rank(1234, 0)
        stream = states.TensorParallelStream(1234, 0, tensor_rank)
        first = float(torch.rand(()))
        with stream.fork():
            inside.append(torch.rand(3 + tensor_rank)[:3].tolist())
        outside.append((first, float(torch.rand(()))))
    assert outside[0] == outside[1]
    assert inside[0] != inside[1]
    states.seed_rank(1234, 0)
    assert outside[0] == (float(torch.rand(())), float(torch.rand(())))


def test_a_stream_goes_on_from_fork_to_fork_and_after_a_resume(tmp_path):
    """A stream continues from one fork to the next, also after an error inside a fork and after a resume."""
    stream = states.TensorParallelStream(1, 0, 0)
    with stream.fork():
        whole = torch.rand(6)
    stream = states.TensorParallelStream(1, 0, 0)
    with pytest.raises(ZeroDivisionError), stream.fork():
        parts = [torch.rand(2)]
        raise ZeroDivisionError
    torch.save(stream.get_state(), tmp_path / "stream.pt")
    with stream.fork():
        parts.append(torch.rand(2))
    resumed = states.TensorParallelStream(2, 3, 4)
    resumed.set_state(torch.load(tmp_path / "stream.pt", weights_only=True))
    with resumed.fork():
        again = torch.rand(2)
    assert torch.equal(again, parts[1])
    # torch's normal and uniform draw a tensor of 16 or more elements differently from one of 6.
    assert torch.equal(torch.cat(parts), whole[:4])


def test_streams_of_all_ranks_are_apart():
    drawn = set()
    for data_rank in range(3):
        states.seed_rank(1234, data_rank)
        drawn.add(float(torch.rand(())))
        for tensor_rank in range(3):
            with states.TensorParallelStream(1234, data_rank, tensor_rank).fork():
                drawn.add(float(torch.rand(())))
    assert len(drawn) == 3 + 9


def test_making_a_stream_leaves_the_generators_alone():
    states.seed_rank(1, 0)
    expected = draw()
    states.seed_rank(1, 0)
    states.TensorParallelStream(9, 9, 9)
    assert draw() == expected


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [True, False])
def test_recomputation_repeats_the_dropped(recomputed):
    """Recomputation draws the same dropout inside and outside of forks, and leaves the stream in the same
    state.
    """

    def piece(x):
        with stream.fork():
            x = F.dropout(x, 0.5)
        return F.dropout(x * 2, 0.5) ** 2

    gradients, after = [], []
    for context in (None, "stream"):
        states.seed_rank(5, 0)
        stream = states.TensorParallelStream(5, 0, 0)
        x = torch.arange(1.0, 65.0, requires_grad=True)
        y = x
        for _ in range(2):
            if context is None:
                y = piece(y)
            elif recomputed:
                y = checkpoint(piece, y, use_reentrant=False, context_fn=stream.recompute_contexts)
            else:
                # Without the contexts, the backward pass would have other masks.
                y = checkpoint(piece, y, use_reentrant=False)
        # Twice, as with a second loss on the same graph.
        gradients.append([torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)])
        with stream.fork():
            after.append(torch.rand(4))
    assert torch.equal(gradients[0][0], gradients[0][1])
    assert all(torch.equal(gradients[0][0], one) for one in gradients[1]) == recomputed
    assert torch.equal(*after) == recomputed
