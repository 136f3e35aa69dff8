"""Support for a user-defined layer(): a transformer block built from nbtrain's parts and its own parameters.

    layer(config, index, parts)     returns block number `index`, a module
    block(x, **context)             returns the residual stream after the block, in the shape and format of x

x is the residual stream, [b, s, h], with the tokens of this rank. `context` has what attention needs in
addition: `cache` for generation, `documents` for packed samples, and `rotation` for rotary positions. A block
must pass `context` to attention. Outside of attention, it must treat each token independently, because a rank
may hold only some tokens.

LayerParts creates every parameter. It knows the name that seeds the initial values, so that they are equal in
every layout, and the dimension that tensor-parallel ranks shard, so that a checkpoint can be loaded into any
other layout.

Shapes: b sequences, s tokens, h hidden, t tensor-parallel ranks
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from nbtrain.base.errors import CodeError
from nbtrain.model.dropout import dropout
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.layers import MLP, Attention, Norm, TransformerLayer
from nbtrain.parallel import mappings
from nbtrain.parallel.groups import Group
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.tensor import ColumnParallelLinear, GatedColumnParallelLinear, RowParallelLinear, shard

# Relative difference that rounding may cause between the gradients of an unsharded parameter on different
# ranks.
TOLERANCE = 0.05


class LayerFunction(Protocol):
    """Type of the user-defined layer(), as the model calls it (checkpoint/own_layer.py)."""

    def __call__(self, config: GPTConfig, index: int, parts: "LayerParts") -> nn.Module:
        """Return block number `index`, counted from 0."""


def build_layer(
    index: int,
    config: GPTConfig,
    init: Initializer,
    parallel: ModelParallel,
    layer_function: LayerFunction | None = None,
) -> nn.Module:
    """Build block number `index` with the user's function or, without one, nbtrain's own block."""
    if layer_function is None:
        return TransformerLayer(index, config, init, parallel)
    block = layer_function(config, index, LayerParts(index, config, init, parallel))
    block.is_own_block = True  # type: ignore[assignment]
    return block


def is_block(layer: Any) -> bool:
    """Return whether a layer of a pipeline is a transformer block, nbtrain's or the user's."""
    return isinstance(layer, TransformerLayer) or getattr(layer, "is_own_block", False)


class LayerParts:
    """Creates the parts of a block: nbtrain's layers, sharded linear layers and single parameters.

    A part's name is its path in the block, such as "mlp.up". The name seeds the initial values, so each name
    can be used only once in a block.
    """

    def __init__(self, index: int, config: GPTConfig, init: Initializer, parallel: ModelParallel):
        self._index, self._config, self._init, self._parallel = index, config, init, parallel
        self._linear: dict[str, Any] = {
            "init": init, "group": parallel.tensor, "sequence_parallel": parallel.sequence_parallel
        }  # fmt: skip
        self._names: set[str] = set()
        self._modules: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []

    @property
    def size(self) -> int:
        """Number of tensor-parallel ranks."""
        return self._parallel.tensor.size

    @property
    def rank(self) -> int:
        """This rank's number among the tensor-parallel ranks."""
        return self._parallel.tensor.rank

    def norm(self) -> nn.Module:
        """Create a norm for the residual stream, of the kind and epsilon set in the section `model`."""
        return self._made(Norm(self._config, self._init, self._parallel))

    def attention(self) -> nn.Module:
        """Create nbtrain's attention; call it as attention(x, **context)."""
        self._named("attention")
        return self._made(Attention(self._index, self._config, self._init, self._parallel))

    def mlp(self) -> nn.Module:
        """Create nbtrain's MLP, with the width and activation set in the section `model`."""
        self._named("mlp")
        return self._made(MLP(self._index, self._config, self._init, self._parallel))

    def column_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Create a linear layer whose outputs are sharded: [b, s, inputs] -> [b, s, outputs/t].

        Its input is the residual stream. `std` replaces model.init_method_std; with 0.0, all weights start at
        0. Raises ValueError unless t divides `outputs`.
        """
        full = self._named(name)
        return self._made(ColumnParallelLinear(full, inputs, outputs, bias=bias, std=std, **self._linear))

    def gated_column_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Create a linear layer that returns (gate, values), each like the output of column_linear()."""
        full = self._named(name)
        made = GatedColumnParallelLinear(full, inputs, outputs, bias=bias, std=std, **self._linear)
        return self._made(made)

    def row_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Create a linear layer whose inputs are sharded: [b, s, inputs/t] -> [b, s, outputs].

        Its output is for the residual stream: the ranks' results are summed. Without `std`, the initial
        standard deviation is divided by sqrt(2 num_layers), as for nbtrain's own projections to the residual
        stream. Raises ValueError unless t divides `inputs`.
        """
        full = self._named(name)
        made = RowParallelLinear(full, inputs, outputs, residual=True, bias=bias, std=std, **self._linear)
        return self._made(made)

    def parameter(
        self,
        name: str,
        *shape: int,
        shard_dim: int | None = None,
        std: float | None = None,
        value: float | None = None,
        on_columns: bool = False,
    ) -> nn.Parameter:
        """Create a parameter with the unsharded shape `shape`.

        The values are normally distributed with standard deviation `std` (by default model.init_method_std),
        or all equal to `value` if it is given. With `shard_dim`, each rank has an equal part of that
        dimension; raises ValueError unless t divides it.

        Without `shard_dim`, each rank has the whole parameter, and its gradients are summed over the ranks
        where necessary. The parameter must multiply the residual stream or, with `on_columns`, the rank's own
        columns between a column and a row layer. If `on_columns` is needed but not set, the backward pass
        raises CodeError.
        """
        if not shape:
            raise ValueError(f"the parameter {name!r} has no shape; for a single number, use the shape 1")
        full, group = self._named(name), self._parallel.tensor
        whole = (
            self._init.normal(full, *shape, std=std) if value is None else self._init.filled(value, *shape)
        )
        if shard_dim is not None:
            made = shard(whole, shard_dim % len(shape), group)
        else:
            made = whole
            if group.size > 1 and (on_columns or self._parallel.cuts_tokens):
                made.sequence_parallel = True  # type: ignore[attr-defined]
                # Each rank has only the gradient of its own tokens or columns.
                made.register_hook(lambda grad: mappings.all_reduce(grad.clone(), group))
            elif group.size > 1:
                made.register_hook(_EqualGradients(full, group))
        self._parameters.append(made)
        return made

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream x for a product with sharded parameters.

        With sequence parallelism, the tokens of all tensor-parallel ranks are gathered; otherwise, x is
        returned unchanged. In the backward pass, the gradients of x are summed over the ranks. copy() begins
        a region in which the ranks compute different results; end the region with reduce().
        """
        if self._parallel.cuts_tokens:
            return mappings.gather_from_sequence_parallel_region(x, self._parallel.tensor)
        return mappings.copy_to_tensor_model_parallel_region(x, self._parallel.tensor)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' partial results x, to be added to the residual stream.

        With sequence parallelism, the result has only this rank's tokens. reduce() ends the region that
        copy() begins.
        """
        if self._parallel.cuts_tokens:
            return mappings.reduce_scatter_to_sequence_parallel_region(x, self._parallel.tensor)
        return mappings.reduce_from_tensor_model_parallel_region(x, self._parallel.tensor)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the columns of all ranks, [.., c/t] -> [.., c], for a sum over columns as in a norm.

        Each rank must then continue with its own columns, so the gradients of x are summed over the ranks.
        """
        group = self._parallel.tensor
        return mappings.region(x, group, mappings.all_gather, mappings.reduce_scatter, mappings.COLUMNS)

    def own_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of a result of gather(), [.., c] -> [.., c/t]."""
        return mappings.own_part(x, mappings.COLUMNS, self._parallel.tensor)

    def dropout(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        """Apply model.hidden_dropout to a branch of the residual stream.

        Pass the block's attribute `training`.
        """
        return dropout(x, self._config.hidden_dropout, training, self._parallel.hidden_stream)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield all parameters that this object has created."""
        for module in self._modules:
            yield from module.parameters()
        yield from self._parameters

    def _made(self, module: nn.Module) -> nn.Module:
        self._modules.append(module)
        return module

    def _named(self, name: str) -> str:
        if name in self._names:
            raise ValueError(
                f"the name {name!r} is used twice, so both parts would get the same initial values"
            )
        self._names.add(name)
        return f"layers.{self._index}.{name}"


class _EqualGradients:
    """A hook that compares a parameter's first gradient between all tensor-parallel ranks.

    Each rank has the whole parameter. With different gradients, the ranks would train different models, and a
    checkpoint would contain only one of them.
    """

    def __init__(self, name: str, group: Group):
        self._name, self._group, self._is_equal = name, group, False

    def __call__(self, grad: torch.Tensor) -> None:
        if self._is_equal:
            return
        own = grad.float()
        mean = mappings.all_reduce(own.clone(), self._group) / self._group.size
        # These values are equal on all ranks, so either all ranks raise or none does.
        sizes = torch.stack([(own - mean).abs().max(), own.abs().max()])
        difference, size = mappings.all_reduce(sizes, self._group).tolist()
        if difference > TOLERANCE * size:
            raise CodeError(
                f"layer(): {self._name} gets different gradients on the tensor-parallel ranks, as if it "
                "multiplied columns that are sharded across the ranks. Create it with "
                "parts.parameter(..., on_columns=True), or with shard_dim=... if each rank needs only its "
                "own part."
            )
        # A gradient of 0 proves nothing, and a step with a gradient that is not finite is skipped.
        self._is_equal = math.isfinite(size) and size > 0
