"""Low-rank adapters for the layers in tensor.py (LoRA, arXiv:2106.09685): x A^T B^T times a scale.

    ColumnLowRank    A [r, i] unsharded, B [o/t, r] sharded by rows     for a ColumnParallelLinear
    RowLowRank       A [r, i/t] sharded by columns, B [o, r] unsharded  for a RowParallelLinear

Only activations of shape [b, s, r] cross the boundary of the tensor-parallel region, which are small compared
with [b, s, h]. An unsharded matrix must have the same gradient on every rank. Without sequence parallelism it
does, because all ranks have all tokens and the gradient is summed at the boundary. With sequence parallelism,
the matrix is marked, and its gradient is summed like the gradient of a LayerNorm.

A layer that packs several projections (queries, keys and values) has an adapter for each of them: A is [p r,
i], and each part of B's rows uses its own r columns.

A is initialized like torch's linear layers, uniformly within 1 / sqrt(i), and B is 0, so the adapter changes
nothing at first (as in peft's LoraLayer.reset_lora_parameters).

Shapes: b sequences, s tokens, i inputs, o outputs, r rank, p projections, t ranks in the group
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import Group
from nbtrain.parallel.tensor import shard


class UniformParameters(Protocol):
    """Draws unsharded parameters by name (model/initialization.py)."""

    def uniform(self, name: str, bound: float, *shape: int) -> nn.Parameter: ...

    def zeros(self, *shape: int) -> nn.Parameter: ...


class Rank(NamedTuple):
    """Settings that are the same for all adapters of a model."""

    rank: int
    scale: float
    dropout: Callable[[torch.Tensor, bool], torch.Tensor]
    """Function of (x, training) that applies dropout. Its random numbers differ between tensor-parallel ranks
    if x differs between them.
    """


class _LowRank(nn.Module):
    def __init__(self, how: Rank, group: Group, sequence_parallel: bool):
        super().__init__()
        self.how, self.group = how, group
        self.sequence_parallel = sequence_parallel and group.size > 1

    def _whole(self, weight: torch.Tensor) -> torch.Tensor:
        """Return an unsharded matrix for use on this rank's tokens.

        With sequence parallelism, each rank has only some tokens, so gradients are summed over the ranks.
        """
        if not self.sequence_parallel:
            return weight
        (weight,) = mappings.copy_parameters_to_sequence_parallel_region(weight, group=self.group)
        return weight


class ColumnLowRank(_LowRank):
    """Adapter for a ColumnParallelLinear. [b, s, i] (sequence_parallel: [b, s/t, i]) -> [b, s, o/t].

    `parts` has the number of rows of each projection in a unit of packed outputs, such as (n/g d, d, d); ()
    means a single projection.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        init: UniformParameters,
        how: Rank,
        group: Group,
        sequence_parallel: bool,
        parts: tuple[int, ...] = (),
    ):
        super().__init__(how, group, sequence_parallel)
        self.parts = parts or (outputs,)
        self.a = init.uniform(f"{name}.a", inputs**-0.5, len(self.parts) * how.rank, inputs)
        self.b = shard(init.zeros(outputs, how.rank), 0, group)
        self.a.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = F.linear(self.how.dropout(x, self.training), self._whole(self.a)) * self.how.scale
        if self.sequence_parallel:
            low = mappings.gather_from_sequence_parallel_region(low, self.group)
        else:
            low = mappings.copy_to_tensor_model_parallel_region(low, self.group)
        if len(self.parts) == 1:
            return F.linear(low, self.b)
        units = self.b.unflatten(0, (-1, sum(self.parts)))
        projections = zip(low.chunk(len(self.parts), -1), units.split(self.parts, 1), strict=True)
        outputs = [
            F.linear(one, rows.flatten(0, 1)).unflatten(-1, rows.shape[:2]) for one, rows in projections
        ]
        return torch.cat(outputs, -1).flatten(-2)


class RowLowRank(_LowRank):
    """Adapter for a RowParallelLinear. [b, s, i/t] -> [b, s, o] (sequence_parallel: [b, s/t, o])."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        init: UniformParameters,
        how: Rank,
        group: Group,
        sequence_parallel: bool,
    ):
        super().__init__(how, group, sequence_parallel)
        self.a = shard(init.uniform(f"{name}.a", inputs**-0.5, how.rank, inputs), 1, group)
        self.b = init.zeros(outputs, how.rank)
        self.b.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = F.linear(self.how.dropout(x, self.training), self.a) * self.how.scale
        if self.sequence_parallel:
            low = mappings.reduce_scatter_to_sequence_parallel_region(low, self.group)
        else:
            low = mappings.reduce_from_tensor_model_parallel_region(low, self.group)
        return F.linear(low, self._whole(self.b))
