"""Progress of an encoding, including the parts that workers are still encoding.

    worker  -> <work>/progress-<host>-<pid>: bytes of text, documents and tokens encoded so far
    parent  -> adds up these files when a part is finished, and every second while it waits

Finished parts count by their size; the workers' reports show the progress within unfinished parts.
"""

import os
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.amounts import count
from nbtrain.corpus.documents.corpus import SourceCounts, Task
from nbtrain.corpus.records import Tally
from nbtrain.corpus.workers.lease import stop_if_ended
from nbtrain.dataset.encode.shard import ShardRecord

COUNTERS = struct.Struct("<qqq")
PREFIX = "progress-"
# Minimum seconds between two updates of the progress bar. A batch takes milliseconds, faster than anyone can
# read, and reading the other workers' files costs more than drawing the bar.
SHOW_SECONDS = 0.1


class WorkerCounters:
    """Progress of one worker process, written to a file that the parent process reads.

    A half-written value only affects the display.
    """

    def __init__(self, work: Path):
        self._descriptor = os.open(
            work / f"{PREFIX}{socket.gethostname()}-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        )
        self._values = np.zeros(3, np.int64)

    def __call__(self, num_bytes: int, documents: int, tokens: int) -> None:
        stop_if_ended()
        self._values += num_bytes, documents, tokens
        os.pwrite(self._descriptor, COUNTERS.pack(*self._values), 0)


class EncodeProgress:
    """Progress of an encoding: finished shards, their tallies in order, and the progress bar."""

    def __init__(self, work: Path, counts: list[SourceCounts], progress: Progress):
        self.work, self.counts, self.progress = work, counts, progress
        self.records: dict[int, ShardRecord] = {}
        self.num_kept = 0
        self._next = 0
        self._started = self._shown = time.monotonic()
        # _size: bytes of all finished parts. _kept_*: documents and tokens of an earlier run's shards.
        # _done: text bytes, documents and tokens of the parts that this run has finished. _own: text bytes,
        # documents and tokens that this process has encoded, also of unfinished parts.
        self._size = self._kept_documents = self._kept_tokens = 0
        self._done = np.zeros(3, np.int64)
        self._own = np.zeros(3, np.int64)
        self._sizes_under_way: dict[int, int] = {}

    def begin(self, task: Task) -> None:
        self._sizes_under_way[task.number] = task.part.size_bytes

    def keep(self, record: ShardRecord) -> None:
        """Add a shard that was completed by an earlier run."""
        self.num_kept += 1
        self._kept_documents += record.documents
        self._kept_tokens += record.tokens
        self._add(record)

    def add(self, record: ShardRecord) -> None:
        self._sizes_under_way.pop(record.number, None)
        self._done += record.text_bytes, record.documents, record.tokens
        self._add(record)

    def add_batch(self, num_bytes: int, documents: int, tokens: int) -> None:
        """Count a batch that was encoded in this process."""
        self._own += num_bytes, documents, tokens
        if time.monotonic() - self._shown >= SHOW_SECONDS:
            self.show()

    def show(self) -> None:
        self._shown = time.monotonic()
        encoded = self._done
        if self._sizes_under_way:
            encoded = np.maximum(encoded, self._encoded())
        under_way = min(encoded[0] - self._done[0], sum(self._sizes_under_way.values()))
        documents, tokens = self._kept_documents + encoded[1], self._kept_tokens + encoded[2]
        seconds = max(1e-3, time.monotonic() - self._started)
        self.progress.update(
            max(0, self._size + under_way - self.progress.done),
            documents=f"{documents:,} ({count(round(encoded[1] / seconds))}/s)",
            tokens=f"{tokens:,}",
        )

    def _encoded(self) -> np.ndarray:
        contents = [path.read_bytes() for path in self.work.glob(f"{PREFIX}*")]
        whole = [COUNTERS.unpack(content) for content in contents if len(content) == COUNTERS.size]
        return np.array([self._own, *whole]).sum(axis=0)

    def _add(self, record: ShardRecord) -> None:
        self.records[record.number] = record
        self._size += record.size_bytes
        while self._next in self.records:
            done = self.records[self._next]
            self.counts[done.source].absorb(Tally.from_dict(done.tally), done.path)
            # A tally may name thousands of broken records, and there may be thousands of parts.
            self.records[self._next] = replace(done, tally={})
            self._next += 1
        self.show()
