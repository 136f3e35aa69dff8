"""Writer of a run's tfevents by the table in metrics.py: one folder, so one entry in TensorBoard.

    <tag>               by step
    <tag> vs tokens     by the count of tokens
    <tag> vs samples    by the count of samples

A resumed run writes some steps again. TensorBoard's data server then drops, tag by tag, the older points from
the newer one's step on. torch's purge_step is not written: TensorBoard without its data server (no wheel for
ARM) compares it with the counts of tokens too, and would drop these curves whole at each restart.
"""

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

from nbtrain.base.metrics import RESUMED
from nbtrain.base.metrics import scalar as scalar_named

FLUSH_SECONDS = 10


class MetricsWriter:
    """A writer on rank 0. `step` is the step at which the run starts: 0, or a checkpoint's."""

    def __init__(self, folder: Path, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        # At the first start there is nothing to drop, and the marker would only be noise.
        resumed = step > 0 or any(folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(folder), max_queue=1000, flush_secs=120)
        if resumed:
            mark = SessionLog(status=SessionLog.CHECKPOINT, msg=RESUMED)
            self._writer._get_file_writer().add_event(Event(session_log=mark), step + 1)
        self._flushed = time.monotonic()

    def write(self, step: int, consumed_tokens: int, consumed_samples: int, **values: float | None) -> None:
        """Write scalars, named as in metrics.py; values of None are omitted."""
        for name, value in values.items():
            if value is None:
                continue
            scalar = scalar_named(name)
            self._writer.add_scalar(scalar.tag, value, step)
            if scalar.by_tokens:
                self._writer.add_scalar(f"{scalar.tag} vs tokens", value, consumed_tokens)
                self._writer.add_scalar(f"{scalar.tag} vs samples", value, consumed_samples)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def text(self, name: str, content: str) -> None:
        """Write a text panel, shown unformatted."""
        self._writer.add_text(name, "    " + content.replace("\n", "\n    "), 0)

    def flush(self) -> None:
        """Flush everything to the files."""
        self._flushed = time.monotonic()
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
