"""Sums, maxima and cross entropy over a vocabulary that is sharded across ranks, for a user-defined loss().

Each tensor-parallel rank holds the logits of some of the token ids. The methods of Vocabulary return results
over all ids, equal on all ranks, with the same gradients as in one process. Only gather() exchanges logits.

Shapes: b sequences, s tokens, v ids of the vocabulary, w ids on this rank (v with a single rank)
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import Group


@dataclass(frozen=True)
class Vocabulary:
    """A model's vocabulary, without padding ids, and this rank's part of it."""

    group: Group
    """Tensor-parallel ranks that shard the vocabulary."""
    size: int
    """Number of ids in the vocabulary, v."""
    padded: int
    """Number of ids per rank, including padding, which is the same on all ranks."""

    @property
    def first(self) -> int:
        """First id on this rank."""
        return min(self.group.rank * self.padded, self.size)

    @property
    def width(self) -> int:
        """Number of ids on this rank, w. The last ranks may have fewer ids, or none."""
        return min(self.first + self.padded, self.size) - self.first

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values over the ranks, [b, s] -> [b, s], for example vocabulary.sum(logits.exp().sum(-1))."""
        return mappings.reduce_from_tensor_model_parallel_region(values, self.group)

    def max(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the largest logit at each token over all ids, [b, s, w] -> [b, s], without a gradient."""
        with torch.no_grad():
            if self.width:
                largest = logits.amax(-1)
            else:
                largest = logits.new_full(logits.shape[:-1], float("-inf"))
            if self.group.size > 1:
                dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group.process_group)
        return largest

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log(sum(exp(logits))) over all ids, [b, s, w] -> [b, s]."""
        largest = self.max(logits)
        return self.sum((logits - largest.unsqueeze(-1)).exp().sum(-1)).log() + largest

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of this rank's ids, [b, s, w]."""
        return logits - self.copy(self.logsumexp(logits)).unsqueeze(-1)

    def of_labels(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return each token's value at its label: values [b, s, w], labels [b, s] -> [b, s].

        The value comes from the rank that has the label's id.
        """
        if self.group.size == 1:
            return values.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        if not self.width:
            return self.sum(values.sum(-1))
        own = labels - self.first
        is_here = (own >= 0) & (own < self.width)
        index = own.where(is_here, 0).unsqueeze(-1)
        return self.sum(values.gather(-1, index).squeeze(-1).where(is_here, 0.0))

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return -log softmax(logits)[label] for each token: logits [b, s, w], labels [b, s] -> [b, s]."""
        return self.logsumexp(logits) - self.of_labels(logits, labels)

    def copy(self, values: torch.Tensor) -> torch.Tensor:
        """Return `values` unchanged, and sum their gradients over the ranks in the backward pass.

        `values` must be equal on all ranks, like the results of sum(), max() and logsumexp(). Call copy()
        before you combine such a result with this rank's logits again, as log_softmax() does.
        """
        return mappings.copy_to_tensor_model_parallel_region(values, self.group)

    def gather(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of all ids, [b, s, w] -> [b, s, v], for a computation that all ranks repeat."""
        if self.group.size == 1:
            return logits
        missing = self.padded - self.width
        padded: Any = torch.nn.functional.pad(logits, (0, missing)) if missing else logits
        return mappings.gather_from_tensor_model_parallel_region(padded, self.group)[..., : self.size]
