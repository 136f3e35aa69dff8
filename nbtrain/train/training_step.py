"""One optimizer step: sets batch size and learning rate, reads the micro batches, and calls the engine."""

import contextlib
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from nbtrain.base.errors import LossScaleError
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.arithmetic.weight_decay import WeightDecaySchedule
from nbtrain.config.schema import RunConfig
from nbtrain.parallel.startup import World
from nbtrain.train.build import Built
from nbtrain.train.engine.batches import Batches, DatasetLosses
from nbtrain.train.engine.engine import MicroBatch, StepWork
from nbtrain.train.engine.optimizer import set_batch_size, set_rates
from nbtrain.train.engine.preference_pairs import PairFigures
from nbtrain.train.figures.communication import CommunicationTimer
from nbtrain.train.figures.step_result import StepResult
from nbtrain.train.figures.throughput import StepTimer
from nbtrain.train.health.heartbeat import HeartbeatWriter


class TrainingStep:
    """Runs the steps of a run. Each step starts from the current built.state. All ranks call it together."""

    def __init__(self, config: RunConfig, world: World, built: Built, heartbeat: HeartbeatWriter):
        self.config, self.world, self.heartbeat = config, world, heartbeat
        self.engine, self.datasets = built.engine, built.datasets
        self.state, self.guard = built.state, built.guard
        self.learning_rate = LrSchedule.of(config)
        self.weight_decay = WeightDecaySchedule.of(config)
        self.batch_schedule = config.batch_schedule
        self.code, self.own_loss = built.code, built.own_loss
        self.communication = CommunicationTimer()
        self._tokens_in_loss: torch.Tensor | None = None

    def make(self, batches: Batches, logged: bool) -> StepResult:
        """Run the next step. Raises StabilityError for a bad step if the policy is stop or rollback.

        If the step is `logged`, the host waits for its collectives and times them.
        """
        started, loss_scale = time.perf_counter(), self.engine.loss_scale
        engine, state, timer = self.engine, self.state, StepTimer(self.world.device)
        consumed_samples = state.data.consumed_samples
        consumed_tokens = consumed_samples * self.config.model.seq_length
        batch_size = self.batch_schedule.size_at(consumed_samples)
        accumulation_steps = set_batch_size(engine, batch_size)
        learning_rate = self.learning_rate.learning_rate(consumed_tokens)
        set_rates(engine.optimizer, learning_rate, self.weight_decay.weight_decay(consumed_tokens))

        losses: DatasetLosses | PairFigures | None = None
        if self.config.dpo is not None:
            losses = PairFigures(self.config.dpo, self.world.device)
        elif self.datasets.names:
            losses = DatasetLosses(len(self.datasets.names), self.world.device)
        first, last = (
            state.data.position(sample) for sample in (consumed_samples, consumed_samples + batch_size - 1)
        )
        self._tokens_in_loss = None
        if self.own_loss is not None:
            self.own_loss.begin_step()
        self.guard.begin_step(
            state.step + 1, (first, last + 1), engine.local_loss, lambda: self._tokens_in_loss
        )
        with self.communication.measured(self.world, logged, timer):
            micro_batches = self._micro_batches(batches, accumulation_steps, timer)
            beat, factor = self.heartbeat.beat, self.guard.loss_factor
            work = StepWork(micro_batches, accumulation_steps, timer, beat, losses, factor)
            own_code = self.code.blamed("loss") if self.code is not None else contextlib.nullcontext()
            with smallest_scale_explained(self.config, state.step + 1), own_code:
                loss, norm = engine.train_step(work)
            scalars: dict[str, float] = {}
            if self.own_loss is not None:
                scalars = self.own_loss.end_step(engine, self._tokens_in_loss)
            sums = engine.over_data_axis(losses.sums(engine.sequence_ranks)) if losses is not None else None
        timer.end()
        verdict = self.guard.end_step(loss, norm)

        state.step += 1
        state.data = state.data.advanced(batch_size)
        self.heartbeat.beat(state.step)
        if self.code is not None and self.code.defines("on_step"):
            with torch.no_grad():
                self.code.call("on_step", state.step, engine.module)
        return StepResult(
            state.step,
            batch_size,
            state.data.consumed_samples,
            learning_rate,
            loss,
            None if verdict.skipped else norm,
            engine.loss_scale,
            timer,
            time.perf_counter() - started,
            logged,
            tokens_in_loss=self._tokens_in_loss,
            dataset_losses=None if self.config.dpo is not None else sums,
            pair_sums=sums if self.config.dpo is not None else None,
            code_scalars=scalars,
            overflowed_scale=loss_scale if verdict.overflowed else None,
            stability_counts=dict(self.guard.history.counts)
            if any(self.guard.history.counts.values())
            else {},
        )

    def _micro_batches(self, batches: Batches, steps: int, timer: StepTimer) -> Iterator[MicroBatch]:
        """Yield the `steps` micro batches of a step. If batches have a mask, each comes with the denominator
        of its loss.

        The engine averages over micro batches and ranks. With a mask, the mean must be over the tokens in the
        loss of the whole step, so all batches of the step are read first to count these tokens.
        """
        if not self.datasets.is_masked:
            for _ in range(steps):
                with timer.part("data"):
                    batch = next(batches)
                yield MicroBatch(batch, None)
            return
        with timer.part("data"):
            held = [next(batches) for _ in range(steps)]
            learnt = torch.stack([batch.learnt for batch in held]).sum()
            groups = self.engine.groups
            if groups.data_parallel.size > 1:
                dist.all_reduce(learnt, group=groups.data_parallel.process_group)
            self._tokens_in_loss = learnt
            # If no token is in the loss, the sum of losses, 0, is divided by 1.
            denominator = (learnt.clamp(min=1) / (steps * groups.sequence_data_parallel.size)).float()
        for batch in held:
            yield MicroBatch(batch, denominator)


@contextlib.contextmanager
def smallest_scale_explained(config: RunConfig, step: int) -> Iterator[None]:
    """Replace DeepSpeed's bare Exception after an overflow at the smallest loss scale by LossScaleError."""
    try:
        yield
    except Exception as error:
        if "loss scale already at minimum" not in str(error):
            raise
        smallest = config.precision.fp16.min_loss_scale
        raise LossScaleError(
            f"step {step:,}: the gradient overflowed in fp16 at the smallest loss scale; "
            f"{config.where('precision.fp16.min_loss_scale')}: precision.fp16.min_loss_scale = {smallest:,}. "
            "The gradients are too large for fp16. Lower lr_schedule.lr and run `nbtrain resume`, which "
            "continues from the newest checkpoint, or train another run with precision.dtype = bf16."
        ) from error
