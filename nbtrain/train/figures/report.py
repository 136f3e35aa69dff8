"""Reports of rank 0: log lines, scalars, events, alerts, and the progress and time left in its heartbeat.

Nothing here makes a step wait for the device: on a GPU a step's loss and norm are read when a log line is
due, and the line is written while the device computes the next step.
"""

import json
import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from nbtrain.base.text import amounts
from nbtrain.checkpoint.live.live_run import TrainState
from nbtrain.checkpoint.user_code import UserCode
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.parallel.startup import World
from nbtrain.train.code.own_scalars import own_scalars
from nbtrain.train.figures.alerts import Alerts, device_utilization
from nbtrain.train.figures.metrics_writer import MetricsWriter
from nbtrain.train.figures.rewards import Rewards
from nbtrain.train.figures.step_result import StepResult
from nbtrain.train.figures.stragglers import Spread
from nbtrain.train.figures.throughput import Pauses, Rate, Speedometer, Throughput, TimeSplit, host_memory
from nbtrain.train.health.heartbeat import HeartbeatWriter

if TYPE_CHECKING:
    from nbtrain.evaluation.evaluate import Evaluation

SLOW_INTERVALS = 3
# In fp16, an alert is raised if more than half of this many consecutive steps did not update the weights.
OVERFLOW_WINDOW_STEPS = 20

logger = logging.getLogger(__name__)


