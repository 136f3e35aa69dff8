"""Preference pairs in training: log-probabilities and rewards of their answers, from the tokens' losses."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from nbtrain.config.sections.dpo_section import DpoConfig
from nbtrain.model.preference import Pairs, answer_log_probabilities, rewards
from nbtrain.train.engine.batches import Batch


class PairFigures:
    """Computes the log-probabilities of the answers in micro batches from the losses of their tokens."""

    def __init__(self, dpo: DpoConfig, device: torch.device):
        self._dpo, self._device = dpo, device
        self._noted: list[tuple[Batch, torch.Tensor]] = []

    def of(self, batch: Batch) -> torch.Tensor:
        """Return zeros, fp32 [b, s], which the model replaces by each token's loss."""
        token_losses = torch.zeros(batch.labels.shape, device=self._device)
        self._noted.append((batch, token_losses))
        return token_losses

    @property
    def noted(self) -> "_Noted":
        """This object with the interface `Noted`, through which a validation records token losses."""
        return _Noted(self)

    def log_probabilities(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Yield (micro batch, log-probabilities float64 [P, 2]) for each micro batch."""
        for batch, token_losses in self._noted:
            assert batch.loss_mask is not None
            yield batch, answer_log_probabilities(token_losses, batch.loss_mask, _pairs_of(batch))

    def sums(self, sequence_ranks: int = 1) -> torch.Tensor:
        """Return float64 [4]: the sum of chosen rewards, the sum of rejected rewards, the number of pairs
        ranked correctly, and the number of all pairs.
        """
        assert sequence_ranks == 1
        total = torch.zeros(4, dtype=torch.float64, device=self._device)
        for batch, found in self.log_probabilities():
            own = rewards(found, _pairs_of(batch), self._dpo)
            total[:2] += own.sum(0)
            total[2] += (own[:, 0] > own[:, 1]).sum()
            total[3] += len(own)
        return total


class _Noted(NamedTuple):
    figures: PairFigures

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"token_losses": self.figures.of(batch)}


def _pairs_of(batch: Batch) -> Pairs:
    assert batch.answers is not None and batch.reference is not None
    return Pairs(batch.answers, batch.reference)
