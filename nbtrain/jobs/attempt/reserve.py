"""Disk space reserved for the final records of a job, which must be written even if the disk is full."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

RESERVED_BYTES = 64 << 10
RESERVE_SUFFIX = ".reserve.tmp"
FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of a disk that failed or was remounted read-only, or that may no longer be written to.
READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Reserve:
    """A hidden file of zeros that keeps disk space free for a job's final records.

    release() removes the file, and so does a write() that finds the disk full.
    """

    def __init__(self, folder: Path, owner: str):
        self.path = folder / f".{owner}{RESERVE_SUFFIX}"
        # If the disk is already full, there is no reserve; a later write may still find space.
        with contextlib.suppress(OSError), self.path.open("wb") as stream:
            stream.write(bytes(RESERVED_BYTES))
            stream.flush()
            os.fsync(stream.fileno())

    def write(self, write: Callable[[], object]) -> None:
        """Call `write`; if the disk is full, remove the reserve and call `write` again.

        Raises OSError if the second call fails too, or if the first one fails for another reason.
        """
        try:
            write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.release()
            write()

    def release(self) -> None:
        """Remove the reserve file; disk errors are ignored."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
