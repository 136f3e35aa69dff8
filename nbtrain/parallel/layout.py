"""Layout of a model: the groups in which its layers communicate, and their dropout streams."""

from dataclasses import dataclass

from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.random import TensorParallelStream


@dataclass(frozen=True)
class ModelParallel:
    """Groups that shard a model, as one rank sees them; WHOLE is a model in one process."""

    tensor: Group = ALONE
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """Megatron's sequence parallelism: between the regions of `tensor` each rank holds s/t tokens."""
    ulysses: Group = ALONE
    """Ranks that share each sequence: each holds s/u tokens, and inside attention n/u heads of all tokens."""
    stream: TensorParallelStream | None = None
    """Random stream for dropout on activations that differ between the ranks of `tensor`, if any do."""

    @property
    def cuts_tokens(self) -> bool:
        """Whether each rank of `tensor` holds different tokens of the residual stream."""
        return self.sequence_parallel and self.tensor.size > 1

    @property
    def hidden_stream(self) -> TensorParallelStream | None:
        """Random stream for dropout on the residual stream; None if the ranks of `tensor` hold it alike."""
        return self.stream if self.cuts_tokens else None


WHOLE = ModelParallel()
