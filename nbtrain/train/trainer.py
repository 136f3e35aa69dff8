"""The training loop: one step after the other, with periodic evaluation, saving and logging.

    begin the vote -> step -> read the vote -> every N: evaluate, save, log -> next, or stop

All ranks run every step, evaluation and save together; only rank 0 logs and writes scalars and events.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtrain.base.errors import CheckpointError, RollbackError, StabilityError
from nbtrain.base.run_directory.outcomes import FINISHED, STOPPED
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint.save import Saved, add_validation
from nbtrain.config.schema import RunConfig
from nbtrain.parallel.agreement import LEAVE, NOTHING, STOP, Agreement
from nbtrain.parallel.startup import World
from nbtrain.train.build import Built, build
from nbtrain.train.engine.batches import Batches, DatasetLosses, training_rows
from nbtrain.train.engine.preference_pairs import PairFigures
from nbtrain.train.figures.report import Report
from nbtrain.train.figures.rewards import Rewards
from nbtrain.train.figures.step_result import StepResult
from nbtrain.train.figures.stragglers import Stragglers
from nbtrain.train.figures.throughput import PerfClock
from nbtrain.train.health.attempt import this_attempt
from nbtrain.train.health.finite_weights import bad_weights
from nbtrain.train.health.heartbeat import HeartbeatWriter
from nbtrain.train.profile.profiler import profiling
from nbtrain.train.provenance import write_provenance
from nbtrain.train.requests import ExitLimits, Requests, job_age_seconds
from nbtrain.train.training_step import TrainingStep

if TYPE_CHECKING:
    from nbtrain.train.tasks import Tasks

logger = logging.getLogger(__name__)


def train_run(
    run: RunDir, config: RunConfig, world: World, requests: Requests, heartbeat: HeartbeatWriter
) -> str:
    """Build, load, train and close; return the outcome, FINISHED or STOPPED. All ranks call it together."""
    with heartbeat.phase("build"):
        built = build(config, run, world, heartbeat.events)
        if heartbeat.collectives is not None:
            for kind, group in vars(built.engine.groups).items():
                heartbeat.collectives.name_group(kind, group.process_group)
    with heartbeat.phase("load"):
        built.load(heartbeat.beat)
        refuse_bad_weights(run, built, world)
        heartbeat.beat(built.state.step)
    names, attempt = built.datasets.names, this_attempt(run)
    report = None
    if world.rank == 0 and config.mode == "full":
        write_provenance(run, requests.job, attempt.attempt, config, built, world)
    if world.rank == 0:
        folder, trace = run.tensorboard, attempt.trace
        report = Report(config, world, built.state, heartbeat, folder, names, trace, built.code)
    try:
        first_step, events = built.state.step, heartbeat.events
        with profiling(config.profile, run, world.rank, first_step, events) as profile_step:
            return Trainer(config, world, built, requests, heartbeat, report, profile_step).run()
    finally:
        if report is not None:
            report.close()


def refuse_bad_weights(run: RunDir, built: Built, world: World) -> None:
    """Raise CheckpointError if loaded weights are NaN or Inf, because every step would fail."""
    step = built.state.step
    if not step or not (names := bad_weights(built.engine.deepspeed.module, world)):
        return
    older = max((known for known in run.checkpoint_steps() if known < step), default=0)
    raise CheckpointError(
        f"{display(run.checkpoint(step))}: its weights are NaN or Inf ({names}). Remove that folder: then "
        f"`nbtrain resume` continues from {f'step {older:,}' if older else 'the start'}."
    )


class Validation(NamedTuple):
    """The results of a pass over a split."""

    loss: float | None
    """Mean loss; None if no token of the split is in the loss."""
    rewards: Rewards | None = None
    """Rewards of preference pairs, with dpo."""
    dataset_losses: Mapping[str, float] = MappingProxyType({})
    """{name: mean loss} of each dataset in a blend or mixture that has tokens in the loss."""


@dataclass
class Trainer:
    """Trains with the parts from build(), until all tokens are trained or the ranks agree to stop."""

    config: RunConfig
    world: World
    built: Built
    requests: Requests
    heartbeat: HeartbeatWriter
    report: Report | None
    profile_step: Callable[[], None]

    def __post_init__(self) -> None:
        config, world, built = self.config, self.world, self.built
        self.engine, self.datasets, self.saver = built.engine, built.datasets, built.saver
        self.guard, self.state = built.guard, built.state
        self.step = TrainingStep(config, world, built, self.heartbeat)
        self.agreement = Agreement()
        self.stragglers = Stragglers(world, config)
        self.perf = PerfClock(config.train_steps, world.device) if config.mode == "perf" else None
        self.tasks = None
        if config.evaluation.tasks and self.perf is None and self.datasets.valid is not None:
            from nbtrain.train.tasks import Tasks

            self.tasks = Tasks(config, built.run, self.engine, self.datasets.valid)
        self.limits = ExitLimits(config.batch, job_age_seconds(self.requests.job))

    def run(self) -> str:
        """Train, and return FINISHED or STOPPED.

        At the end, and when the run stops, the last step is saved, except in mode: perf. If a stop request
        arrives at a step that is due for validation, the next job validates the step; until then the run is
        not finished, even at its last step. If a bad step, which every rank sees, ends the job or rolls it
        back, the checkpoint that is being written in the background is completed first.
        """
        try:
            return self._run()
        except (RollbackError, StabilityError):
            self._finish_saving()
            raise

    def _run(self) -> str:
        if self.config.mode == "eval":
            return self._evaluate_checkpoint()
        if self._evaluation_due():
            self._evaluate()
            # The validation is added to the checkpoint's manifest, which must exist.
            self._finish_saving()
            add_validation(self.saver.live, self.state)
        with self.heartbeat.phase("train"), self._training_batches() as batches:
            self._clock()
            while self.state.step < self.config.train_steps:
                self.agreement.begin(self._wish)
                result = self.step.make(batches, self._log_due(self.state.step + 1))
                self._clock()
                self.profile_step()
                self._tell(result)
                wish = self.agreement.finish(self._wish)
                if self.limits.ends_at(self.state.step):
                    wish = max(wish, LEAVE)
                done = self.state.step == self.config.train_steps
                if wish != STOP and self._evaluation_due():
                    self._evaluate()
                if wish != NOTHING or done or self._save_due():
                    self._save()
                    # A stop that arrived while saving must not wait for one more step.
                    wish = max(wish, self.agreement.now(self._wish))
                    if wish != NOTHING:
                        # The run directory tells the requester that the checkpoint is complete.
                        self._finish_saving()
                        wish = max(wish, self.agreement.now(self._wish))
                elif self._local_save_due():
                    self._save(locally=True)
                self.requests.acknowledge(self.state.step)
                if wish >= LEAVE and (not done or self._evaluation_due()):
                    self._tell_leaving()
                    self._finish_saving()
                    return STOPPED
        self._finish_saving()
        self.saver.clear()
        if self.perf is not None and self.perf.result is not None and self.report is not None:
            self.report.add_throughput(self.state, self.perf.result)
        self._test()
        return FINISHED

    def _evaluate_checkpoint(self) -> str:
        """Compute the losses of the newest checkpoint in mode: eval. Nothing is trained or saved."""
        if self.state.step == 0:
            raise CheckpointError(
                f"{self.config.where('mode')}: mode = eval needs a checkpoint, but the run has none."
            )
        if self.datasets.valid is not None:
            self._evaluate()
        self._test()
        return FINISHED

    def _clock(self) -> None:
        if self.perf is not None:
            self.perf.at(self.state.step, self.state.data.consumed_samples)

    def _tell(self, result: StepResult) -> None:
        if result.logged:
            spread = self.stragglers.gather(result.timer)
            self.heartbeat.compute_seconds = round(result.timer.compute_seconds(), 6)
            if self.report is not None:
                self.report.add_spread(result.step, spread, self.state)
        if self.report is not None:
            self.report.add_step(result, self.state)
        self._tell_written(self.saver.poll())

    def _wish(self) -> int:
        return max(self.requests.wish(), self.limits.wish(), self.saver.wish())

    def _tell_leaving(self) -> None:
        if self.requests.wish() != STOP:
            self.requests.limit = self.limits.cause(self.state.step)
        left = "this step is due for validation, which the next job runs" if self._evaluation_due() else ""
        if (reason := self.requests.limit or left) and self.world.rank == 0:
            logger.info("step %6s | stops: %s", f"{self.state.step:,}", reason)

    def _log_due(self, step: int) -> bool:
        return step % self.config.logging.log_interval_steps == 0 or step == self.config.train_steps

    def _evaluation_due(self) -> bool:
        step, evaluation = self.state.step, self.config.evaluation
        if self.perf is not None:
            return False
        if not evaluation.eval_iters or self.datasets.valid is None or self.state.evaluated_step == step:
            return False
        return step == self.config.train_steps or (step > 0 and step % evaluation.eval_interval_steps == 0)

    def _evaluate(self) -> None:
        self.guard.settle()
        started = time.perf_counter()
        with self.heartbeat.phase("evaluate"):
            found = self._loss_on(self.datasets.valid)
        self.state.validated(found.loss)
        if found.loss is not None and not math.isfinite(found.loss):
            self.guard.check_weights()
        if self.report is not None:
            self.report.add_validation(
                self.state, time.perf_counter() - started, found.rewards, found.dataset_losses
            )
        if self.tasks is not None and self._tasks_due():
            self._ask(self.tasks)

    def _tasks_due(self) -> bool:
        step, evaluation = self.state.step, self.config.evaluation
        is_last = step == self.config.train_steps or self.config.mode == "eval"
        return is_last or step % (evaluation.tasks_interval_steps or evaluation.eval_interval_steps) == 0

    def _ask(self, tasks: "Tasks") -> None:
        started = time.perf_counter()
        with self.heartbeat.phase("evaluate"):
            found = tasks.ask(self.state.step, self.heartbeat.beat)
        if self.report is not None:
            self.report.add_tasks(self.state, found, time.perf_counter() - started)

    def _test(self) -> None:
        if self.perf is not None or not self.config.evaluation.eval_iters or self.datasets.test is None:
            return
        started = time.perf_counter()
        with self.heartbeat.phase("test"):
            loss = self._loss_on(self.datasets.test).loss
        if self.report is not None:
            self.report.add_test(self.state, loss, time.perf_counter() - started)

    def _save_due(self) -> bool:
        return self.state.step % self.config.checkpoint.save_interval_steps == 0

    def _local_save_due(self) -> bool:
        interval = self.config.checkpoint.local_save_interval_steps
        return self.saver.disk is not None and interval is not None and self.state.step % interval == 0

    def _save(self, locally: bool = False) -> None:
        """Save a checkpoint of this step; with `locally`, only on the nodes' own disks.

        Raises if the step is bad or a weight is NaN or Inf. A skipped step leaves the weights unchanged, so
        it may be saved.
        """
        if self.perf is not None:
            return
        self.guard.settle()
        self.guard.check_weights()
        self.state.stability = self.guard.history.state_dict()
        with self.heartbeat.phase("save"):
            stall_seconds = (self.saver.save_locally if locally else self.saver.save)(self.state)
        if self.report is not None:
            self.report.add_checkpoint(self.state, stall_seconds, locally)
        self._tell_written(self.saver.poll())

    def _finish_saving(self) -> None:
        """Wait until the checkpoint being written in the background is complete."""
        if self.config.checkpoint.async_save or self.saver.disk is not None:
            with self.heartbeat.phase("save"):
                self.saver.finish()
            self._tell_written(self.saver.poll())

    def _tell_written(self, saved: Saved | None) -> None:
        if saved is None:
            return
        if self.report is not None:
            self.report.add_checkpoint_written(self.state, saved.step, saved.seconds, saved.bytes)
        code = self.built.code
        run, step = self.built.run, saved.step
        # A checkpoint on the nodes' own disks has no folder in the run directory.
        is_there = self.world.rank == 0 and run.checkpoint_manifest(step).is_file()
        if code is not None and code.defines("on_checkpoint") and is_there:
            code.call("on_checkpoint", step, run.checkpoint(step))

    def _training_batches(self) -> Batches:
        config, data, place = self.config, self.datasets, self.engine.groups.data_parallel
        steps, micro = config.train_steps - self.state.step, config.batch.micro_batch_size
        rows = training_rows(self.state.data, steps, config.batch_schedule, micro, place.rank, place.size)
        masked, named = data.is_masked, bool(data.names)
        return Batches(data.train, rows, self.world.device, config.data.num_workers, masked, named)

    def _loss_on(self, dataset: Any) -> Validation:
        """Return the loss on a split, each dataset's loss for a blend or mixture, and the rewards of pairs
        with dpo.
        """
        config, engine, beat = self.config, self.engine, self.heartbeat.beat
        if config.dpo is not None:
            figures = PairFigures(config.dpo, self.world.device)
            loss = engine.loss_on(dataset, config, True, beat, figures.noted)
            return Validation(loss, Rewards.of(engine.over_data_axis(figures.sums())))
        is_masked, names = self.datasets.is_masked, self.datasets.names
        if not names:
            return Validation(engine.loss_on(dataset, config, is_masked, beat))
        losses = DatasetLosses(len(names), self.world.device)
        loss = engine.loss_on(dataset, config, is_masked, beat, losses.noted, named=True)
        rows = engine.over_data_axis(losses.sums(engine.sequence_ranks)).tolist()
        means = {name: total / count for name, (total, count) in zip(names, rows, strict=True) if count}
        return Validation(loss, dataset_losses=means)
