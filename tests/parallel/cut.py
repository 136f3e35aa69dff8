"""What tests of tensor-parallel parts share: the group, whole tensors alike on all ranks, and comparisons."""

import torch
import torch.distributed as dist

from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.tensor import partition_dim
from tests.parallel.rounding import ONE_SUM


def world() -> Group:
    """All ranks of this launch as one tensor-parallel group."""
    return Group(tuple(range(dist.get_world_size())), dist.get_rank(), dist.group.WORLD)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """The same numbers on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours: torch.Tensor, expected: torch.Tensor, relative: float = ONE_SUM) -> None:
    """Equal to `relative` of the largest number: sums are taken in another order (rounding.py)."""
    assert ours.shape == expected.shape, (ours.shape, expected.shape)
    tolerance = relative * float(expected.detach().abs().max())
    torch.testing.assert_close(ours, expected, rtol=relative, atol=tolerance)


def assert_gradient(parameter: torch.nn.Parameter, whole: torch.Tensor, group: Group) -> None:
    """The parameter's gradient is the part of `whole` that it holds, or all of it."""
    expected = whole if (dim := partition_dim(parameter)) is None else own_part(whole, dim, group)
    assert_close(parameter.grad, expected)