class Report:
    """The report of rank 0, which also updates the progress in rank 0's heartbeat."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        state: TrainState,
        heartbeat: HeartbeatWriter,
        folder: Path,
        dataset_names: tuple[str, ...] = (),
        trace: bool = False,
        code: UserCode | None = None,
    ):
        """Set up the report from the state in which the run starts.

        `folder` is TensorBoard's folder, where the settings are also written as text. `dataset_names` names
        the rows of StepResult.dataset_losses. With `trace`, losses are also written as hexadecimal floats.
        `code` is the user's file, whose scalars() is called after each step.
        """
        assert heartbeat.progress is not None and heartbeat.events is not None
        self.config, self.world, self.dataset_names = config, world, dataset_names
        self.progress, self.events = heartbeat.progress, heartbeat.events
        self.writer = MetricsWriter(folder, state.step)
        self.writer.text("config", to_yaml(config))
        self.writer.text("deepspeed", json.dumps(deepspeed_config(config), indent=2))
        self.speedometer = Speedometer(config, world.device)
        self.alerts = Alerts(config, self.events)
        self._time_split = TimeSplit()
        self._times_slow: dict[int, int] = {}
        self._overflows: deque[bool] = deque(maxlen=OVERFLOW_WINDOW_STEPS)
        self._trace, self._code = trace, code
        self._newest_rewards: Rewards | None = None
        self._rate, self._pauses = Rate(), Pauses(config)
        self._target_tokens = config.target_tokens
        self._pending: list[StepResult] = []
        self.progress.num_parameters = count_parameters(config).total
        # A resumed run has loaded this checkpoint, which is its newest one until it saves.
        self.progress.checkpoint_step = state.step or None
        self._run_samples = config.batch_schedule.samples_after(config.train_steps)
        self._follow(state)
        self._log_start(state)

    def add_step(self, result: StepResult, state: TrainState) -> None:
        """Record a step that is complete or, on a GPU, still being computed."""
        self._pending.append(result)
        self._rate.add(result.batch_size, result.wall_seconds)
        self._follow(state)
        if self.world.device.type == "cpu":
            self.flush()
        elif any(earlier.logged for earlier in self._pending[:-1]):
            # The next step has been launched, so the device computes while the host writes.
            self._write_pending(keep=1)

    def flush(self) -> None:
        """Write pending results; waits for the device."""
        self._write_pending(keep=0)

    def _write_pending(self, keep: int) -> None:
        while len(self._pending) > keep:
            self._write(self._pending.pop(0))

    def add_validation(
        self,
        state: TrainState,
        seconds: float,
        rewards: Rewards | None = None,
        dataset_losses: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Report a validation. `dataset_losses` has the loss of each dataset of a blend that has tokens in
        the loss.
        """
        self.flush()
        self._time_split.add(evaluation=seconds)
        self._pauses.add("validation", seconds)
        loss = state.validation_loss
        self.alerts.check(
            "validation_loss",
            loss is not None and not math.isfinite(loss),
            f"step {state.step}: the validation loss is {loss}, though all weights are finite",
            state.step,
        )
        self._write_scalars(state, evaluation_seconds=seconds)
        self.progress.validation_losses = dict(dataset_losses)
        self._follow(state)
        for name, own in dataset_losses.items():
            values = {f"validation_loss/{name}": own}
            if (value := self._perplexity(own)) is not None:
                values[f"validation_perplexity/{name}"] = value
            self._write_scalars(state, **values)
        words = ""
        if rewards is not None:
            self._write_scalars(
                state, validation_reward_accuracy=rewards.accuracy, validation_reward_margin=rewards.margin
            )
            words = f" | {_shown(rewards)}"
        if dataset_losses:
            words += " | " + ", ".join(f"{name} {own:.4f}" for name, own in dataset_losses.items())
        self._add_loss("validation", state, loss, f"{words} | {seconds:.2f} s", seconds=seconds)

    def add_tasks(self, state: TrainState, found: "Evaluation", seconds: float) -> None:
        """Report the model's results on evaluation.tasks at this validation."""
        self._time_split.add(evaluation=seconds)
        self._pauses.add("tasks", seconds)
        self._write_scalars(
            state,
            tasks_seconds=seconds,
            **{
                f"task/{name} {metric}": estimate.value
                for name, record in found.items()
                for metric, estimate in record.metrics.items()
            },
        )
        self._follow(state)
        texts = [
            f"{name} " + ", ".join(f"{metric} {estimate}" for metric, estimate in record.metrics.items())
            for name, record in found.items()
        ]
        text = " | ".join(texts)
        logger.info("step %6s | %s | %.2f s", f"{state.step:,}", text, seconds)
        self.events.write("tasks", f"step {state.step}: {text}", step=state.step, seconds=seconds)

    def add_test(self, state: TrainState, loss: float | None, seconds: float) -> None:
        self._time_split.add(evaluation=seconds)
        self.progress.test_loss = loss
        self._add_loss("test", state, loss)

    def _add_loss(
        self, kind: str, state: TrainState, loss: float | None, ending: str = "", **data: float
    ) -> None:
        if loss is None:
            text = f"no {kind} loss: none of the tokens that were read is in the loss"
            logger.warning("step %6s | %s%s", f"{state.step:,}", text, ending)
            self.events.write("warning", f"step {state.step}: {text}", step=state.step, **data)
            return
        values, text = {f"{kind}_loss": loss}, f"{kind} loss {loss:.4f}"
        if (value := self._perplexity(loss)) is not None:
            values[f"{kind}_perplexity"] = value
            text += f", perplexity {value:.4g}"
        self._write_scalars(state, **values)
        logger.info("step %6s | %s%s", f"{state.step:,}", text, ending)
        self.events.write(kind, f"step {state.step}: {text}", step=state.step, loss=loss, **data)

    def _perplexity(self, loss: float) -> float | None:
        return perplexity(loss) if self.config.has_perplexity else None

    def add_throughput(self, state: TrainState, measured: Throughput) -> None:
        """Write the results of mode: perf, for the steps after the warm-up."""
        self.flush()
        tokens_per_second = measured.samples_per_second * self.config.model.seq_length
        self.progress.samples_per_second = measured.samples_per_second
        self.progress.tokens_per_second = tokens_per_second
        speeds = self.speedometer.at(tokens_per_second)
        parts = [
            f"{amounts.count(round(tokens_per_second))} tokens/s over "
            f"{amounts.counted(measured.steps, 'step')}",
            f"{measured.seconds / measured.steps:.3f} s a step",
            f"{speeds.model_flops / 1e12:.3g} model TFLOP/s a device",
            f"MFU {speeds.mfu:.1%}" if speeds.mfu is not None else "",
            f"HFU {speeds.hfu:.1%}" if speeds.hfu is not None and speeds.hfu != speeds.mfu else "",
            f"{speeds.matmul_fraction:.1%} of the measured matrix rate",
        ]
        text = " | ".join(part for part in parts if part)
        logger.info("throughput | %s", text)
        self.events.write(
            "throughput",
            f"throughput: {text}",
            step=state.step,
            **asdict(measured),
            tokens_per_second=tokens_per_second,
            **asdict(speeds),
            measured_matmul_flops=self.speedometer.matmul_flops,
            device_memory_bytes=self._device_memory()[0],
        )

    def add_checkpoint(self, state: TrainState, seconds: float, locally: bool = False) -> None:
        """Report a checkpoint that paused training for `seconds`. With `locally`, the checkpoint is only on
        the nodes' own disks.
        """
        self.flush()
        self._time_split.add(checkpoint=seconds)
        self._pauses.add("local checkpoint" if locally else "checkpoint", seconds)
        self.progress.checkpoint_step = state.step
        self._note_save(seconds)
        self._write_scalars(state, checkpoint_seconds=seconds)
        self.writer.flush()
        logger.info("step %6s | checkpoint taken | training waited %.2f s", f"{state.step:,}", seconds)

    def add_checkpoint_written(self, state: TrainState, step: int, seconds: float, num_bytes: int) -> None:
        """Report that the checkpoint of `step` was published `seconds` after its save began. Training is at
        `state` now.
        """
        self._note_save(seconds)
        self._write_scalars(state, checkpoint_write_seconds=seconds)
        text = f"saved, {amounts.size(num_bytes)} written in {seconds:.2f} s"
        logger.info("step %6s | checkpoint of step %s | %s", f"{state.step:,}", f"{step:,}", text)

    def _note_save(self, seconds: float) -> None:
        """Record the duration of a save, which a stop may wait for (jobs/attempt/phases.py)."""
        self.progress.save_seconds = max(self.progress.save_seconds or 0.0, round(seconds, 3))

    def add_spread(self, step: int, spread: Spread | None, state: TrainState) -> None:
        """Report the computing time of each rank in a logged step. `spread` is None if there is only one
        rank.
        """
        if spread is None:
            return
        self._write_scalars(
            state,
            compute_min_seconds=min(spread.seconds),
            compute_median_seconds=spread.median_seconds,
            compute_max_seconds=max(spread.seconds),
            slowest_rank=spread.slowest_rank,
            rank_slowdown=spread.slowdown,
        )
        limit = self.config.logging.alerts.max_rank_slowdown
        if limit is None:
            return
        for rank, slowdown in enumerate(spread.slowdowns):
            times = self._times_slow.get(rank, 0) + 1 if slowdown > limit else 0
            self._times_slow[rank] = times
            message = (
                f"step {step}: rank {rank} on {spread.hosts[rank]} needs {spread.seconds[rank]:.3g} s of "
                f"compute per step, {slowdown:.0%} above the median of its pipeline stage, in {times} "
                f"logged steps in a row (limit: logging.alerts.max_rank_slowdown = {limit:.0%})"
            )
            name = f"max_rank_slowdown of rank {rank}"
            # An alert is raised after SLOW_INTERVALS slow steps in a row, but a single slow step keeps it
            # raised.
            if times == 0 or times >= SLOW_INTERVALS or self.alerts.is_raised(name):
                self.alerts.check(name, times > 0, message, step)

    def close(self) -> None:
        """Write pending results, and how the job's time was spent."""
        self.flush()
        if self._time_split.steps:
            text = f"time of {amounts.counted(self._time_split.steps, 'step')}: {self._time_split}"
            logger.info("%s", text)
            seconds = self._time_split.seconds()
            self.events.write("time", text, seconds=seconds, steps=self._time_split.steps)
        self.writer.close()

    def _write(self, result: StepResult) -> None:
        tokens_in_loss = None if result.tokens_in_loss is None else float(result.tokens_in_loss)
        loss = float(result.loss) if tokens_in_loss != 0 else None
        norm = float(result.grad_norm) if result.grad_norm is not None else None
        if self._trace:
            numbers = {"loss": loss, "grad_norm": norm}
            exact = {name: None if value is None else value.hex() for name, value in numbers.items()}
            self.events.write("trace", f"step {result.step}", step=result.step, **exact)
        if result.overflowed_scale is not None:
            # After an fp16 overflow the norm is infinite, which would spoil curves and progress.
            norm = None
        seconds = result.timer.seconds()
        # On a GPU the host runs ahead of the device, so the host's clock says little about a single step.
        wall_seconds = result.timer.wall_seconds() or result.wall_seconds
        self._time_split.add_step(wall_seconds, seconds, result.timer.communication_seconds)
        batch, samples, seq_length = result.batch_size, result.consumed_samples, self.config.model.seq_length
        tokens = samples * seq_length
        tokens_per_second = batch * seq_length / wall_seconds
        speeds = self.speedometer.at(tokens_per_second)
        resident, used = host_memory()
        device_bytes, device_fraction = self._device_memory()
        self._follow_costs(resident if device_bytes is None else device_bytes)
        # A step without a loss gives no information: the previous loss is kept.
        self.progress.loss = self.progress.loss if loss is None else loss
        self.progress.grad_norm = norm
        self.progress.steps_without_loss = result.stability_counts.get("steps_without_loss") or None
        self.progress.learning_rate = result.learning_rate
        self.progress.tokens_per_second = tokens_per_second
        values: dict[str, float | None] = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": result.learning_rate,
            "loss_scale": result.loss_scale,
            "batch_size": batch,
            "world_size": self.world.size,
            "seq_length": seq_length,
            "iteration_time": wall_seconds,
            "steps_vs_samples": samples,
            "steps_vs_tokens": tokens,
            "tokens_per_second": tokens_per_second,
            "samples_per_second": batch / wall_seconds,
            "tflops_per_device": speeds.model_flops / 1e12,
            "mfu": speeds.mfu,
            "hfu": speeds.hfu,
            "matmul_fraction": speeds.matmul_fraction,
            **{f"{part}_seconds": own for part, own in seconds.items()},
            "communication_seconds": result.timer.communication_seconds,
            "host_memory_bytes": resident,
            "host_memory_fraction": used,
            "device_memory_bytes": device_bytes,
            "device_memory_fraction": device_fraction,
            **self._dataset_losses(result),
            **self._rewards(result),
            **self._code_scalars(result),
            **result.stability_counts,
        }
        if self.config.parallel.pipeline_parallel_size == 1:
            values["pipeline_seconds"] = None
        self.writer.write(result.step, tokens, samples, **values)
        is_bad = loss is not None and not math.isfinite(loss)
        self.alerts.check("loss", is_bad, f"step {result.step}: the loss is {loss}", result.step)
        if self.config.precision.dtype == "fp16":
            self._follow_overflows(result)
        if result.logged:
            self._log(result, loss, speeds.mfu, wall_seconds, used, device_fraction)

    def _follow_costs(self, memory_bytes: int) -> None:
        """Record the memory and pipeline costs with which the next run's plan compares its own estimates."""
        self.progress.memory_bytes = max(self.progress.memory_bytes or 0, memory_bytes)
        if self.config.parallel.pipeline_parallel_size > 1:
            self.progress.pipeline_fraction = self._time_split.step_fraction("pipeline")

    def _follow_overflows(self, result: StepResult) -> None:
        self.progress.overflow_steps = result.stability_counts.get("overflow_steps", 0)
        self._overflows.append(result.overflowed_scale is not None)
        count = sum(self._overflows)
        message = (
            f"step {result.step}: {count} of the last {len(self._overflows)} steps overflowed in fp16 and "
            f"did not update the weights (loss scale now {_power(result.loss_scale)}). At the start of a "
            "run, lower precision.fp16.initial_scale_power; later, lower lr_schedule.lr or use "
            "precision.dtype = bf16"
        )
        self.alerts.check("overflow_steps", count > OVERFLOW_WINDOW_STEPS // 2, message, result.step)

    def _dataset_losses(self, result: StepResult) -> dict[str, float | None]:
        """Return {name in metrics.py: loss} of each dataset; {} if datasets are not distinguished.

        The loss is None for a dataset without a token in the step's loss.
        """
        if result.dataset_losses is None:
            return {}
        rows = result.dataset_losses.tolist()
        return {
            f"loss/{name}": total / count if count else None
            for name, (total, count) in zip(self.dataset_names, rows, strict=True)
        }

    def _rewards(self, result: StepResult) -> dict[str, float | None]:
        """Return {name in metrics.py: reward} over the step's pairs; {} without dpo."""
        if result.pair_sums is None:
            return {}
        self._newest_rewards = own = Rewards.of(result.pair_sums)
        return {
            "reward_chosen": own.chosen,
            "reward_rejected": own.rejected,
            "reward_margin": own.margin,
            "reward_accuracy": own.accuracy,
        }

    def _code_scalars(self, result: StepResult) -> dict[str, float]:
        """Return {name in metrics.py: scalar} from the user's loss() and scalars(); {} if there are none."""
        own = dict(result.code_scalars)
        if self._code is not None and self._code.defines("scalars"):
            own |= own_scalars(self._code, result.step)
        return {f"code/{name}": value for name, value in own.items()}

    def _log(
        self,
        result: StepResult,
        loss: float | None,
        mfu: float | None,
        wall_seconds: float,
        host_memory_fraction: float,
        device_memory_fraction: float | None,
    ) -> None:
        progress, config = self.progress, self.config
        done = result.consumed_samples * config.model.seq_length
        parts = [
            f"step {result.step:>6,}",
            f"tokens {amounts.count(done)} / {amounts.count(self._target_tokens)}",
            f"loss {loss:.4f}" if loss is not None else "no token in the loss",
            _shown(self._newest_rewards) if self._newest_rewards is not None else "",
            f"lr {amounts.rate(result.learning_rate)}",
            f"grad norm {progress.grad_norm:.2f}" if progress.grad_norm is not None else _overflow(result),
            f"{wall_seconds:.2f} s",
            f"{amounts.count(round(progress.tokens_per_second or 0))} tokens/s",
            f"MFU {mfu:.1%}" if mfu is not None else "",
        ]
        logger.info("%s", " | ".join(part for part in parts if part))
        self.writer.flush()
        communication = result.timer.communication_seconds
        self.alerts.check_all(
            result.step,
            mfu=mfu,
            communication_fraction=communication / wall_seconds if communication is not None else None,
            host_memory_fraction=host_memory_fraction,
            device_memory_fraction=device_memory_fraction,
            device_utilization=device_utilization(self.world.device),
        )

    def _log_start(self, state: TrainState) -> None:
        config, device = self.config, self.world.device
        by = config.shortened_by
        early = f" ({by} ends the run after {config.train_steps:,})" if by else ""
        logger.info(
            "%s: %s parameters, %s tokens in %s steps of %s%s, %d x %s, %s",
            config.name,
            amounts.count(count_parameters(config).total),
            amounts.count(config.train_tokens),
            f"{config.scheduled_steps:,}",
            amounts.count(config.tokens_per_step),
            early,
            self.world.size,
            torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            f"from step {state.step}" if state.step else "from the start",
        )

    def _follow(self, state: TrainState) -> None:
        progress = self.progress
        progress.consumed_samples = state.data.consumed_samples
        progress.consumed_tokens = state.data.consumed_samples * self.config.model.seq_length
        progress.validation_loss = state.validation_loss
        progress.best_validation_loss = state.best_validation_loss
        progress.samples_per_second = self._rate.per_second()
        if progress.samples_per_second:
            left = self._run_samples - state.data.consumed_samples
            progress.eta_seconds = left / progress.samples_per_second + self._pauses.left(state.step)

    def _write_scalars(self, state: TrainState, **values: float) -> None:
        samples = state.data.consumed_samples
        self.writer.write(state.step, samples * self.config.model.seq_length, samples, **values)

    def _device_memory(self) -> tuple[int | None, float | None]:
        device = self.world.device
        if device.type != "cuda":
            return None, None
        peak = torch.cuda.max_memory_allocated(device)
        return peak, peak / torch.cuda.get_device_properties(device).total_memory


def _shown(rewards: Rewards) -> str:
    return f"reward margin {rewards.margin:.4f}, accuracy {rewards.accuracy:.1%}"


def _overflow(result: StepResult) -> str:
    """Return "overflow, loss scale 2^31 -> 2^30", without the arrow if the scale did not change, or "" for a
    step without overflow.
    """
    if result.overflowed_scale is None:
        return ""
    before, now = _power(result.overflowed_scale), _power(result.loss_scale)
    return f"overflow, loss scale {before}" + (f" -> {now}" if now != before else "")


def _power(scale: float) -> str:
    exponent = math.log2(scale)
    return f"2^{exponent:.0f}" if exponent.is_integer() else f"{scale:g}"
