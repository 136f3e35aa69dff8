"""What a model is told of the layout: the groups that its layers talk in, and the numbers they draw apart."""

from dataclasses import dataclass

from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.random import TensorParallelStream


@dataclass(frozen=True)
class ModelParallel:
    """How one rank's part of a model is cut; WHOLE is a model in one process."""

    tensor: Group = ALONE
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """Megatron's: between the regions of `tensor` each rank holds s/t tokens."""
    ulysses: Group = ALONE
    """Ranks that share each sequence: each holds s/u tokens, and inside attention n/u heads of all tokens."""
    stream: TensorParallelStream | None = None
    """For dropout on what the ranks of `tensor` hold apart; None where there is nothing apart."""

    @property
    def cuts_tokens(self) -> bool:
        """Whether each rank of `tensor` holds other tokens of the residual stream."""
        return self.sequence_parallel and self.tensor.size > 1

    @property
    def hidden_stream(self) -> TensorParallelStream | None:
        """For dropout on the residual stream, which the ranks of `tensor` hold alike unless its tokens are
        cut."""
        return self.stream if self.cuts_tokens else None


WHOLE = ModelParallel()
