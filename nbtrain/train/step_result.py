"""What one training step leaves behind for the report."""

from dataclasses import dataclass, field

import torch

from nbtrain.train.figures.throughput import StepTimer


@dataclass
class StepResult:
    """What one step left behind; tensors may still be on their way."""

    step: int
    batch_size: int
    """Sequences of this step."""
    consumed_samples: int
    """Sequences trained on, this step's included."""
    learning_rate: float
    loss: torch.Tensor
    """Mean over this step's tokens, those that bear a loss, of all micro batches and ranks."""
    grad_norm: torch.Tensor | float | None
    loss_scale: float
    """Behind this step."""
    timer: StepTimer = field(repr=False)
    wall_seconds: float = 0.0
    dataset_losses: torch.Tensor | None = None
    """[named datasets, 2], over all ranks: the sum of its learnt tokens' losses, and their number."""
    overflowed_scale: float | None = None
    """The loss scale with which fp16 overflowed, so that the weights did not move; None where it did not."""
    stability_counts: dict[str, int] = field(default_factory=dict)
    """Bad steps of the run so far, by their names in metrics.py; empty while there are none."""
