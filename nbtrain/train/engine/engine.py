"""The interface of training engines, the same in every layout: one optimizer step, one evaluation.

    PlainEngine      every rank runs all layers, or its tensor-parallel or Ulysses part of each
    PipelineEngine   every rank runs its stage's layers, one forward, one backward (1F1B)

Both return the mean loss over the whole step on every rank. A rank reads the samples of its position on the
data axis, so all stages and tensor-parallel ranks of a model read the same samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.sample import Samples
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.train.engine.batches import Batch, Batches, evaluation_rows
from nbtrain.train.figures.throughput import StepTimer


class MicroBatch(NamedTuple):
    """One micro batch of a step."""

    batch: Batch
    loss_denominator: torch.Tensor | None
    """Divisor of a micro batch's sum of losses, with a loss mask (parallel/cross_entropy.py)."""


class TokenLosses(Protocol):
    """Receiver of the loss of each token of a batch, as the model computes it (train/engine/batches.py)."""

    def of(self, batch: Batch) -> torch.Tensor:
        """Return the tensor, fp32 [b, s], that the model fills. Called before the forward pass."""


class StepWork(NamedTuple):
    """Input of an engine for one step."""

    micro_batches: Iterator[MicroBatch]
    accumulation_steps: int
    timer: StepTimer
    beat: Callable[[], None]
    """Function that is called once per micro batch."""
    losses: TokenLosses | None = None
    """Receiver of the loss of each token."""
    loss_factor: float | None = None
    """Factor of the loss, for tests that need a bad step."""


class Noted(Protocol):
    """A receiver of the model's results for each token of a micro batch."""

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return {token_losses, likeliest}, tensors to be filled (parallel/cross_entropy.py)."""


def summed(batch: Batch, tokens: list[float]) -> torch.Tensor | None:
    """Return a denominator of 1 for a batch with a loss mask, so that its loss is a sum over tokens.

    The number of tokens in the loss, or of pairs, is appended to `tokens`. Returns None for a batch without a
    mask, whose loss is the mean.
    """
    if batch.loss_mask is None:
        return None
    tokens.append(batch.learnt.item())
    return batch.loss_mask.new_ones(())


class StepLoss(NamedTuple):
    """Result of a step, the same on every rank; tensors may still be computing."""

    loss: torch.Tensor
    """fp32 scalar: mean over the step's tokens in the loss, of all micro batches and ranks."""
    grad_norm: torch.Tensor | float | None
    """Norm over all parameters before clipping."""


@dataclass(eq=False)
class TrainEngine:
    """The part that both engines share."""

    deepspeed: Any
    """DeepSpeed's own engine."""
    optimizer: torch.optim.Optimizer
    groups: ParallelGroups
    zero_stage: int

    @property
    def module(self) -> torch.nn.Module:
        """This rank's part of the model."""
        return self.deepspeed.module

    @property
    def ulysses_size(self) -> int:
        """Ranks that share each sequence."""
        return self.groups.sequence_parallel.size

    @property
    def loss_scale(self) -> float:
        """Loss scale of fp16; 1 without one."""
        return float(getattr(self.optimizer, "cur_scale", 1.0))

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes losses: only the ranks of the last stage do."""
        pipeline = self.groups.pipeline_model_parallel
        return pipeline.rank == pipeline.size - 1

    def train_step(self, work: StepWork) -> StepLoss:
        """Run forward, backward and one step of the optimizer. All ranks call it together."""
        raise NotImplementedError

    def local_loss(self) -> torch.Tensor | None:
        """Return this rank's mean loss of the step after its last backward pass; None if it has no loss."""
        raise NotImplementedError

    def evaluate(
        self, batches: Batches, num_batches: int, beat: Callable[[], None], noted: Noted | None = None
    ) -> float | None:
        """Return the mean loss in nats over `num_batches` micro batches per rank, the same on all ranks.

        None if no token of them is in the loss. `noted` receives more of each token, on the ranks that have
        losses.
        """
        raise NotImplementedError

    def loss_on(
        self,
        dataset: Samples,
        config: RunConfig,
        masked: bool,
        beat: Callable[[], None],
        noted: Noted | None = None,
        named: bool = False,
    ) -> float | None:
        """Return the mean loss in nats over the first samples of a split, as many as config.evaluation says.

        None if no token of them is in the loss. `named`: batches say which dataset each token is of.
        """
        data, micro_batch_size = self.groups.data_parallel, config.batch.micro_batch_size
        num_samples = config.evaluation.eval_iters * config.batch.global_batch_size
        rows = evaluation_rows(num_samples, micro_batch_size, data.rank, data.size)
        with Batches(dataset, rows, self.deepspeed.device, masked=masked, named=named) as batches:
            return self.evaluate(batches, num_samples // (micro_batch_size * data.size), beat, noted)

    def over_data_axis(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the last stage's `values` over the ranks with other tokens, in place, for every rank."""
        axis, pipeline = self.groups.sequence_data_parallel, self.groups.pipeline_model_parallel
        if axis.size > 1 and self.has_loss:
            dist.all_reduce(values, group=axis.process_group)
        if pipeline.size > 1:
            dist.broadcast(values, src=pipeline.ranks[-1], group=pipeline.process_group)
        return values

    def _mean_loss(self, losses: list[torch.Tensor], tokens: list[float]) -> float | None:
        """Return the mean of `losses`, or their sum divided by the number of `tokens` in the loss if given.

        Returns None if there are none.
        """
        total = torch.zeros(2, dtype=torch.float64)
        if self.has_loss:
            total[0] = sum(loss.item() for loss in losses)
            # Ulysses ranks see the masks of whole sequences but compute the losses of their own tokens only.
            total[1] = sum(tokens) / self.ulysses_size if tokens else len(losses)
        loss, count = self.over_data_axis(total.to(self.deepspeed.device)).tolist()
        return loss / count if count else None
