"""A run that is being trained, as saving and loading see it."""

from dataclasses import dataclass
from typing import Any

from nbtrain.base.events import EventWriter
from nbtrain.base.rundir import RunDir
from nbtrain.checkpoint import certificate
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.sample import Samples
from nbtrain.dataset.samples.state import DataState
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.startup import World


@dataclass
class LiveRun:
    """What a checkpoint is made of, and what it is loaded into."""

    run: RunDir
    config: RunConfig
    engine: Any
    """DeepSpeed's own."""
    world: World
    tokenizer_sha256: str | None
    events: EventWriter | None
    samples: Samples | None = None
    """The training split, for the hash of the next batch."""
    stream: TensorParallelStream | None = None
    """The random stream of the tensor-parallel dropout."""

    def tell(self, kind: str, message: str, **fields: Any) -> None:
        """Write an event; nothing on ranks that write none."""
        if self.events is not None:
            self.events.write(kind, message, **fields)

    def next_batch_sha256(self, data: DataState) -> str | None:
        """Hex SHA-256 of the global batch after `data`; None without samples."""
        if self.samples is None:
            return None
        batch_size = self.config.batch_schedule.size_at(data.consumed_samples)
        return certificate.next_batch_sha256(self.samples, data, batch_size)
