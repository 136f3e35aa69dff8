"""Manages the lease: a file that shows workers on other machines that their work is still needed.

    prepare -> writes <folder>/.lease-<random>.tmp before the work, and removes it afterwards
    worker  -> must see the file before its first part, which proves that the folder is shared; stops when the
               file is gone

A running part of a Dask cluster cannot be stopped from outside, and a worker that lost its scheduler
continues. Without the lease, such a worker would write into the work folder of a later `prepare`.
"""

import contextlib
import os
import time
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.files import write_text
from nbtrain.base.workspace import display

POLL_SECONDS = 1.0
# Seconds for which NFS may cache the names in a folder.
SEEN_AFTER_SECONDS = 60.0


class Ended(Exception):
    """Raised in a worker when its work is no longer needed."""


class Lease:
    """The lease file, owned by the process that needs the work."""

    def __init__(self, folder: Path):
        self.token = os.urandom(8).hex()
        self.path = folder / f".lease-{self.token}.tmp"
        write_text(self.path, self.token)

    def end(self, is_abandoned: bool) -> None:
        """Make workers stop at their next check.

        If `is_abandoned`, a second file stops workers that have not started yet.
        """
        if is_abandoned:
            with contextlib.suppress(OSError):
                self.path.replace(_mark_of_end(self.path))
        self.path.unlink(missing_ok=True)


def _mark_of_end(lease: Path) -> Path:
    return lease.with_suffix(".ended.tmp")


_WORDS = "{}: this work is no longer needed"
_held: Path | None = None
_looked = 0.0


def hold(path: Path, token: str, worker: str, wait_seconds: float = SEEN_AFTER_SECONDS) -> None:
    """Wait until this worker sees its lease file, which stop_if_ended() then checks.

    Raises DataError if this machine cannot see the file after `wait_seconds`, and Ended if the lease has
    already ended.
    """
    global _held, _looked
    until = time.monotonic() + wait_seconds
    while not path.is_file() or path.read_text() != token:
        if _mark_of_end(path).exists():
            raise Ended(_WORDS.format(path))
        if time.monotonic() >= until:
            raise DataError(
                f"{worker}: cannot see the files in {display(path.parent)}. All workers need the data "
                "directory and the sources under the same paths on a shared file system. Set NBTRAIN_DATA "
                f"to a folder on such a file system."
            )
        time.sleep(POLL_SECONDS / 5)
    _held, _looked = path, time.monotonic()


def stop_if_ended() -> None:
    """Raise Ended if this process works under a lease that is gone; check the file once per second."""
    global _looked
    if _held is None or time.monotonic() - _looked < POLL_SECONDS:
        return
    _looked = time.monotonic()
    if not _held.is_file():
        raise Ended(_WORDS.format(_held))
