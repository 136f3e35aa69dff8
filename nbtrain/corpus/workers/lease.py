"""A file that tells workers on other machines that their work is still wanted.

    prepare -> writes <folder>/.lease-<random>.tmp before the work, and removes it afterwards
    worker  -> must see it before its first part, which proves the folder is shared; stops when it is gone

A running part of a Dask cluster cannot be stopped from outside, and a worker that lost its scheduler
continues. Without the file, it would write into the work folder of a later `prepare`.
"""

import contextlib
import os
import time
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.files import write_text
from nbtrain.base.workspace import display

POLL_SECONDS = 1.0
# Seconds for which NFS caches the names in a folder.
SEEN_AFTER_SECONDS = 60.0


class Ended(Exception):
    """Raised in a worker when no process waits for its work any more."""


class Lease:
    """The lease file, held by the process that wants the work."""

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


_WORDS = "{}: no process waits for this work any more"
_held: Path | None = None
_looked = 0.0


def hold(path: Path, token: str, worker: str, wait_seconds: float = SEEN_AFTER_SECONDS) -> None:
    """Put this worker under a lease. Raises DataError if the lease file is not visible on this machine."""
    global _held, _looked
    until = time.monotonic() + wait_seconds
    while not path.is_file() or path.read_text() != token:
        if _mark_of_end(path).exists():
            raise Ended(_WORDS.format(path))
        if time.monotonic() >= until:
            raise DataError(
                f"{worker}: cannot see {display(path.parent)}. All workers need the data directory and the "
                f"sources under the same paths on a shared file system: set NBTRAIN_DATA to a folder on it."
            )
        time.sleep(POLL_SECONDS / 5)
    _held, _looked = path, time.monotonic()


def stop_if_ended() -> None:
    """Raise Ended if this process works under a lease that is gone. The file is checked once a second."""
    global _looked
    if _held is None or time.monotonic() - _looked < POLL_SECONDS:
        return
    _looked = time.monotonic()
    if not _held.is_file():
        raise Ended(_WORDS.format(_held))
