"""Steps of a model that is split into stages: DeepSpeed's PipelineEngine runs 1F1B (arXiv:2104.04473).

The first stage takes tokens and the last stage labels from an iterator of micro batches; the stages between
them read no data. The last stage sends its loss to all stages.

Each instruction of a step is timed (PART_OF). A stage without work waits in a receive, so "pipeline" is the
bubble (section 2.2 of the paper) plus the transfers. LoadMicroBatch is not timed here, because the reader of
its batches measures it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.runtime.pipe import schedule

from nbtrain.model.gpt_pipe import pipeline_inputs
from nbtrain.train.engine.batches import Batches
from nbtrain.train.engine.engine import Noted, StepLoss, StepWork, TrainEngine, summed
from nbtrain.train.figures.throughput import StepTimer

PART_OF = {
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.ReduceGrads: "backward",
    schedule.ReduceTiedGrads: "backward",
    schedule.OptimizerStep: "optimizer",
    schedule.SendActivation: "pipeline",
    schedule.RecvActivation: "pipeline",
    schedule.SendGrad: "pipeline",
    schedule.RecvGrad: "pipeline",
}


class PipelineEngine(TrainEngine):
    """An engine that passes all micro batches of a step through the stages, then steps the optimizer."""

    def train_step(self, work: StepWork) -> StepLoss:
        losses, factor = work.losses, work.loss_factor

        def inputs() -> Iterator[tuple]:
            for batch, denominator in work.micro_batches:
                work.beat()
                noted = losses.of(batch) if losses is not None and self.has_loss else None
                yield pipeline_inputs(batch, denominator, noted)

        module: Any = self.module
        own = module.loss_fn
        scaled = own if factor is None else lambda outputs, labels: own(outputs, labels) * factor
        with pipeline_timers(self.deepspeed, work.timer), patch.object(module, "loss_fn", scaled):
            loss = self.deepspeed.train_batch(inputs())
        return StepLoss(loss, self.deepspeed.get_global_grad_norm())

    def local_loss(self) -> torch.Tensor | None:
        return self.deepspeed.total_loss / self.deepspeed.micro_batches if self.has_loss else None

    def evaluate(
        self, batches: Batches, num_batches: int, beat: Callable[[], None], noted: Noted | None = None
    ) -> float | None:
        tokens: list[float] = []

        def inputs() -> Iterator[tuple]:
            for batch in batches:
                beat()
                more = noted.of(batch) if noted is not None and self.has_loss else {}
                yield pipeline_inputs(batch, summed(batch, tokens), **more)

        # The losses are summed here in double precision; DeepSpeed's engine would sum them in their own
        # format.
        losses = self.deepspeed.eval_batch(
            inputs(), reduce_output=None, bcast_loss=False, num_micro_batches=num_batches
        )
        self.module.train()
        return self._mean_loss(losses or [], tokens)


def pipeline_timers(engine: Any, timer: StepTimer) -> AbstractContextManager[Any]:
    """Time the instructions of DeepSpeed's PipelineEngine while the context is open."""
    table: Any = {
        instruction: _timed(execute, timer, PART_OF[instruction]) if instruction in PART_OF else execute
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    return patch.object(engine, "_INSTRUCTION_MAP", table)


def _timed(execute: Callable, timer: StepTimer, part: str) -> Callable:
    def timed(engine: Any, **arguments: Any) -> Any:
        with timer.part(part):
            return execute(engine, **arguments)

    return timed
