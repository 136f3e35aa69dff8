"""Steps of a model that is cut into stages: DeepSpeed's PipelineEngine runs its schedule (1F1B,
arXiv:2104.04473).

The first stage takes tokens and the last stage labels from an iterator of micro batches; the stages between
take none. The last stage sends its loss to all.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nbtrain.model.gpt_pipe import pipeline_inputs
from nbtrain.train.batches import Batch, Batches, DatasetLosses
from nbtrain.train.engine.engine import MicroBatch, StepLoss, TrainEngine
from nbtrain.train.engine.pipeline_timers import pipeline_timers
from nbtrain.train.figures.throughput import StepTimer


class PipelineEngine(TrainEngine):
    """All micro batches of a step go through the stages one after the other; then the optimizer steps."""

    def train_step(
        self,
        micro_batches: Iterator[MicroBatch],
        accumulation_steps: int,
        timer: StepTimer,
        beat: Callable[[], None],
        losses: DatasetLosses | None = None,
        loss_factor: float | None = None,
    ) -> StepLoss:
        def inputs() -> Iterator[tuple]:
            for batch, denominator in micro_batches:
                beat()
                noted = losses.of(batch) if losses is not None and self.has_loss else None
                yield pipeline_inputs(batch, denominator, noted)

        with pipeline_timers(self.deepspeed, timer), self._scaled(loss_factor):
            loss = self.deepspeed.train_batch(inputs())
        return StepLoss(loss, self.deepspeed.get_global_grad_norm())

    def local_loss(self) -> torch.Tensor | None:
        return self.deepspeed.total_loss / self.deepspeed.micro_batches if self.has_loss else None

    @contextlib.contextmanager
    def _scaled(self, factor: float | None) -> Iterator[None]:
        module: Any = self.module
        loss_function = module.loss_fn
        if factor is not None:
            module.loss_fn = lambda outputs, labels: loss_function(outputs, labels) * factor
        try:
            yield
        finally:
            module.loss_fn = loss_function

    def evaluate(self, batches: Batches, num_batches: int, beat: Callable[[], None]) -> float:
        tokens: list[float] = []

        def inputs() -> Iterator[tuple]:
            for batch in batches:
                beat()
                yield pipeline_inputs(batch, self._one(batch, tokens))

        # Summed up here, in double precision: the engine would do it in the losses' own format.
        losses = self.deepspeed.eval_batch(
            inputs(), reduce_output=None, bcast_loss=False, num_micro_batches=num_batches
        )
        self.module.train()
        return self._mean_loss(losses or [], tokens or None, self.deepspeed.device)

    @staticmethod
    def _one(batch: Batch, tokens: list[float]) -> torch.Tensor | None:
        """With a loss mask, a denominator of 1, so that the loss is a sum; `tokens` receives the number of
        learnt tokens."""
        if batch.loss_mask is None:
            return None
        tokens.append(batch.loss_mask.sum(dtype=torch.float64).item())
        return batch.loss_mask.new_ones(())
