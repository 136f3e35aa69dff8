"""The loss of each named dataset in a step, summed up on the device: nothing here waits for it."""

from typing import Any

import torch
import torch.distributed as dist

from nbtrain.parallel.startup import World
from nbtrain.train.batches import Batch


class DatasetLosses:
    """Sums of one step. told() before a micro batch's forward pass, add() after it, over_ranks() at the end."""

    def __init__(self, num_datasets: int, world: World):
        self._world = world
        self._sums = torch.zeros(num_datasets, 2, dtype=torch.float64, device=world.device)
        self._token_losses: torch.Tensor | None = None

    def told(self, batch: Batch) -> dict[str, Any]:
        """What the model needs to leave each token's loss here."""
        self._token_losses = torch.zeros(batch.labels.shape, device=self._world.device)
        return {"token_losses": self._token_losses}

    def add(self, batch: Batch) -> None:
        """The losses that the model has left, those of learnt tokens."""
        assert self._token_losses is not None and batch.dataset_ids is not None
        learnt = torch.ones_like(self._token_losses) if batch.loss_mask is None else batch.loss_mask
        rows = torch.stack([(self._token_losses * learnt).flatten(), learnt.flatten()], dim=1)
        self._sums.index_add_(0, batch.dataset_ids.flatten(), rows.double())

    def over_ranks(self) -> torch.Tensor:
        """float64 [datasets, 2]: the sum of losses and the number of learnt tokens. Called by all ranks together."""
        if self._world.size > 1:
            dist.all_reduce(self._sums)
        return self._sums
