"""The boundaries of a tensor-parallel region: each has a collective forward and another one backward.

    function                                        forward            backward
    copy_to_tensor_model_parallel_region            unchanged          sum
    reduce_from_tensor_model_parallel_region        sum                unchanged
    gather_from_tensor_model_parallel_region        gather columns     own columns
    gather_from_sequence_parallel_region            gather tokens      sum, own tokens
    reduce_scatter_to_sequence_parallel_region      sum, own tokens    gather tokens
    copy_parameters_to_sequence_parallel_region     unchanged          sum

The names and pairs are Megatron-LM's (arXiv:1909.08053, figure 3; arXiv:2205.05198, section 4.2.2).
Activations are [b, s, h]: dimension 1 is the tokens, and the last dimension the columns. Only all_reduce()
changes its input. On a single rank, nothing happens. Collectives use tensors whose first dimension is split
by rank, which NCCL and gloo both support.

Shapes: b sequences, s tokens, h hidden, t ranks in the group
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.groups import Group

TOKENS, COLUMNS = 1, -1


def all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum a tensor over the ranks, in place."""
    if group.size > 1:
        dist.all_reduce(x, group=group.process_group)
    return x


def own_part(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """Return a view of this rank's part of dimension `dim`, which is split into t equal parts.

    Raises ValueError if t does not divide the dimension.
    """
    if x.shape[dim] % group.size:
        raise ValueError(
            f"dimension {dim} of {tuple(x.shape)} cannot be split into {group.size} equal parts: "
            f"its size must be a multiple of {group.size}."
        )
    size = x.shape[dim] // group.size
    return x.narrow(dim, group.rank * size, size)


def all_gather(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """Concatenate the parts of all ranks along `dim`."""
    return Gathering(x, dim, group).wait()


def reduce_scatter(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """Sum a tensor over the ranks, and return this rank's part along `dim`."""
    return Scattering(x, dim, group).wait()


class Gathering:
    """An all-gather in progress; wait() returns its result."""

    def __init__(self, x: torch.Tensor, dim: int, group: Group):
        self._x, self._dim, self._size = x.contiguous(), dim, group.size
        if group.size > 1:
            self._parts = x.new_empty(group.size * x.shape[0], *x.shape[1:])
            self._work = dist.all_gather_into_tensor(
                self._parts, self._x, group=group.process_group, async_op=True
            )

    def wait(self) -> torch.Tensor:
        if self._size == 1:
            return self._x
        self._work.wait()
        dim = self._dim % self._x.dim()
        # [t b, ..] -> [t, b, ..] -> ranks next to the dimension that they shard. There is no copy if b = 1.
        parts = self._parts.unflatten(0, (self._size, -1))
        return parts.movedim(0, dim).flatten(dim, dim + 1)


class Scattering:
    """A reduce-scatter in progress; wait() returns its result."""

    def __init__(self, x: torch.Tensor, dim: int, group: Group):
        self._own = own_part(x, dim, group)
        self._work: Any = None
        if group.size > 1:
            dim %= x.dim()
            parts = x.unflatten(dim, (group.size, -1)).movedim(dim, 0).flatten(0, 1)
            # The handle keeps the sent tensor alive until the collective is done.
            self._sent = parts.contiguous()
            self._own = x.new_empty(self._own.shape)
            self._work = dist.reduce_scatter_tensor(
                self._own, self._sent, group=group.process_group, async_op=True
            )

    def wait(self) -> torch.Tensor:
        if self._work is not None:
            self._work.wait()
        return self._own


def _unchanged(x: torch.Tensor, _group: Group) -> torch.Tensor:
    return x.view_as(x)


def _summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    # Not in place, because another branch may use the gradient, and other code the activation.
    return all_reduce(x.clone(memory_format=torch.contiguous_format), group)


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, conjugate, arguments):
        ctx.conjugate, ctx.arguments = conjugate, arguments
        return forward(x, *arguments)

    @staticmethod
    def backward(ctx, grad):
        return ctx.conjugate(grad, *ctx.arguments), None, None, None


class _CopyParameters(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, *parameters):
        ctx.group = group
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx, *grads):
        # Send one message for all parameters: they are small, and each message costs a kernel launch.
        flat = all_reduce(torch.cat([grad.flatten() for grad in grads]), ctx.group)
        parts = flat.split([grad.numel() for grad in grads])
        return None, *(part.view_as(grad) for part, grad in zip(parts, grads))


_cross = uncompiled(_Region.apply)
_copy_parameters = uncompiled(_CopyParameters.apply)


def region(x: torch.Tensor, group: Group, forward: Callable, conjugate: Callable, *dim: int) -> torch.Tensor:
    """Return forward(x, *dim, group); the backward pass applies conjugate(gradient, *dim, group).

    On a single rank, return x itself.
    """
    return _cross(x, forward, conjugate, (*dim, group)) if group.size > 1 else x


def copy_to_tensor_model_parallel_region(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Enter a region in which each rank uses x for its own columns. Gradients are summed."""
    return region(x, group, _unchanged, _summed)


def reduce_from_tensor_model_parallel_region(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum the partial results that each rank computed from its rows."""
    return region(x, group, _summed, _unchanged)


def gather_from_tensor_model_parallel_region(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Gather [.., h/t] to [.., h], for a computation that all ranks repeat."""
    return region(x, group, all_gather, own_part, COLUMNS)


def gather_from_sequence_parallel_region(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Gather [b, s/t, ..] to [b, s, ..] for ranks that compute different columns. Gradients are summed."""
    return region(x, group, all_gather, reduce_scatter, TOKENS)


def reduce_scatter_to_sequence_parallel_region(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Sum the partial results that each rank computed from its rows, and return this rank's tokens.

    [b, s, ..] -> [b, s/t, ..].
    """
    return region(x, group, reduce_scatter, all_gather, TOKENS)


def copy_parameters_to_sequence_parallel_region(
    *parameters: torch.Tensor, group: Group
) -> tuple[torch.Tensor, ...]:
    """Return unsharded parameters for use on this rank's tokens, and sum their gradients over the ranks.

    This is for LayerNorms and the biases of row layers. Each rank has only the gradient of its own tokens;
    without the sum in the backward pass, the copies on the ranks would silently drift apart.
    """
    return _copy_parameters(group, *parameters) if group.size > 1 else parameters
