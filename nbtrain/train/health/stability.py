"""Bad steps: a loss or gradient that is NaN or Inf, or a loss that jumps; and the policies of stability.*.

    stop      the job fails and reports step, loss, norm, ranks and samples
    skip      the gradients are discarded before the weights are updated; weights, moments and Adam's step
              count do not change, so the next step is bit for bit the same as without the bad step. If the
              weights themselves are NaN or Inf, skipping cannot help: the job ends.
    rollback  the ranks exit cleanly; the supervisor starts them again from the newest checkpoint and skips
              the samples up to the bad step (rollbacks.json, DataState.skipped_sample_ranges)

When a step is checked:

    skip             inside DeepSpeed's _take_model_step, which both of its engines call at the end of
                     accumulation: one all-reduce of three numbers and one wait for the device in every step
    stop, rollback   after the step, once its averaged loss and norm have arrived: on a GPU during the next
                     step, from a pinned copy, and always before anything is saved (settle). No wait.

The numbers are averages over all ranks, so every rank has the same numbers and decides alike. With ZeRO 1 to
3, DeepSpeed skips a step whose gradient norm is NaN or Inf without a report; here that counts as a bad step.
The exception is fp16 with a dynamic loss scale, which finds its scale by overflows: these are counted
separately.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.base.errors import RollbackError, StabilityError
from nbtrain.base.run_directory.bad_steps import EFFECTS
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.watch_section import StabilityConfig
from nbtrain.parallel.agreement import gather_objects
from nbtrain.parallel.startup import World
from nbtrain.train.health.attempt import this_attempt, this_attempt_number
from nbtrain.train.health.discard import discard_gradients, finish_own_skip, gradient_norm
from nbtrain.train.health.faults import Faults
from nbtrain.train.health.finite_weights import bad_weights, local_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepVerdict:
    """The outcome of a step."""

    skipped: bool = False
    """Whether the policy prevented the update of the weights."""
    overflowed: bool = False
    """Whether the weights were not updated because fp16's loss scale was too high."""
    reason: str = ""


@dataclass
class _Step:
    """A step that is being computed or checked; its tensors may not be computed yet."""

    number: int
    positions: tuple[int, int]
    own_loss: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    norm: torch.Tensor | None = None
    tokens_in_loss: torch.Tensor | None = None
    """Number of tokens in the loss: 0 if the step has no loss, None if every token is in it."""
    copied: torch.cuda.Event | None = None

    @property
    def samples(self) -> str:
        return f"samples {self.positions[0]:,} to {self.positions[1] - 1:,} of the training order"

    @property
    def has_loss(self) -> bool:
        """Return whether a token of the step is in the loss; waits for the device."""
        return self.tokens_in_loss is None or float(self.tokens_in_loss) > 0

    def copy(self, loss: torch.Tensor, norm: torch.Tensor | float | None, on_gpu: bool) -> None:
        """Store loss and norm; on a GPU they are in host memory once the event `copied` has happened."""
        self.loss, self.norm = loss.detach(), None if norm is None else torch.as_tensor(norm).detach()
        if on_gpu:
            self.loss = _pinned(self.loss)
            self.norm = None if self.norm is None else _pinned(self.norm)
            self.tokens_in_loss = None if self.tokens_in_loss is None else _pinned(self.tokens_in_loss)
            self.copied = torch.cuda.Event()
            self.copied.record()


