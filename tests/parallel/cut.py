"""Helpers for tests of tensor-parallel layers: the process group, equal tensors on all ranks, and
comparisons.
"""

import torch
import torch.distributed as dist

from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.tensor import partition_dim
from tests.parallel.rounding import ONE_SUM


def world() -> Group:
    """Return a tensor-parallel group of all ranks."""
    return Group(tuple(range(dist.get_world_size())), dist.get_rank(), dist.group.WORLD)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Draw the same numbers on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours: torch.Tensor, expected: torch.Tensor, relative: float = ONE_SUM) -> None:
    """Assert that two tensors differ by at most `relative` times the largest number, because sums are
    computed in another order (rounding.py).
    """
    assert ours.shape == expected.shape, (ours.shape, expected.shape)
    tolerance = relative * float(expected.detach().abs().max())
    torch.testing.assert_close(ours, expected, rtol=relative, atol=tolerance)


def assert_gradient(parameter: torch.nn.Parameter, whole: torch.Tensor, group: Group) -> None:
    """Assert that a sharded parameter has this rank's part of the gradient `whole`, and a replicated
    parameter all of it.
    """
    expected = whole if (dim := partition_dim(parameter)) is None else own_part(whole, dim, group)
    assert_close(parameter.grad, expected)
