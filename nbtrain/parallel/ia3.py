"""IA3 (arXiv:2205.05638, section 3.3): trained vectors that multiply activations of the layers in tensor.py.

    output_scale    for part of a ColumnParallelLinear's packed output: the keys and values of each group
    input_scale     for a RowParallelLinear's input: the activations inside the MLP

A rank has the elements for its own rows or columns. Every tensor-parallel rank sees all tokens there, so
gradients need no communication. All vectors start at 1 and therefore change nothing at first.

Shapes: b sequences, s tokens, o outputs, i inputs, t ranks in the group
"""

from typing import Protocol

import torch
from torch import nn

from nbtrain.parallel.groups import Group
from nbtrain.parallel.tensor import shard


class OnesInitializer(Protocol):
    """Creates unsharded parameters (model/initialization.py)."""

    def ones(self, *shape: int) -> nn.Parameter: ...


def output_scale(init: OnesInitializer, units: int, part: int, group: Group) -> nn.Parameter:
    """Create this rank's vector, [units * part / t], for the last `part` outputs of each unit.

    A unit is a group of packed outputs; all ranks together have `units` units.
    """
    return shard(init.ones(units * part), 0, group)


def input_scale(init: OnesInitializer, inputs: int, group: Group) -> nn.Parameter:
    """Create the vector [i/t] that multiplies this rank's inputs of a RowParallelLinear."""
    return shard(init.ones(inputs), 0, group)


def scaled_outputs(y: torch.Tensor, scale: torch.Tensor, unit: int, part: int) -> torch.Tensor:
    """Multiply the last `part` outputs of every `unit` outputs by `scale`. [b, s, o/t] -> [b, s, o/t]."""
    units = y.unflatten(-1, (-1, unit))
    kept, last = units.split([unit - part, part], -1)
    return torch.cat([kept, last * scale.to(y.dtype).view(-1, part)], -1).flatten(-2)
