"""Training steps without pipeline stages: each rank runs all layers, on its shard of weights or sequences."""

from collections.abc import Callable

import torch

from nbtrain.parallel.random import preserved
from nbtrain.train.engine.batches import Batch, Batches
from nbtrain.train.engine.engine import Noted, StepLoss, StepWork, TrainEngine, summed


class PlainEngine(TrainEngine):
    """An engine that runs forward and backward for each micro batch, then steps the optimizer."""

    def train_step(self, work: StepWork) -> StepLoss:
        engine = self.deepspeed
        self._total = total = torch.zeros((), dtype=torch.float32, device=engine.device)
        self._steps = work.accumulation_steps
        for number, (batch, denominator) in enumerate(work.micro_batches, start=1):
            engine.set_gradient_accumulation_boundary(number == self._steps)
            with work.timer.part("forward"):
                loss = engine(
                    batch.tokens,
                    batch.labels,
                    **batch.bounds,
                    **_masked(batch, denominator),
                    **({} if work.losses is None else {"token_losses": work.losses.of(batch)}),
                )
            if work.loss_factor is not None:
                loss = loss * work.loss_factor
            with work.timer.part("backward"):
                engine.backward(loss)
            total += loss.detach()
            with work.timer.part("optimizer"):
                engine.step()
            work.beat()
        mean = self.over_data_axis(self.local_loss()) / self.groups.sequence_data_parallel.size
        return StepLoss(mean, engine.get_global_grad_norm())

    def local_loss(self) -> torch.Tensor:
        return self._total / self._steps

    def evaluate(
        self, batches: Batches, num_batches: int, beat: Callable[[], None], noted: Noted | None = None
    ) -> float | None:
        module = self.module
        training = module.training
        module.eval()
        losses: list[torch.Tensor] = []
        tokens: list[float] = []
        with torch.no_grad(), preserved():
            for _, batch in zip(range(num_batches), batches):
                masked = _masked(batch, summed(batch, tokens))
                more = {} if noted is None else noted.of(batch)
                losses.append(module(batch.tokens, batch.labels, **batch.bounds, **masked, **more))
                beat()
        module.train(training)
        return self._mean_loss(losses, tokens)


def _masked(batch: Batch, denominator: torch.Tensor | None) -> dict[str, torch.Tensor]:
    if denominator is None:
        return {}
    assert batch.loss_mask is not None
    masked = {"loss_mask": batch.loss_mask, "loss_denominator": denominator}
    if batch.answers is not None and batch.reference is not None:
        masked |= {"answers": batch.answers, "reference": batch.reference}
    if batch.dataset_ids is not None:
        masked["dataset_ids"] = batch.dataset_ids
    return masked
