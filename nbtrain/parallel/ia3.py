"""Vectors that multiply activations beside the cut layers of tensor.py (IA3, arXiv:2205.05638, section 3.3).

    output_scale    some rows of a ColumnParallelLinear's packed output: keys and values of each group
    input_scale     a RowParallelLinear's input: what the MLP opens

A rank has the numbers of its own rows or columns, and every tensor-parallel rank sees all tokens there, so
that no gradient crosses between ranks. All begin with 1, so that nothing changes at first.

Shapes: b sequences, s tokens, o outputs, i inputs, t ranks of the group
"""

from typing import Protocol

import torch
from torch import nn

from nbtrain.parallel.groups import Group
from nbtrain.parallel.tensor import shard


class Ones(Protocol):
    """Creates unsharded parameters (model/initialization.py)."""

    def ones(self, *shape: int) -> nn.Parameter: ...


def output_scale(init: Ones, units: int, part: int, group: Group) -> nn.Parameter:
    """[units * part / t]: of the last `part` rows of each of `units` units of packed outputs."""
    return shard(init.ones(units * part), 0, group)


def input_scale(init: Ones, inputs: int, group: Group) -> nn.Parameter:
    """[i / t]."""
    return shard(init.ones(inputs), 0, group)


def scaled_outputs(y: torch.Tensor, scale: torch.Tensor, unit: int, part: int) -> torch.Tensor:
    """[b, s, o/t] -> the same, the last `part` of each `unit` outputs multiplied."""
    units = y.unflatten(-1, (-1, unit))
    kept, last = units.split([unit - part, part], -1)
    return torch.cat([kept, last * scale.to(y.dtype).view(-1, part)], -1).flatten(-2)
