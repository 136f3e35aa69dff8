"""Ulysses (arXiv:2309.14509): ranks exchange tokens for heads before attention, and back after it.

Outside of attention, each rank holds s/u tokens of all heads. Inside, it holds all tokens of n/u heads, so
attention does not change. Query, key and value are packed into one all-to-all, and the gradients are
exchanged in the same way.

Shapes: b sequences, s tokens, n heads, d head size, u ranks in the group
"""

import torch
import torch.distributed as dist

from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import region

TOKENS, HEADS = 1, 2


def heads_for_tokens(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Exchange [b, s/u, n, ..] for all tokens of this rank's heads, [b, s, n/u, ..]; u must divide n."""
    return region(x, group, _heads_for_tokens, _tokens_for_heads)


def tokens_for_heads(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Exchange [b, s, n/u, ..] for all heads of this rank's tokens, [b, s/u, n, ..]."""
    return region(x, group, _tokens_for_heads, _heads_for_tokens)


def own_tokens(x: torch.Tensor, group: Group, chunk_tokens: int = 0) -> torch.Tensor:
    """Return this rank's tokens of whole sequences: [b, s] -> [b, s/u], one of u equal parts.

    With chunk_tokens (FPDT), return this rank's part of every chunk of that many tokens. Raises ValueError if
    the tokens cannot be split evenly.
    """
    return _own_pieces(x, group, chunk_tokens).flatten(TOKENS)


def set_own_tokens(x: torch.Tensor, group: Group, own: torch.Tensor, chunk_tokens: int = 0) -> None:
    """Write this rank's tokens `own`, as returned by own_tokens(), to their positions in x.

    All other positions of x are set to zero.
    """
    x.zero_()
    pieces = _own_pieces(x, group, chunk_tokens)
    pieces.copy_(own.view_as(pieces))


def _own_pieces(x: torch.Tensor, group: Group, chunk_tokens: int) -> torch.Tensor:
    chunk = chunk_tokens or x.shape[TOKENS]
    if x.shape[TOKENS] % chunk or chunk % group.size:
        raise ValueError(
            f"{x.shape[TOKENS]} tokens in chunks of {chunk} cannot be sharded across {group.size} Ulysses "
            f"ranks: {chunk} must divide the tokens, and {group.size} must divide {chunk}."
        )
    # [b, chunks, u, c/u] -> [b, chunks, c/u]
    return x.unflatten(TOKENS, (-1, group.size, chunk // group.size)).select(TOKENS + 1, group.rank)


def _all_to_all(x: torch.Tensor, cut: int, join: int, group: Group) -> torch.Tensor:
    if x.shape[cut] % group.size:
        what = "attention heads" if cut == HEADS else "tokens"
        raise ValueError(
            f"{x.shape[cut]} {what} cannot be sharded across {group.size} Ulysses ranks: "
            f"the number must be a multiple of {group.size}."
        )
    # The ranks' parts are consecutive, in the sent and in the received tensor.
    sent = x.unflatten(cut, (group.size, -1)).movedim(cut, 0).contiguous()
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent, group=group.process_group)
    return came.movedim(0, join).flatten(join, join + 1)


def _heads_for_tokens(x: torch.Tensor, group: Group) -> torch.Tensor:
    return _all_to_all(x, HEADS, TOKENS, group)


def _tokens_for_heads(x: torch.Tensor, group: Group) -> torch.Tensor:
    return _all_to_all(x, TOKENS, HEADS, group)
