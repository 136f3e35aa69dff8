"""Context parallelism by all-gather: each sequence is sharded across ranks, which gather its keys and values.

A sequence is split into 2c equal chunks. Of c ranks, rank r has the chunks r and 2c - 1 - r, an early and a
late chunk, as in Megatron-LM, so that all ranks have equal shares of the causal triangle. All layers work on
the rank's own tokens. Only attention needs other tokens: the keys and values of the whole sequence are
gathered in one message, and each of the rank's chunks attends to the keys up to its own end. The gradients of
keys and values are summed and scattered back. Heads are not sharded, so any number of heads is supported.

Shapes: b sequences, s tokens, g groups, d head size, c ranks in the group
"""

import torch
from torch.autograd.function import once_differentiable

from nbtrain.parallel import mappings
from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.groups import Group

CHUNKS = 2
"""Number of chunks that each rank has."""
_LAST, _TOKENS = -1, -2


def own_tokens(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return this rank's two chunks of tokens, one after the other: [.., s] -> [.., s/c].

    Raises ValueError if the sequence cannot be split into equal chunks.
    """
    return _chunks_of(x, _LAST, group.rank, group).flatten(-2)


def set_own_tokens(x: torch.Tensor, group: Group, own: torch.Tensor) -> None:
    """Write this rank's tokens `own`, as returned by own_tokens(), to their positions in x.

    All other positions of x are set to zero.
    """
    x.zero_()
    chunks = _chunks_of(x, _LAST, group.rank, group)
    chunks.copy_(own.view_as(chunks))


def own_starts(tokens: int, group: Group) -> tuple[int, int]:
    """Return the positions at which this rank's two chunks begin in a sequence of `tokens` tokens."""
    chunk = tokens // (CHUNKS * group.size)
    return group.rank * chunk, (CHUNKS * group.size - 1 - group.rank) * chunk


def seen_keys(
    key: torch.Tensor, value: torch.Tensor, group: Group
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Gather the keys and values [b, g, s/c, d] of all ranks, and return (keys, values) for each chunk.

    The keys and values for a chunk reach from the sequence's beginning to the chunk's end. In the backward
    pass, gradients are summed over the ranks, and each rank receives those of its own tokens.
    """
    early_key, early_value, late_key, late_value = _seen_keys(key, value, group)
    return (early_key, early_value), (late_key, late_value)


class _SeenKeys(torch.autograd.Function):
    """All-gather for both chunks in one function, so that backward builds the whole gradient only once."""

    @staticmethod
    def forward(ctx, key, value, group):
        own = torch.stack([key, value])
        parts = mappings.all_gather(own, 0, group).unflatten(0, (group.size, -1))
        shape = list(own.shape)
        shape[_TOKENS] *= group.size
        whole = own.new_empty(shape)
        for rank, part in enumerate(parts):
            chunks = _chunks_of(whole, _TOKENS, rank, group)
            chunks.copy_(part.view(chunks.shape))
        ctx.group, ctx.tokens = group, shape[_TOKENS]
        ends = (start + key.shape[_TOKENS] // CHUNKS for start in own_starts(ctx.tokens, group))
        return tuple(each[:, :, :end] for end in ends for each in whole)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        group, (early, late) = ctx.group, (grads[:2], grads[2:])
        shape = list(late[0].shape)
        shape[_TOKENS] = ctx.tokens
        whole = late[0].new_zeros(2, *shape)
        for each, first, second in zip(whole, early, late):
            each[:, :, : second.shape[_TOKENS]] = second
            each[:, :, : first.shape[_TOKENS]] += first
        parts = [_chunks_of(whole, _TOKENS, rank, group).flatten(-3, -2) for rank in range(group.size)]
        own = mappings.reduce_scatter(torch.cat(parts), 0, group)
        return *own, None


_seen_keys = uncompiled(_SeenKeys.apply)


def _chunks_of(x: torch.Tensor, dim: int, rank: int, group: Group) -> torch.Tensor:
    """Return a view of a rank's two chunks of the tokens in dimension `dim`, which becomes [2, s/2c]."""
    count, dim = CHUNKS * group.size, dim % x.dim()
    if x.shape[dim] % count:
        raise ValueError(
            f"{x.shape[dim]} tokens cannot be split into two chunks for each of {group.size} "
            f"context-parallel ranks: the number must be a multiple of {count}."
        )
    chunks = x.unflatten(dim, (count, -1))
    return chunks[(slice(None),) * dim + (slice(rank, count - rank, count - 1 - 2 * rank),)]
