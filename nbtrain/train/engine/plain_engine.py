"""Steps of a model whose layers all run on this rank, whole or as its tensor-parallel or Ulysses part."""

from collections.abc import Callable, Iterator

import torch

from nbtrain.parallel.random import preserved
from nbtrain.train.batches import Batch, Batches, DatasetLosses
from nbtrain.train.engine.engine import MicroBatch, StepLoss, TrainEngine, summed
from nbtrain.train.figures.throughput import StepTimer
from nbtrain.train.health.discard import gradient_norm


class PlainEngine(TrainEngine):
    """One micro batch after the other: forward, backward; after the last one the optimizer."""

    def train_step(
        self,
        micro_batches: Iterator[MicroBatch],
        accumulation_steps: int,
        timer: StepTimer,
        beat: Callable[[], None],
        losses: DatasetLosses | None = None,
        loss_factor: float | None = None,
    ) -> StepLoss:
        engine = self.deepspeed
        self._total = total = torch.zeros((), dtype=torch.float32, device=engine.device)
        self._steps, norm = accumulation_steps, None
        for number, (batch, denominator) in enumerate(micro_batches, start=1):
            engine.set_gradient_accumulation_boundary(number == accumulation_steps)
            with timer.part("forward"):
                loss = engine(
                    batch.tokens,
                    batch.labels,
                    **batch.bounds,
                    **_masked(batch, denominator),
                    **({} if losses is None else {"token_losses": losses.of(batch)}),
                )
            if loss_factor is not None:
                loss = loss * loss_factor
            with timer.part("backward"):
                engine.backward(loss)
            total += loss.detach()
            with timer.part("optimizer"):
                if number == accumulation_steps and not self.zero_stage:
                    # Without ZeRO the engine clips but does not report the norm.
                    norm = gradient_norm(engine.module)
                engine.step()
            beat()
        if self.zero_stage:
            norm = engine.get_global_grad_norm()
        mean = self.over_data_axis(self.local_loss()) / self.groups.sequence_data_parallel.size
        return StepLoss(mean, norm)

    def local_loss(self) -> torch.Tensor:
        return self._total / self._steps

    def evaluate(self, batches: Batches, num_batches: int, beat: Callable[[], None]) -> float:
        module = self.module
        training = module.training
        module.eval()
        losses: list[torch.Tensor] = []
        tokens: list[float] = []
        with torch.no_grad(), preserved():
            for _, batch in zip(range(num_batches), batches):
                masked = _masked(batch, summed(batch, tokens))
                losses.append(module(batch.tokens, batch.labels, **batch.bounds, **masked))
                beat()
        module.train(training)
        return self._mean_loss(losses, tokens or None, self.deepspeed.device)


def _masked(batch: Batch, denominator: torch.Tensor | None) -> dict[str, torch.Tensor]:
    if denominator is None:
        return {}
    assert batch.loss_mask is not None
    return {"loss_mask": batch.loss_mask, "loss_denominator": denominator}