class StepHistory:
    """The losses of earlier steps, and the rules by which a step counts as bad compared with them."""

    def __init__(self, stability: StabilityConfig, rollbacks: int):
        self.counts = {
            "skipped_steps": 0,
            "overflow_steps": 0,
            "loss_spikes": 0,
            "rollbacks": rollbacks,
            "steps_without_loss": 0,
        }
        """Counts of the run so far, by their names in metrics.py."""
        self.losses: deque[float] = deque(maxlen=stability.loss_spike_window_steps)
        """Losses of the last good steps, without steps that had no token in the loss."""
        self._stability = stability
        self._skipped: deque[int] = deque()

    @property
    def mean_loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    def good(self, loss: float, has_loss: bool) -> None:
        """Record a good step, and its loss if a token is in the loss."""
        if has_loss:
            self.losses.append(loss)
        else:
            self.counts["steps_without_loss"] += 1

    def kind(self, loss: float, norm: float | None, has_loss: bool = True) -> str:
        """Return "nan" or "spike" for a bad step, and "" for a good one. A norm of -1 is DeepSpeed's way to
        report a NaN norm.

        If all earlier losses were 0, as preference losses can become, there is no threshold for a spike.
        """
        if not math.isfinite(loss) or (norm is not None and (not math.isfinite(norm) or norm < 0)):
            return "nan"
        if (
            self._stability.on_loss_spike == "ignore"
            or not has_loss
            or len(self.losses) < self._stability.loss_spike_window_steps
        ):
            return ""
        mean = self.mean_loss
        return "spike" if mean > 0 and loss > self._stability.loss_spike_factor * mean else ""

    def skip(self, step: int) -> int:
        """Count a skipped step; return how many of the last loss_spike_window_steps steps were skipped."""
        self.counts["skipped_steps"] += 1
        self._skipped.append(step)
        while self._skipped[0] <= step - self._stability.loss_spike_window_steps:
            self._skipped.popleft()
        return len(self._skipped)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint as JSON values: recent losses, skipped steps and counts."""
        return {"losses": list(self.losses), "skipped": list(self._skipped), "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of state_dict(). Rollbacks are counted by the job, not by the checkpoint."""
        self.losses.extend(state["losses"])
        self._skipped.extend(state["skipped"])
        self.counts |= {**state["counts"], "rollbacks": self.counts["rollbacks"]}


