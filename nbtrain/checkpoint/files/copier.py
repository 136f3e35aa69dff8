"""Copies files from a node's disk to the run directory, with hashing, at low priority and at a limited
rate.
"""

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.files.torch_files import count_written

# Large chunks, so that the copying thread acquires the interpreter lock only about a hundred times per
# gigabyte.
CHUNK_BYTES = 8 << 20
# Niceness, at most 19: training and data loaders have priority over copying. Linux derives the disk priority
# from the niceness.
NICENESS = 10


class Pace:
    """Limits the total rate, in bytes per second, at which the files that use the same Pace are copied."""

    def __init__(self, bytes_per_second: float | None):
        self._rate = bytes_per_second
        self._began, self._spent = time.monotonic(), 0

    def spend(self, count: int) -> None:
        """Add `count` copied bytes to the total, and sleep if the copying is ahead of the rate."""
        if self._rate is None:
            return
        self._spent += count
        early = self._spent / self._rate - (time.monotonic() - self._began)
        if early > 0:
            time.sleep(early)


def copy_file(source: Path, target: Path, expected: dict[str, Any], pace: Pace) -> None:
    """Copy one file. It gets its final name by a rename, once its content is on the disk.

    Raises CheckpointError if the source differs from its record ({bytes, sha256}), or on a disk error.
    """
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(expected["bytes"], 1))))
    try:
        with source.open("rb", buffering=0) as read, files.atomic_writer(target) as written:
            while count := read.readinto(buffer):
                digest.update(buffer[:count])
                written.write(buffer[:count])
                size += count
                count_written(count)
                pace.spend(count)
            if digest.hexdigest() != expected["sha256"]:
                raise CheckpointError(f"{source}: does not have the SHA-256 in its record")
    except OSError as error:
        raise CheckpointError(
            f"{source} could not be copied to {target}: {error.strerror or error}"
        ) from error


def lower_priority() -> None:
    """Lower the priority of the calling thread only; on Linux, niceness belongs to a thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
