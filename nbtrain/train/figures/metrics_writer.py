"""Writer of a run's scalars (metrics.py): event files for TensorBoard, metrics.jsonl for nbtrain.

An event file has more than one curve of some scalars:

    <tag>               by step
    <tag> vs tokens     by the count of tokens
    <tag> vs samples    by the count of samples

A resumed run writes some steps again. For each tag, TensorBoard's data server then drops the older points
from the first rewritten step on. torch's purge_step is not written: without the data server, for which ARM
has no wheel, TensorBoard compares purge_step with the counts of tokens and samples too, and would drop these
curves entirely at each restart.

This module does not import torch, so that tests can write a run's files without torch.
"""

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nbtrain.base.run_directory.metrics import scalar as scalar_named
from nbtrain.base.run_directory.metrics_files import MetricsFile

FLUSH_SECONDS = 10


class MetricsWriter:
    """Writes scalars on rank 0. `step` is the step at which the run starts: 0 or the loaded checkpoint's."""

    def __init__(self, folder: Path, step: int):
        self._events = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=120)
        self._metrics = MetricsFile(folder, step)
        self._flushed = time.monotonic()

    def write(self, step: int, consumed_tokens: int, consumed_samples: int, **values: float | None) -> None:
        """Write scalars, named as in metrics.py; values of None are omitted."""
        known = [(scalar_named(name), value) for name, value in values.items() if value is not None]
        now = time.time()
        self._metrics.write(
            step, now, consumed_tokens, consumed_samples, {scalar.tag: value for scalar, value in known}
        )
        for scalar, value in known:
            self._add_event(now, scalar.tag, value, step)
            if scalar.by_tokens:
                self._add_event(now, f"{scalar.tag} vs tokens", value, consumed_tokens)
                self._add_event(now, f"{scalar.tag} vs samples", value, consumed_samples)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def _add_event(self, wall_time: float, tag: str, value: float, step: int) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        self._events.add_event(Event(wall_time=wall_time, step=step, summary=summary))

    def text(self, name: str, content: str) -> None:
        """Write `content` for TensorBoard's Text tab under `name`, shown as preformatted text."""
        summary = text_pb(f"{name}/text_summary", "    " + content.replace("\n", "\n    "))
        self._events.add_event(Event(wall_time=time.time(), step=0, summary=summary))

    def flush(self) -> None:
        """Write everything that is still buffered to the files."""
        self._flushed = time.monotonic()
        self._metrics.flush()
        self._events.flush()

    def close(self) -> None:
        self._metrics.flush()
        self._events.close()
