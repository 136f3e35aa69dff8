"""The loss of each named dataset in a step, summed up on the device: nothing here waits for it."""

import torch

from nbtrain.train.batches import Batch


class DatasetLosses:
    """Sums of one step: of() before a micro batch's forward pass, sums() when the step is done."""

    def __init__(self, num_datasets: int, device: torch.device):
        self._num_datasets = num_datasets
        self._device = device
        self._noted: list[tuple[Batch, torch.Tensor]] = []

    def of(self, batch: Batch) -> torch.Tensor:
        """fp32 [b, s], zero: where the model is to leave each token's loss."""
        token_losses = torch.zeros(batch.labels.shape, device=self._device)
        self._noted.append((batch, token_losses))
        return token_losses

    def sums(self, ulysses_ranks: int = 1) -> torch.Tensor:
        """float64 [datasets, 2]: the sum of this rank's losses and the number of its learnt tokens.

        Ulysses ranks see whole sequences and leave the losses of their own tokens: each counts its share.
        """
        sums = torch.zeros(self._num_datasets, 2, dtype=torch.float64, device=self._device)
        for batch, token_losses in self._noted:
            assert batch.dataset_ids is not None
            learnt = torch.ones_like(token_losses) if batch.loss_mask is None else batch.loss_mask
            rows = torch.stack([(token_losses * learnt).flatten(), learnt.flatten()], dim=1)
            sums.index_add_(0, batch.dataset_ids.flatten(), rows.double())
        sums[:, 1] /= ulysses_ranks
        return sums
