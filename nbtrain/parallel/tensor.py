"""Layers whose weights are sharded across tensor-parallel ranks, with their collectives.

On a single rank, they are equal to torch's layers.

    ColumnParallelLinear     shards the rows of the weight: outputs such as heads, or columns of the MLP
    RowParallelLinear        shards the columns of the weight; follows a ColumnParallelLinear; sums outputs
    VocabParallelEmbedding   shards the rows of the vocabulary

With sequence_parallel, activations outside of these layers are sharded along the sequence: the input of a
column layer and the output of a row or embedding layer are [b, s/t, h]. The amount of communication stays the
same, because a sum consists of a reduce-scatter and an all-gather. Dropout, LayerNorm and the residual stream
use 1/t of the memory.

Every weight is a slice of the whole weight that a single process would draw, so the initial model is the same
in every layout. A sharded parameter has Megatron's attributes `tensor_model_parallel` and `partition_dim`;
DeepSpeed counts all other parameters only in one rank's gradient norm. `sequence_parallel` marks unsharded
parameters that are applied only to some of the tokens.

Shapes: b sequences, s tokens, i inputs, o outputs, h hidden, v padded vocabulary, t ranks of the group
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from nbtrain.parallel import fp8, mappings
from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.four_bits import FourBitMatrix, FourBits
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.mappings import TOKENS
from nbtrain.parallel.trained_rows import TrainedRows, embedded


class WholeParameters(Protocol):
    """Draws unsharded parameters by name, like Initializer in model/initialization.py."""

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> nn.Parameter: ...

    def zeros(self, *shape: int) -> nn.Parameter: ...


class Products(NamedTuple):
    """Functions for the three products of a linear layer."""

    linear: Callable[..., torch.Tensor]
    """Function of (x, weight, bias) that returns y."""
    input_gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Function of (gradient of y, weight) that returns the gradient of x."""
    weight_gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Function of (gradient of y, x) that returns the gradient of the weight."""


def _weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad.flatten(0, -2).T @ x.flatten(0, -2)


PLAIN = Products(F.linear, torch.matmul, _weight_gradient)
FP8 = Products(fp8.linear, fp8.input_gradient, fp8.weight_gradient)


def shard(whole: nn.Parameter, dim: int, group: Group) -> nn.Parameter:
    """Return this rank's part of `whole`, marked as sharded along `dim`."""
    # Copy the part, because a view would keep the whole weight in memory.
    part = whole if group.size == 1 else nn.Parameter(mappings.own_part(whole.detach(), dim, group).clone())
    part.tensor_model_parallel = True  # type: ignore[attr-defined]
    part.partition_dim = dim  # type: ignore[attr-defined]
    return part


def partition_dim(parameter: torch.Tensor) -> int | None:
    """Return the dimension along which a parameter is sharded; None if it is not sharded."""
    is_cut = getattr(parameter, "tensor_model_parallel", False)
    return parameter.partition_dim if is_cut else None  # type: ignore[attr-defined]


class _CutModule(nn.Module):
    """Base class of layers that shard `count` rows or columns of a matrix across the ranks.

    Every `unit` consecutive rows or columns stay on one rank. Raises ValueError if the ranks would get
    unequal parts.
    """

    def __init__(self, what: str, count: int, unit: int, group: Group, sequence_parallel: bool):
        super().__init__()
        if count % (unit * group.size):
            raise ValueError(
                f"{what} cannot be sharded across {group.size} tensor-parallel ranks: the number must be a "
                f"multiple of {unit * group.size}."
            )
        self.group = group
        self.sequence_parallel = sequence_parallel and group.size > 1
        self.lora: nn.Module | None = None
        """Adapter whose output is added (lora.py); None without one."""
        self.ia3: nn.Parameter | None = None
        """Vector that multiplies the outputs of a column layer or the inputs of a row layer (ia3.py); None
        without one.
        """
        self.rescaled: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        """Function of (outputs, ia3) that returns a column layer's outputs, multiplied by the vector."""

    def hold_in_four_bits(self, how: FourBits) -> None:
        """Replace this rank's part of the layer's matrices by 4-bit matrices, which are 0 until loaded."""
        for name in ("weight", "gate_weight"):
            weight = getattr(self, name, None)
            if weight is not None:
                delattr(self, name)
                self.add_module(name, FourBitMatrix(weight, how))


