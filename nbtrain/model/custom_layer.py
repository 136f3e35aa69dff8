"""The user's layer(): a transformer block made of nbtrain's parts and its own parameters.

    layer(config, index, parts)     ->  a module: block `index`
    block(x, **context)             ->  the residual stream after the block, in the shape and format of x

x is the residual stream, [b, s, h], with the tokens of this rank. `context` is what attention needs in
addition: `cache` in generation, `documents` of packed samples, `rotation` of rotary positions. A block passes
it on to attention, and treats each token by itself elsewhere, because a rank may hold only some of them.

LayerParts makes every parameter: it knows the name that seeds the initial values, so that they are equal in
every layout, and the dimension along which tensor-parallel ranks share the parameter, so that a checkpoint
can be loaded into any other layout.

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

# Gradients of one parameter on ranks that have it whole differ by the rounding of their products.
TOLERANCE = 0.05


class LayerFunction(Protocol):
    """The user's layer(), as the model calls it (checkpoint/own_layer.py)."""

    def __call__(self, config: GPTConfig, index: int, parts: "LayerParts") -> nn.Module:
        """Return block `index`, counted from 0."""


def build_layer(
    index: int,
    config: GPTConfig,
    init: Initializer,
    parallel: ModelParallel,
    layer_function: LayerFunction | None = None,
) -> nn.Module:
    """Build block `index`: nbtrain's own, or the one that the user's function returns."""
    if layer_function is None:
        return TransformerLayer(index, config, init, parallel)
    block = layer_function(config, index, LayerParts(index, config, init, parallel))
    block.is_own_block = True  # type: ignore[assignment]
    return block


def is_block(layer: Any) -> bool:
    """Return whether a layer of a pipeline is a transformer block, nbtrain's own or the user's."""
    return isinstance(layer, TransformerLayer) or getattr(layer, "is_own_block", False)


class LayerParts:
    """Makes the parts of one block: nbtrain's own, matrices in two kinds of shards, and single parameters.

    A name is the part's place in the block, e.g. "mlp.up", and is given once: it seeds the initial values.
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
        """This rank among them."""
        return self._parallel.tensor.rank

    def norm(self) -> nn.Module:
        """Make a norm of the residual stream, of the kind and epsilon of the section `model`."""
        return self._made(Norm(self._config, self._init, self._parallel))

    def attention(self) -> nn.Module:
        """Make nbtrain's attention: attention(x, **context)."""
        self._named("attention")
        return self._made(Attention(self._index, self._config, self._init, self._parallel))

    def mlp(self) -> nn.Module:
        """Make nbtrain's MLP, of the width and activation of the section `model`."""
        self._named("mlp")
        return self._made(MLP(self._index, self._config, self._init, self._parallel))

    def column_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Make a linear layer whose outputs are divided among the ranks: [b, s, inputs] -> [b, s, outputs/t].

        Its input is the residual stream. `std` replaces model.init_method_std; 0.0 begins with zeros. Raises
        ValueError unless t divides `outputs`.
        """
        full = self._named(name)
        return self._made(ColumnParallelLinear(full, inputs, outputs, bias=bias, std=std, **self._linear))

    def gated_column_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Make a linear layer with two results, (gate, values), each as of column_linear()."""
        full = self._named(name)
        made = GatedColumnParallelLinear(full, inputs, outputs, bias=bias, std=std, **self._linear)
        return self._made(made)

    def row_linear(
        self, name: str, inputs: int, outputs: int, bias: bool = False, std: float | None = None
    ) -> nn.Module:
        """Make a linear layer from columns that are divided among the ranks back to the residual stream: [b,
        s, inputs/t] -> [b, s, outputs].

        The ranks' results are summed. Without `std`, its weights begin smaller by sqrt(2 num_layers), as
        nbtrain's own projections to the residual stream do. Raises ValueError unless t divides
        `inputs`.
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
        """Make a parameter whose whole shape is `shape`, drawn with `std` (None: model.init_method_std), or
        filled with `value`.

        With `shard_dim`, each rank has an equal part of that dimension. Without, each has it whole, and it
        multiplies the residual stream or, with `on_columns`, this rank's columns between a column and a row
        layer; its gradients are summed over the ranks where these differ. Raises ValueError unless t divides
        the dimension. A backward pass raises CodeError if `on_columns` is missing.
        """
        if not shape:
            raise ValueError(f"the parameter {name!r} has no shape; one number has the shape 1")
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
                # Each rank has the gradient of its tokens or columns.
                made.register_hook(lambda grad: mappings.all_reduce(grad.clone(), group))
            elif group.size > 1:
                made.register_hook(_EqualGradients(full, group))
        self._parameters.append(made)
        return made

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream for a product with parameters that are divided along its columns; the
        gradients of x are summed over the ranks. Under sequence parallelism all tokens are gathered.
        """
        if self._parallel.cuts_tokens:
            return mappings.gather_from_sequence_parallel_region(x, self._parallel.tensor)
        return mappings.copy_to_tensor_model_parallel_region(x, self._parallel.tensor)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' partial results, as the residual stream: the end of what copy()
        begins.
        """
        if self._parallel.cuts_tokens:
            return mappings.reduce_scatter_to_sequence_parallel_region(x, self._parallel.tensor)
        return mappings.reduce_from_tensor_model_parallel_region(x, self._parallel.tensor)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the columns of all ranks, [.., c/t] -> [.., c], for a sum over them, such as a norm's.

        Each rank continues with its columns, so the gradients of x are summed over the ranks.
        """
        group = self._parallel.tensor
        return mappings.region(x, group, mappings.all_gather, mappings.reduce_scatter, mappings.COLUMNS)

    def own_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of what gather() returned, [.., c] -> [.., c/t]."""
        return mappings.own_part(x, mappings.COLUMNS, self._parallel.tensor)

    def dropout(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        """Apply model.hidden_dropout to a branch of the residual stream; pass the block's `training`."""
        return dropout(x, self._config.hidden_dropout, training, self._parallel.hidden_stream)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield all parameters that were made."""
        for module in self._modules:
            yield from module.parameters()
        yield from self._parameters

    def _made(self, module: nn.Module) -> nn.Module:
        self._modules.append(module)
        return module

    def _named(self, name: str) -> str:
        if name in self._names:
            raise ValueError(f"the name {name!r} is given twice: it would draw the same initial values again")
        self._names.add(name)
        return f"layers.{self._index}.{name}"


class _EqualGradients:
    """A parameter's hook that compares its first gradient with the ones of the other tensor-parallel ranks.

    Each has the parameter whole. From different gradients they would train different models, and a checkpoint
    would have one of them.
    """

    def __init__(self, name: str, group: Group):
        self._name, self._group, self._is_equal = name, group, False

    def __call__(self, grad: torch.Tensor) -> None:
        if self._is_equal:
            return
        own = grad.float()
        mean = mappings.all_reduce(own.clone(), self._group) / self._group.size
        # Equal on all ranks, so that all of them raise, or none.
        sizes = torch.stack([(own - mean).abs().max(), own.abs().max()])
        difference, size = mappings.all_reduce(sizes, self._group).tolist()
        if difference > TOLERANCE * size:
            raise CodeError(
                f"layer(): {self._name} gets other gradients on each tensor-parallel rank, as if it "
                "multiplied the columns that they divide. Make it by parts.parameter(..., "
                "on_columns=True), or with shard_dim=... if each rank needs only its own part."
            )
        # A gradient of 0 says nothing, and one that is not finite is of a step that is skipped.
        self._is_equal = math.isfinite(size) and size > 0
