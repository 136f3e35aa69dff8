"""The layout of a model: the groups in which its layers communicate, and their dropout streams."""

from dataclasses import dataclass

import torch

from nbtrain.parallel import context, ulysses
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.random import TensorParallelStream


@dataclass(frozen=True)
class ModelParallel:
    """The groups that shard a model, from the view of one rank; WHOLE is a model in one process."""

    tensor: Group = ALONE
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """Whether Megatron's sequence parallelism is on: each rank holds s/t tokens between the regions of
    `tensor`.
    """
    ulysses: Group = ALONE
    """Ranks that share each sequence. Each holds s/u tokens and, inside attention, n/u heads of all
    tokens.
    """
    context: Group = ALONE
    """Ranks that share each sequence by context parallelism. Each holds s/c tokens, and attends with all
    heads to the keys of all tokens. Only one of `ulysses` and `context` has several ranks.
    """
    stream: TensorParallelStream | None = None
    """Random stream for dropout on activations that differ between the ranks of `tensor`; None if none
    differ.
    """

    @property
    def cuts_tokens(self) -> bool:
        """Return whether each rank of `tensor` holds different tokens of the residual stream."""
        return self.sequence_parallel and self.tensor.size > 1

    @property
    def tokens_shared_by(self) -> int:
        """Return the number of ranks among which the residual stream divides the tokens of a sequence."""
        return self.sequence.size * (self.tensor.size if self.cuts_tokens else 1)

    @property
    def sequence(self) -> Group:
        """Return the ranks that share each sequence, by Ulysses or by context parallelism."""
        return self.context if self.context.size > 1 else self.ulysses

    def own_tokens(self, x: torch.Tensor, chunk_tokens: int = 0) -> torch.Tensor:
        """Return the tokens of this rank of `sequence`: [b, s] -> [b, s/u] or [b, s/c].

        `chunk_tokens` is FPDT's (ulysses.own_tokens).
        """
        if self.context.size > 1:
            return context.own_tokens(x, self.context)
        return ulysses.own_tokens(x, self.ulysses, chunk_tokens) if self.ulysses.size > 1 else x

    def set_own_tokens(self, x: torch.Tensor, own: torch.Tensor, chunk_tokens: int = 0) -> None:
        """Write the result of own_tokens back to its place in x, and zeros everywhere else."""
        if self.context.size > 1:
            context.set_own_tokens(x, self.context, own)
        else:
            ulysses.set_own_tokens(x, self.ulysses, own, chunk_tokens)

    @property
    def hidden_stream(self) -> TensorParallelStream | None:
        """Return the random stream for dropout on the residual stream; None if it is equal on the ranks of
        `tensor`.
        """
        return self.stream if self.cuts_tokens else None


WHOLE = ModelParallel()