class ColumnParallelLinear(_CutModule):
    """Linear layer that computes this rank's columns of y = x W^T + b.

    [b, s, i] -> [b, s, o/t], weight [o/t, i], bias [o/t]. With sequence_parallel, x is [b, s/t, i]. It is
    gathered in the forward pass and again in the backward pass, so that only this rank's part is kept. Every
    `unit` rows stay on one rank, such as the 3 d rows of a head in a packed query-key-value matrix. Raises
    ValueError if the units cannot be divided evenly among the ranks.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        init: WholeParameters,
        group: Group = ALONE,
        sequence_parallel: bool = False,
        unit: int = 1,
        products: Products = PLAIN,
        bias: bool = True,
        std: float | None = None,
    ):
        what = f"{name}: {outputs} outputs in units of {unit}"
        super().__init__(what, outputs, unit, group, sequence_parallel)
        self.products = products
        self.weight = shard(init.normal(f"{name}.weight", outputs, inputs, std=std), 0, group)
        self.bias = shard(init.zeros(outputs), 0, group) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _adapted(self._outputs(x, (self.weight, self.bias))[0], x, self.lora)
        return y if self.ia3 is None or self.rescaled is None else self.rescaled(y, self.ia3)

    def _outputs(
        self, x: torch.Tensor, *layers: tuple[torch.Tensor, torch.Tensor | None]
    ) -> tuple[torch.Tensor, ...]:
        """Return one output for each (weight, bias) in `layers`, all computed from the same x.

        x is gathered only once, and its gradient is summed only once.
        """
        if isinstance(self.weight, FourBitMatrix):
            x, *biases = _as_products(x, *(bias for _, bias in layers))
            entering = (
                mappings.gather_from_sequence_parallel_region
                if self.sequence_parallel
                else mappings.copy_to_tensor_model_parallel_region
            )
            x = entering(x, self.group)
            return tuple(matrix(x, bias) for (matrix, _), bias in zip(layers, biases, strict=True))
        if self.group.size == 1 and self.products is PLAIN:
            if len(layers) > 1:
                # Autocast would cast and keep x separately for each layer.
                (x,) = _as_products(x)
            return tuple(F.linear(x, weight, bias) for weight, bias in layers)
        x, *parameters = _as_products(x, *itertools.chain(*layers))
        products = _products(self.products, x)
        return _column_linear(x, self.group, self.sequence_parallel, products, *parameters)


class GatedColumnParallelLinear(ColumnParallelLinear):
    """Linear layer with two outputs, an MLP's gate and its values: (x Wg^T + bg, x W^T + b).

    Each output is [b, s, o/t]. Every rank has the same columns of both outputs. The two weights are not
    packed, so that each is sharded, saved and updated like any other weight, and both outputs are contiguous.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        init: WholeParameters,
        group: Group = ALONE,
        sequence_parallel: bool = False,
        products: Products = PLAIN,
        bias: bool = True,
        std: float | None = None,
    ):
        super().__init__(name, inputs, outputs, init, group, sequence_parallel, 1, products, bias, std)
        self.gate_weight = shard(init.normal(f"{name}.gate_weight", outputs, inputs, std=std), 0, group)
        self.gate_bias = shard(init.zeros(outputs), 0, group) if bias else None
        self.gate_lora: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        gate, opened = self._outputs(x, (self.gate_weight, self.gate_bias), (self.weight, self.bias))
        return _adapted(gate, x, self.gate_lora), _adapted(opened, x, self.lora)


