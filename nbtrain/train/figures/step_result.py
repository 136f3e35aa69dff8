"""The result of an optimizer step, from which the report writes a log line and scalars."""

from dataclasses import dataclass, field

import torch

from nbtrain.train.figures.throughput import StepTimer


@dataclass
class StepResult:
    """The result of one step, for the report; its tensors may not be computed yet."""

    step: int
    batch_size: int
    """Number of sequences in this step."""
    consumed_samples: int
    """Number of sequences trained on so far, including this step."""
    learning_rate: float
    loss: torch.Tensor
    """Mean over this step's tokens in the loss, of all micro batches and ranks."""
    grad_norm: torch.Tensor | float | None
    loss_scale: float
    """Loss scale after this step."""
    timer: StepTimer = field(repr=False)
    wall_seconds: float = 0.0
    logged: bool = False
    """Whether a log line is due."""
    tokens_in_loss: torch.Tensor | None = None
    """Number of tokens or pairs over which the loss is a mean: 0 if the step has no loss, None if all tokens
    are in the loss.
    """
    dataset_losses: torch.Tensor | None = None
    """[named datasets, 2], over all ranks: each dataset's sum of losses and number of tokens in the loss.
    None if datasets are not distinguished.
    """
    pair_sums: torch.Tensor | None = None
    """Sums over the preference pairs of all ranks, as PairFigures.sums() returns them; None without dpo."""
    code_scalars: dict[str, float] = field(default_factory=dict)
    """Scalars that the user's loss() has returned, over all micro batches and ranks."""
    overflowed_scale: float | None = None
    """Loss scale at which fp16 overflowed, which prevented the update; None without an overflow."""
    stability_counts: dict[str, int] = field(default_factory=dict)
    """Numbers of the run's bad steps so far, by their names in metrics.py; empty if there have been no bad
    steps.
    """
