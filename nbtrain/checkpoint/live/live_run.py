"""A running job in the form that saving and loading need, and the progress of its training."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.live import resume_report
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.sample import Samples
from nbtrain.dataset.samples.state import DataState
from nbtrain.parallel import random
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.startup import World


@dataclass
class TrainState:
    """Progress of the training: the part of a run's state that the engine does not hold."""

    step: int
    data: DataState
    evaluated_step: int | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    stability: dict[str, Any] = field(default_factory=dict)
    """State of the guard against bad steps (StepGuard), set when a checkpoint is saved."""

    def validated(self, loss: float | None) -> None:
        """Record the validation loss after the current step; `loss` is None if no token was in the loss."""
        self.evaluated_step, self.validation_loss = self.step, loss
        if loss is not None and math.isfinite(loss):
            best = self.best_validation_loss
            self.best_validation_loss = loss if best is None else min(loss, best)


@dataclass
class LiveRun:
    """The state of a running job, which is saved as a checkpoint or loaded from one."""

    run: RunDir
    config: RunConfig
    engine: Any
    """DeepSpeed's engine."""
    world: World
    tokenizer_sha256: str | None
    events: EventWriter | None
    samples: Samples | None = None
    """The training split, for the hash of the next batch."""
    stream: TensorParallelStream | None = None
    """The random stream of tensor-parallel dropout; None without tensor parallelism."""
    attempt: int = 0
    """Number of this attempt of its job."""
    code_sha256: str | None = None
    """SHA-256 of the user's Python file that `code` names; None without `code`."""

    def tell(self, kind: str, message: str, **fields: Any) -> None:
        """Write an event if this rank writes events."""
        if self.events is not None:
            self.events.write(kind, message, **fields)

    def next_batch_sha256(self, data: DataState) -> str | None:
        """Return the SHA-256, in hexadecimal, of the global batch after `data`; None without samples."""
        if self.samples is None:
            return None
        batch_size = self.config.batch_schedule.size_at(data.consumed_samples)
        return resume_report.next_batch_sha256(self.samples, data, batch_size)

    def random_state(self) -> dict[str, Any]:
        """Return the state of every random generator of this rank."""
        state = random.get_state()
        return state if self.stream is None else {**state, "stream": self.stream.get_state()}

    def restore_random(self, state: dict[str, Any]) -> None:
        """Restore the result of random_state()."""
        random.set_state(state)
        if self.stream is not None:
            self.stream.set_state(state["stream"])

    def reseed(self, step: int) -> None:
        """Start new random streams that depend only on the seed, `step` and the rank. Used when the layout
        has changed.
        """
        digest = hashlib.sha256(f"{self.config.model.seed} {step}".encode()).digest()
        seed = int.from_bytes(digest[:4])
        place, tensor = divmod(self.world.rank, self.config.parallel.tensor_parallel_size)
        random.seed_rank(seed, place)
        if self.stream is not None:
            self.stream.set_state(TensorParallelStream(seed, place, tensor).get_state())
