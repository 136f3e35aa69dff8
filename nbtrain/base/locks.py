"""A lock on a directory, held by one process at a time."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold a folder: flock on the folder itself, so that no lock file is left. Logs if it has to wait."""
    descriptor = _lock(directory)
    # The last holder may have removed the folder: then this lock is on a folder that is gone.
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
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise DataError(
            f"{display(directory)}: cannot be made or opened: {error.strerror}. Set NBTRAIN_DATA to a folder "
            "that can be written."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("%s: another process is preparing it; waiting until it ends.", display(directory))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_at(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False
