"""The interface of training engines, the same in every layout: one step, one evaluation, means over ranks.

    PlainEngine      every rank runs all layers, on its part of each layer or of the sequences
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
    """Divisor of the micro batch's sum of losses; None if the batch has no loss mask
    (parallel/cross_entropy.py).
    """


class TokenLosses(Protocol):
    """Receives the loss of each token of a batch from the model (train/engine/batches.py)."""

    def of(self, batch: Batch) -> torch.Tensor:
        """Return the tensor, fp32 [b, s], that the model fills. Call it before the forward pass."""


class StepWork(NamedTuple):
    """The input of an engine for one step."""

    micro_batches: Iterator[MicroBatch]
    accumulation_steps: int
    timer: StepTimer
    beat: Callable[[], None]
    """Function that the engine calls once per micro batch."""
    losses: TokenLosses | None = None
    """Receiver of each token's loss; None if the losses of single tokens are not needed."""
    loss_factor: float | None = None
    """Factor by which an injected fault multiplies the loss; None leaves the loss unchanged."""


class Noted(Protocol):
    """Receives the model's results for each token of a micro batch."""

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the model's arguments token_losses and, if wanted, likeliest: tensors that the model fills
        (parallel/cross_entropy.py).
        """


def summed(batch: Batch, tokens: list[float]) -> torch.Tensor | None:
    """Return a denominator of 1 for a batch with a loss mask, so that its loss is a sum over tokens.

    The batch's number of tokens in the loss, or of pairs, is appended to `tokens`. Returns None for a batch
    without a mask, whose loss is already a mean.
    """
    if batch.loss_mask is None:
        return None
    tokens.append(batch.learnt.item())
    return batch.loss_mask.new_ones(())


class StepLoss(NamedTuple):
    """The result of a step, the same on every rank; its tensors may not be computed yet."""

    loss: torch.Tensor
    """fp32 scalar: mean over the tokens in the loss, of all micro batches and ranks of the step."""
    grad_norm: torch.Tensor | float | None
    """Norm of all gradients before clipping; None if the engine does not report it."""


@dataclass(eq=False)
class TrainEngine:
    """Base class of PlainEngine and PipelineEngine."""

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
    def sequence_ranks(self) -> int:
        """Number of ranks that share each sequence."""
        return self.groups.sequence_parallel.size

    @property
    def loss_scale(self) -> float:
        """The loss scale of fp16; 1 in other formats."""
        return float(getattr(self.optimizer, "cur_scale", 1.0))

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes losses, which only the ranks of the last stage do."""
        pipeline = self.groups.pipeline_model_parallel
        return pipeline.rank == pipeline.size - 1

    def train_step(self, work: StepWork) -> StepLoss:
        """Run forward, backward and one optimizer step. All ranks call it together."""
        raise NotImplementedError

    def local_loss(self) -> torch.Tensor | None:
        """Return this rank's mean loss after the last backward pass of the step; None if the rank has no
        loss.
        """
        raise NotImplementedError

    def evaluate(
        self, batches: Batches, num_batches: int, beat: Callable[[], None], noted: Noted | None = None
    ) -> float | None:
        """Return the mean loss in nats over `num_batches` micro batches per rank, the same on all ranks.

        Returns None if no token of the micro batches is in the loss. `noted` receives further results for
        each token, on the ranks that have losses.
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
        """Return the mean loss in nats over the first samples of a split, as many as config.evaluation
        requests.

        Returns None if no token of the samples is in the loss. With `named`, the batches tell which dataset
        each token is from.
        """
        data, micro_batch_size = self.groups.data_parallel, config.batch.micro_batch_size
        num_samples = config.evaluation_samples
        rows = evaluation_rows(num_samples, micro_batch_size, data.rank, data.size)
        with Batches(dataset, rows, self.deepspeed.device, masked=masked, named=named) as batches:
            return self.evaluate(batches, num_samples // (micro_batch_size * data.size), beat, noted)

    def over_data_axis(self, values: torch.Tensor) -> torch.Tensor:
        """Sum the last stage's `values` over the ranks that process different tokens; change `values` in
        place and return the sum on every rank.
        """
        axis, pipeline = self.groups.sequence_data_parallel, self.groups.pipeline_model_parallel
        if axis.size > 1 and self.has_loss:
            dist.all_reduce(values, group=axis.process_group)
        if pipeline.size > 1:
            dist.broadcast(values, src=pipeline.ranks[-1], group=pipeline.process_group)
        return values

    def _mean_loss(self, losses: list[torch.Tensor], tokens: list[float]) -> float | None:
        """Return the mean of `losses` or, if `tokens` is given, their sum divided by the number of tokens in
        the loss.

        Returns None if there are no tokens in the loss.
        """
        total = torch.zeros(2, dtype=torch.float64)
        if self.has_loss:
            total[0] = sum(loss.item() for loss in losses)
            # Ranks that share sequences see whole masks but compute the losses of their tokens only.
            total[1] = sum(tokens) / self.sequence_ranks if tokens else len(losses)
        loss, count = self.over_data_axis(total.to(self.deepspeed.device)).tolist()
        return loss / count if count else None
