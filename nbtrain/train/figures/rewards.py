"""Rewards of preference pairs, as they are reported."""

from typing import NamedTuple

import torch


class Rewards(NamedTuple):
    """Mean rewards over preference pairs. A reward is beta times the difference between the model's and the
    reference's log-probability of an answer.
    """

    chosen: float
    rejected: float
    accuracy: float
    """Fraction of the pairs whose chosen answer has the higher reward."""

    @property
    def margin(self) -> float:
        return self.chosen - self.rejected

    @classmethod
    def of(cls, sums: torch.Tensor) -> "Rewards":
        """Compute the rewards from the result of PairFigures.sums()."""
        chosen, rejected, better, pairs = sums.tolist()
        return cls(*(total / max(pairs, 1.0) for total in (chosen, rejected, better)))