class StepGuard:
    """Checks every step of one engine. All ranks call all methods together.

    begin_step -> forward, backward, engine.step() or train_batch() -> end_step; settle() before a save.
    """

    def __init__(
        self,
        config: RunConfig,
        engine: Any,
        world: World,
        events: EventWriter | None,
        run: RunDir | None = None,
    ):
        """Set up the guard. The job's rollbacks are read from `run`, if given."""
        self.config = config
        self.world = world
        self.events = events
        self.loss_factor: float | None = None
        """Factor of this step's loss from an injected fault (faults.py); None leaves the loss unchanged."""
        self.history = StepHistory(config.stability, len(Rollback.read_all(run.rollbacks_json)) if run else 0)
        self._acts_before_the_step = "skip" in (config.stability.on_nan, config.stability.on_loss_spike)
        orders = this_attempt(run).faults if run else []
        self._faults = Faults(orders, world.rank, this_attempt_number())
        self._engine = engine
        self._step = _Step(0, (0, 0))
        self._pending: deque[_Step] = deque()
        # With the policy skip, these two are known before the weights are updated: what is wrong with the
        # step, and the mean loss of all ranks.
        self._found = ""
        self._mean_loss: float | None = None
        self._local_loss: Callable[[], torch.Tensor | None] = lambda: None
        self._tokens_in_loss: Callable[[], torch.Tensor | None] = lambda: None
        self._take_model_step: Callable[..., None] = engine._take_model_step

    def install(self) -> None:
        """Have the engine run the guard between the last backward pass and the optimizer
        (train/engine/patches.py).
        """
        self._engine._take_model_step = self._guarded

    def begin_step(
        self,
        step: int,
        positions: tuple[int, int],
        local_loss: Callable[[], torch.Tensor | None],
        tokens_in_loss: Callable[[], torch.Tensor | None] = lambda: None,
    ) -> None:
        """Prepare for the first forward pass of `step`, which reads positions [first, last) of the training
        order.

        `local_loss` is called once, after all micro batches. It returns this rank's own mean loss (fp32
        scalar on the device), or None if another pipeline stage computes the loss. `tokens_in_loss` is also
        called after all micro batches. It returns how many tokens of all ranks are in the mean loss, or None
        for all tokens.
        """
        self._step, self._local_loss = _Step(step, positions), local_loss
        self._tokens_in_loss = tokens_in_loss
        self._found, self._mean_loss = "", None
        self.loss_factor = self._faults.loss_factor(step)
        self._faults.at(step)

    def end_step(self, loss: torch.Tensor, grad_norm: torch.Tensor | float | None) -> StepVerdict:
        """Decide whether the step was good; `loss` and `grad_norm` are over all ranks and may not be computed
        yet.

        Raises StabilityError if the step or, on a GPU, the step before it ends the job, and RollbackError if
        the job is rolled back to a checkpoint.
        """
        step, precision = self._step, self.config.precision
        step.tokens_in_loss = self._tokens_in_loss()
        if self._faults.spoils_weights(step.number):
            local_part(next(self._engine.module.parameters())).fill_(math.nan)
        if self._found:
            return self._act(step, self._found, self._mean_loss, None)
        if getattr(self._engine.optimizer, "overflow", False):
            if precision.dtype == "fp16" and not precision.fp16.loss_scale:
                self.history.counts["overflow_steps"] += 1
                return StepVerdict(overflowed=True, reason="overflow: the loss scale is lowered")
            mean_loss = self._mean_loss if self._acts_before_the_step else float(loss)
            return self._act(step, "nan", mean_loss, math.inf, _scale_advice(self.config, mean_loss))
        if not self._acts_before_the_step:
            on_gpu = self.world.device.type == "cuda"
            step.copy(loss, grad_norm, on_gpu)
            self._pending.append(step)
            self._look(keep=1 if on_gpu else 0)
        elif self._mean_loss is not None:
            self.history.good(self._mean_loss, step.has_loss)
        return StepVerdict()

    def settle(self) -> None:
        """Check every step computed so far, and raise the same errors as end_step(). Waits for the device."""
        self._look(keep=0)

    def check_weights(self) -> None:
        """Raise RollbackError or StabilityError, according to stability.on_nan, if a weight is NaN or Inf.
        Call it before a save. Waits for the device.

        A good loss does not prove that the weights are finite: the last update, or faulty memory, may have
        damaged the weights later.
        """
        if not (names := bad_weights(self._engine.module, self.world)):
            return
        step = self._step
        found = (
            f"after step {step.number} some weights are NaN or Inf ({names}), so no checkpoint is saved; "
            f"{step.samples}"
        )
        policy = "rollback" if self.config.stability.on_nan == "rollback" else "stop"
        self._report(step, policy, f"{found}; {EFFECTS[policy]}", bad="weights")
        if policy == "rollback":
            raise RollbackError(found, step.number, step.positions)
        raise StabilityError(
            f"{found}. `nbtrain resume` continues from the newest checkpoint; lower lr_schedule.lr first, or "
            "set stability.on_nan = rollback, which skips the samples since that checkpoint."
        )

    def _guarded(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Call DeepSpeed's _take_model_step unless the step is bad and can still be discarded."""
        own = self._local_loss()
        self._step.own_loss = None if own is None else own.detach().float().clone()
        if self._acts_before_the_step:
            self._mean_loss, finite = self._over_ranks(self._step.own_loss)
            self._step.tokens_in_loss = self._tokens_in_loss()
            norm = 0.0 if finite else math.nan
            self._found = self.history.kind(self._mean_loss, norm, self._step.has_loss)
            if self._found:
                discard_gradients(self._engine)
                return
        self._take_model_step(lr_kwargs)
        if getattr(self._engine.optimizer, "overflow", False):
            finish_own_skip(self._engine.optimizer)

    def _over_ranks(self, own_loss: torch.Tensor | None) -> tuple[float, bool]:
        """Return (mean loss over ranks, whether the gradients are finite). With ZeRO the second value is
        always True, because ZeRO checks the gradients itself.
        """
        sums = torch.zeros(3, dtype=torch.float32, device=self.world.device)
        if own_loss is not None:
            sums[0], sums[1] = own_loss, 1.0
        if isinstance(self._engine.optimizer, torch.optim.Optimizer):
            sums[2] = (~gradient_norm(self._engine.module).isfinite()).float()
        if self.world.size > 1:
            dist.all_reduce(sums)
        total, count, bad = sums.tolist()
        return total / max(count, 1.0), bad == 0

    def _look(self, keep: int) -> None:
        while len(self._pending) > keep:
            step = self._pending.popleft()
            if step.copied is not None:
                step.copied.synchronize()
            assert step.loss is not None
            loss, norm = float(step.loss), None if step.norm is None else float(step.norm)
            if kind := self.history.kind(loss, norm, step.has_loss):
                self._act(step, kind, loss, norm)
            self.history.good(loss, step.has_loss)

    def _act(
        self, step: _Step, kind: str, loss: float | None, norm: float | None, scale_advice: str = ""
    ) -> StepVerdict:
        """Apply the policy to a bad step: return the verdict if the policy is skip, otherwise raise."""
        stability, field = self.config.stability, "on_nan" if kind == "nan" else "on_loss_spike"
        policy = getattr(stability, field)
        own = None if step.own_loss is None else float(step.own_loss)
        own_losses = gather_objects(own) if self.world.size > 1 else [own]
        found = _describe(step, kind, loss, norm, own_losses, self.history) + scale_advice
        self.history.counts["loss_spikes"] += kind == "spike"
        message = f"{found}; {EFFECTS[policy]} (stability.{field} = {policy})"
        figures = {"loss": _as_json(loss), "grad_norm": _as_json(norm)}
        self._report(step, policy, message, bad=kind, ranks=_bad_ranks(own_losses), **figures)
        if policy == "rollback":
            raise RollbackError(found, step.number, step.positions)
        if policy == "stop":
            cure = (
                f" Lower lr_schedule.lr or look at these samples; stability.{field} = skip omits such steps, "
                "and rollback skips the samples since the checkpoint."
            )
            where = self.config.where(f"stability.{field}")
            raise StabilityError(
                f"{found}; {where}: stability.{field} = stop ends the job.{'' if scale_advice else cure}"
            )
        if kind == "nan" and (names := bad_weights(self._engine.module, self.world)):
            raise StabilityError(
                f"{found}; the weights themselves are NaN or Inf ({names}), and skipping steps does not fix "
                "them. `nbtrain resume` continues from the newest checkpoint; lower lr_schedule.lr first."
            )
        skipped, limit = self.history.skip(step.number), stability.max_skipped_steps
        if skipped > limit:
            cure = "" if scale_advice else ": lower lr_schedule.lr, or go back to an older checkpoint"
            raise StabilityError(
                f"{found}; {skipped} of the last {stability.loss_spike_window_steps} steps were skipped, "
                f"more than stability.max_skipped_steps = {limit} allows. The run no longer "
                f"learns{cure}."
            )
        return StepVerdict(skipped=True, reason=found)

    def _report(self, step: _Step, policy: str, message: str, **data: Any) -> None:
        if self.world.rank == 0:
            logger.warning("%s", message)
        if self.events is not None:
            kind = "error" if policy == "stop" else policy
            self.events.write(kind, message, step=step.number, positions=list(step.positions), **data)


def _bad_ranks(own_losses: list[float | None]) -> list[int]:
    """Return the ranks whose own loss is NaN or Inf, from the losses of all ranks."""
    return [rank for rank, own in enumerate(own_losses) if own is not None and not math.isfinite(own)]


def _describe(
    step: _Step,
    kind: str,
    loss: float | None,
    norm: float | None,
    own_losses: list[float | None],
    history: StepHistory,
) -> str:
    """Return a message that says what is wrong with a step, on which ranks and samples.

    `own_losses` holds the losses of all ranks, with None for a rank without a loss.
    """
    losses = {rank: own for rank, own in enumerate(own_losses) if own is not None}
    if kind == "spike":
        assert loss is not None
        highest, mean = max(losses, key=lambda rank: losses[rank], default=0), history.mean_loss
        return (
            f"step {step.number}: the loss jumps to {loss:.4g}, {loss / mean:.1f} times the mean of the "
            f"last {len(history.losses)} steps ({mean:.4g}); highest on rank {highest} "
            f"({losses.get(highest, math.nan):.4g}); {step.samples}"
        )
    bad = _bad_ranks(own_losses)
    normed = "" if norm is None else f", gradient norm {norm:.4g}"
    if not bad:
        return (
            f"step {step.number}: the gradient is not finite{normed}, although the loss is finite on every "
            f"rank ({loss:.4g}); {step.samples}"
        )
    word = "rank" if len(bad) == 1 else "ranks"
    some = f"{word} {', '.join(map(str, bad))} of {len(own_losses)}"
    ranks = some if len(bad) < len(losses) else "every rank"
    return f"step {step.number}: the loss is {loss:.4g} on {ranks}{normed}; {step.samples}"


def _scale_advice(config: RunConfig, loss: float | None) -> str:
    """Return a sentence with the fix for an fp16 overflow at a fixed loss scale; "" if the scale is not the
    cause.
    """
    precision = config.precision
    # A scale of 1 or less cannot make a finite gradient infinite.
    is_scale = precision.dtype == "fp16" and precision.fp16.loss_scale > 1
    if not is_scale or loss is None or not math.isfinite(loss):
        return ""
    return (
        f"; {config.where('precision.fp16.loss_scale')}: precision.fp16.loss_scale = "
        f"{precision.fp16.loss_scale:,.10g} is fixed, and likely too high: lower it, or set 0 for a "
        "dynamic one"
    )


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _as_json(value: float | None) -> float | str | None:
    # JSON has no NaN: the name is written instead.
    return value if value is None or math.isfinite(value) else str(value)
