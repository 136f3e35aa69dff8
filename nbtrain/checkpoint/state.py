"""The state of a training run that a checkpoint carries beside weights and moments."""

import math
from dataclasses import dataclass
from typing import Any

from nbtrain.dataset.samples.state import DataState


@dataclass
class TrainState:
    """Where the training stands, beside what the engine holds."""

    step: int
    data: DataState
    evaluated_step: int | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    stability: dict[str, Any] | None = None
    """State of the guard against bad steps (StepGuard); None in older checkpoints."""

    def validated(self, loss: float) -> None:
        """Note the validation loss after the step that is reached."""
        self.evaluated_step, self.validation_loss = self.step, loss
        if math.isfinite(loss):
            best = self.best_validation_loss
            # An older checkpoint may have kept a NaN as its best loss.
            self.best_validation_loss = min(loss, best) if best is not None and math.isfinite(best) else loss
