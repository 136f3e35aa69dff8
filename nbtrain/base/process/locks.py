"""A lock on a directory, held by one process at a time."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display

# Errors of network file systems that cannot lock a folder. NFS requires a writable descriptor.
NO_FOLDER_LOCK = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
LOCK_FILE = ".lock"


def flock_folder(folder: Path, blocking: bool) -> int | None:
    """Lock a folder and return the descriptor; None if another process holds the lock.

    The lock is held until the descriptor is closed. The lock is an flock on the folder itself, so that no
    lock file is left, or on the file .lock in the folder if the file system cannot lock folders. The kernel
    releases the lock when its holder dies.
    """
    how = fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, how)
        except OSError as error:
            if error.errno not in NO_FOLDER_LOCK:
                raise
            lock_file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.close(descriptor)
            descriptor = lock_file
            fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold the lock of a folder while the block runs.

    Logs a line if another process holds the lock, and then waits for it.
    """
    descriptor = _lock(directory)
    # The last holder may have removed the folder. This lock is then on a folder that no longer exists.
    while not _is_at(descriptor, directory):
        os.close(descriptor)
        descriptor = _lock(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (descriptor := flock_folder(directory, blocking=False)) is not None:
            return descriptor
        # Imported here: every command loads this file, and few of them wait.
        import logging

        logging.getLogger(__name__).warning(
            "%s: another process is preparing this folder; waiting for it to finish.", display(directory)
        )
        waited = flock_folder(directory, blocking=True)
    except OSError as error:
        raise DataError(
            f"{display(directory)}: cannot be created or opened: {error.strerror}. Set NBTRAIN_DATA to a "
            "folder that you can write to."
        ) from error
    assert waited is not None, "a blocking lock is always acquired"
    return waited


def _is_at(descriptor: int, directory: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        held = os.fstat(descriptor)
        return os.path.samestat(held, directory.stat()) or os.path.samestat(
            held, (directory / LOCK_FILE).stat()
        )
    return False