class RowParallelLinear(_CutModule):
    """Linear layer that computes y = x W^T + b from this rank's columns of x.

    [b, s, i/t] -> [b, s, o], weight [o, i/t], bias [o]. With sequence_parallel, y is [b, s/t, o]. The bias is
    added only once. Raises ValueError unless t divides i.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        init: WholeParameters,
        group: Group = ALONE,
        sequence_parallel: bool = False,
        residual: bool = False,
        products: Products = PLAIN,
        bias: bool = True,
        std: float | None = None,
    ):
        super().__init__(f"{name}: {inputs} inputs", inputs, 1, group, sequence_parallel)
        self.products = products
        whole = init.normal(f"{name}.weight", outputs, inputs, residual=residual, std=std)
        self.weight = shard(whole, 1, group)
        self.bias = init.zeros(outputs) if bias else None
        if self.bias is not None:
            self.bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ia3 is not None:
            x = x * self.ia3.to(x.dtype)
        if isinstance(self.weight, FourBitMatrix):
            return _adapted(self._four_bit_outputs(self.weight, x), x, self.lora)
        if self.group.size == 1 and self.products is PLAIN:
            return _adapted(F.linear(x, self.weight, self.bias), x, self.lora)
        given = x
        bias: torch.Tensor | None = self.bias
        if self.sequence_parallel and bias is not None:
            (bias,) = mappings.copy_parameters_to_sequence_parallel_region(bias, group=self.group)
        x, weight, bias = _as_products(x, self.weight, bias)
        products = _products(self.products, x)
        y = _row_linear(x, weight, self.group, self.sequence_parallel, products)
        return _adapted(y if bias is None else y + bias, given, self.lora)

    def _four_bit_outputs(self, matrix: FourBitMatrix, x: torch.Tensor) -> torch.Tensor:
        # The bias is frozen like the matrix, so it has no gradient to sum.
        x, bias = _as_products(x, self.bias)
        leaving = (
            mappings.reduce_scatter_to_sequence_parallel_region
            if self.sequence_parallel
            else mappings.reduce_from_tensor_model_parallel_region
        )
        y = leaving(matrix(x), self.group)
        return y if bias is None else y + bias


class VocabParallelEmbedding(_CutModule):
    """Embedding of token ids. [b, s] -> [b, s, h] (sequence_parallel: [b, s/t, h]), weight [v/t, h].

    If embeddings are tied, the weight is also the output matrix (cross_entropy.py). The tokens in
    `trained_ids` have separate rows, trained_rows [n, h]. Raises ValueError unless t divides v.
    """

    def __init__(
        self,
        name: str,
        padded_vocab_size: int,
        hidden_size: int,
        init: WholeParameters,
        group: Group = ALONE,
        sequence_parallel: bool = False,
        trained_ids: tuple[int, ...] = (),
    ):
        what = f"{name}: a padded vocabulary of {padded_vocab_size}"
        super().__init__(what, padded_vocab_size, 1, group, sequence_parallel)
        self.weight = shard(init.normal(f"{name}.weight", padded_vocab_size, hidden_size), 0, group)
        self.trained_ids = trained_ids
        self.trained_rows = init.zeros(len(trained_ids), hidden_size) if trained_ids else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self._found(tokens)
        if self.trained_rows is None:
            return found
        trained = TrainedRows(self.trained_rows, self.trained_ids)
        return embedded(found, tokens, trained, self.group, self.sequence_parallel)

    def _found(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        # Under ZeRO 3, the weight has its shape only while it is gathered, as it is here.
        rows = len(self.weight)
        here = tokens - self.group.rank * rows
        elsewhere = (here < 0) | (here >= rows)
        found = F.embedding(here.masked_fill(elsewhere, 0), self.weight)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.sequence_parallel:
            return mappings.reduce_scatter_to_sequence_parallel_region(found, self.group)
        return mappings.reduce_from_tensor_model_parallel_region(found, self.group)


def _adapted(y: torch.Tensor, x: torch.Tensor, lora: nn.Module | None) -> torch.Tensor:
    return y if lora is None else y + lora(x)


def _as_products(x: torch.Tensor, *parameters: torch.Tensor | None) -> tuple[Any, ...]:
    """Cast tensors to autocast's dtype if autocast is on.

    This is needed because autocast has no effect in the backward pass of an autograd function.
    """
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *parameters
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), *(None if tensor is None else tensor.to(dtype) for tensor in parameters)


def _products(wanted: Products, x: torch.Tensor) -> Products:
    # A model trained in FP8 may be loaded in fp32 to generate text.
    return wanted if x.dtype == torch.bfloat16 else PLAIN


class _ColumnLinear(torch.autograd.Function):
    """Products of one x with several weights; `parameters` are weight, bias, weight, bias, ...

    In the backward pass, the gradient of x is summed over the ranks while the gradients of the weights are
    computed.
    """

    @staticmethod
    def forward(ctx, x, group, sequence_parallel, products, *parameters):
        weights, biases = parameters[::2], parameters[1::2]
        ctx.save_for_backward(x, *weights)
        ctx.group, ctx.sequence_parallel, ctx.products = group, sequence_parallel, products
        if sequence_parallel:
            x = mappings.all_gather(x, TOKENS, group)
        return tuple(products.linear(x, weight, bias) for weight, bias in zip(weights, biases))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        needs_x, _, _, _, *needs = ctx.needs_input_grad
        needs_weights, needs_biases = needs[::2], needs[1::2]
        grad_x = gathering = work = None
        if ctx.sequence_parallel and any(needs_weights):
            gathering = mappings.Gathering(x, TOKENS, ctx.group)
        if needs_x:
            grad_x = ctx.products.input_gradient(grads[0], weights[0])
            for grad, weight in zip(grads[1:], weights[1:]):
                grad_x.add_(ctx.products.input_gradient(grad, weight))
            if ctx.sequence_parallel:
                work = mappings.Scattering(grad_x, TOKENS, ctx.group)
            elif ctx.group.size > 1:
                work = torch.distributed.all_reduce(grad_x, group=ctx.group.process_group, async_op=True)
        if any(needs_weights) and gathering is not None:
            x = gathering.wait()
        found: list[torch.Tensor | None] = []
        for grad, needs_weight, needs_bias in zip(grads, needs_weights, needs_biases):
            found.append(ctx.products.weight_gradient(grad, x) if needs_weight else None)
            found.append(grad.flatten(0, -2).sum(0) if needs_bias else None)
        if work is not None:
            done = work.wait()
            grad_x = done if ctx.sequence_parallel else grad_x
        return grad_x, None, None, None, *found


class _RowLinear(torch.autograd.Function):
    """A product and its sum over the ranks in one function, so that the sum needs no second buffer."""

    @staticmethod
    def forward(ctx, x, weight, group, sequence_parallel, products):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.sequence_parallel, ctx.products = group, sequence_parallel, products
        y = products.linear(x, weight)
        return (
            mappings.reduce_scatter(y, TOKENS, group) if sequence_parallel else mappings.all_reduce(y, group)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if ctx.sequence_parallel:
            grad = mappings.all_gather(grad, TOKENS, ctx.group)
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        grad_x = ctx.products.input_gradient(grad, weight) if needs_x else None
        grad_weight = ctx.products.weight_gradient(grad, x) if needs_weight else None
        return grad_x, grad_weight, None, None, None


_column_linear = uncompiled(_ColumnLinear.apply)
_row_linear = uncompiled(_RowLinear.apply)
