"""The layout of a model: the groups in which its layers communicate, and their dropout streams."""

from dataclasses import dataclass

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
        return self.ulysses.size * (self.tensor.size if self.cuts_tokens else 1)

    @property
    def hidden_stream(self) -> TensorParallelStream | None:
        """Return the random stream for dropout on the residual stream; None if it is equal on the ranks of
        `tensor`.
        """
        return self.stream if self.cuts_tokens else None


WHOLE = ModelParallel()
