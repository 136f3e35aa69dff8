"""tfevents of a run, by the table in metrics.py.

    tensorboard/              every scalar by step
    tensorboard/by_tokens/    "<tag> vs tokens": by the count of tokens
    tensorboard/by_samples/   "<tag> vs samples"

Three folders because a restart must carry purge_step, and TensorBoard then drops every point of that folder
from there on, whatever its tag: points by tokens in the first folder would all go at the first restart.
"""

import time
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from nbtrain.base.metrics import scalar as scalar_named

FLUSH_SECONDS = 10


class MetricsWriter:
    """Writes on rank 0. `step` and the other counts are where the run starts: 0, or a checkpoint."""

    def __init__(self, folder: Path, step: int, consumed_tokens: int, consumed_samples: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writers = {
            "": _writer(folder, step),
            "tokens": _writer(folder / "by_tokens", consumed_tokens),
            "samples": _writer(folder / "by_samples", consumed_samples),
        }
        self._flushed = time.monotonic()

    def write(self, step: int, consumed_tokens: int, consumed_samples: int, **values: float | None) -> None:
        """Scalars by their names in metrics.py; None is left out."""
        for name, value in values.items():
            if value is None:
                continue
            scalar = scalar_named(name)
            self._writers[""].add_scalar(scalar.tag, value, step)
            if scalar.by_tokens:
                self._writers["tokens"].add_scalar(f"{scalar.tag} vs tokens", value, consumed_tokens)
                self._writers["samples"].add_scalar(f"{scalar.tag} vs samples", value, consumed_samples)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def text(self, name: str, content: str) -> None:
        """A text panel, shown as it is typed."""
        self._writers[""].add_text(name, "    " + content.replace("\n", "\n    "), 0)

    def flush(self) -> None:
        """Have everything in the files."""
        self._flushed = time.monotonic()
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _writer(folder: Path, done: int) -> SummaryWriter:
    # At the first start there is nothing to purge, and a purge mark would be noise.
    restarted = done > 0 or any(folder.glob("events.out.tfevents.*"))
    return SummaryWriter(
        str(folder), purge_step=done + 1 if restarted else None, max_queue=1000, flush_secs=120
    )
