"""The layout of a model: the groups in which its layers communicate, and its dropout stream."""

from dataclasses import dataclass

import torch

from nbtrain.parallel import context, ulysses
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.random import TensorParallelStream


@dataclass(frozen=True)
class ModelParallel:
    """The groups that shard a model, as seen by one rank. WHOLE is a model in a single process."""

    tensor: Group = ALONE
    """Ranks that shard each layer's matrices."""
    sequence_parallel: bool = False
    """Whether Megatron's sequence parallelism is on: each rank of `tensor` holds s/t tokens outside of the
    layers whose matrices are sharded.
    """
    ulysses: Group = ALONE
    """Ranks between which Ulysses splits each sequence.

    Each rank holds s/u tokens and, inside attention, n/u heads of all tokens.
    """
    context: Group = ALONE
    """Ranks between which context parallelism splits each sequence.

    Each rank holds s/c tokens. Its queries of all heads attend to the keys of all tokens. At most one of
    `ulysses` and `context` has several ranks.
    """
    stream: TensorParallelStream | None = None
    """Random stream for dropout on activations that differ between the ranks of `tensor`; None without tensor
    parallelism.
    """

    @property
    def cuts_tokens(self) -> bool:
        """Whether the ranks of `tensor` hold different tokens of the residual stream."""
        return self.sequence_parallel and self.tensor.size > 1

    @property
    def tokens_shared_by(self) -> int:
        """Number of ranks between which the tokens of each sequence are split in the residual stream."""
        return self.sequence.size * (self.tensor.size if self.cuts_tokens else 1)

    @property
    def sequence(self) -> Group:
        """Ranks between which each sequence is split, by Ulysses or by context parallelism."""
        return self.context if self.context.size > 1 else self.ulysses

    def own_tokens(self, x: torch.Tensor, chunk_tokens: int = 0) -> torch.Tensor:
        """Return this rank's tokens of whole sequences: [b, s] -> [b, s/u] or [b, s/c].

        `chunk_tokens` is the chunk size of FPDT (ulysses.own_tokens).
        """
        if self.context.size > 1:
            return context.own_tokens(x, self.context)
        return ulysses.own_tokens(x, self.ulysses, chunk_tokens) if self.ulysses.size > 1 else x

    def set_own_tokens(self, x: torch.Tensor, own: torch.Tensor, chunk_tokens: int = 0) -> None:
        """Write this rank's tokens `own`, as returned by own_tokens(), to their positions in x.

        All other positions of x are set to zero.
        """
        if self.context.size > 1:
            context.set_own_tokens(x, self.context, own)
        else:
            ulysses.set_own_tokens(x, self.ulysses, own, chunk_tokens)

    @property
    def hidden_stream(self) -> TensorParallelStream | None:
        """Random stream for dropout on the residual stream; None if it is equal on the ranks of `tensor`."""
        return self.stream if self.cuts_tokens else None


WHOLE = ModelParallel()
