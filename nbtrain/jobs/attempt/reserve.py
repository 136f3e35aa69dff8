"""Disk space reserved for the final records of a job, which must be written even if the disk is full."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

RESERVED_BYTES = 64 << 10
RESERVE_SUFFIX = ".reserve.tmp"
FULL = (errno.ENOSPC, errno.EDQUOT)
# The disk failed or was remounted, or the permission to write was withdrawn.
READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Reserve:
    """A hidden file of zeros. It is removed by release(), or when a write finds the disk full."""

    def __init__(self, folder: Path, owner: str):
        self.path = folder / f".{owner}{RESERVE_SUFFIX}"
        # Without free space even now, no reserve is kept; a later write may still find space.
        with contextlib.suppress(OSError), self.path.open("wb") as stream:
            stream.write(bytes(RESERVED_BYTES))
            stream.flush()
            os.fsync(stream.fileno())

    def write(self, write: Callable[[], object]) -> None:
        """Call `write`; if the disk is full, remove the reserve and call it again. Raises OSError."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.release()
            write()

    def release(self) -> None:
        """Remove the file, if the disk allows it."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
