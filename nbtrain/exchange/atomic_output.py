"""Create a model's folder or file atomically: write it under another name, and rename it when complete."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.arithmetic.checkpoint_bytes import SPARE_BYTES


@contextlib.contextmanager
def new_place(
    to: Path, needed_bytes: int, file: str | None = None, other: str = "Choose another path."
) -> Iterator[Path]:
    """Yield a temporary folder next to `to`. At the end, the folder, or only its `file`, is renamed to `to`.

    The temporary folder is removed if an error occurs. Raises CheckpointError if `to` exists (`other` is the
    advice at the end of that message), or if the disk has less than `needed_bytes` and a reserve free.
    """
    try:
        _must_be_free(to, other)
        to.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(to.parent).free
        if free < needed_bytes + SPARE_BYTES:
            raise CheckpointError(
                f"{display(to)}: needs {amounts.size(needed_bytes + SPARE_BYTES)}, but only "
                f"{amounts.size(free)} is free. Free up space, or choose a path on another disk."
            )
        _remove_leftovers(to)
        made = to.with_name(f".{to.name}.{os.urandom(4).hex()}.tmp")
        made.mkdir()
    except OSError as error:
        raise CheckpointError(
            f"{display(to)}: cannot be written: {error.strerror}. Choose another path."
        ) from None
    held = flock_folder(made, blocking=False)
    try:
        yield made
        # Another export to this path may have finished in the meantime, and renaming would silently replace
        # its file.
        _must_be_free(to, other)
        (made if file is None else made / file).rename(to)
        files.fsync_directory(to.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if held is not None:
            os.close(held)


def _must_be_free(to: Path, other: str) -> None:
    """Raise CheckpointError, whose message ends with the advice `other`, if the path exists."""
    # If a name is too long, lexists returns False.
    if os.path.lexists(to):
        raise CheckpointError(f"{display(to)} already exists, and it is not overwritten. {other}")


def _remove_leftovers(to: Path) -> None:
    """Remove temporary folders of killed exports to this path.

    An export that is still writing holds a lock on its folder, which is therefore kept.
    """
    for leftover in to.parent.glob(f".{glob.escape(to.name)}.*.tmp"):
        if leftover.is_dir() and (held := flock_folder(leftover, blocking=False)) is not None:
            shutil.rmtree(leftover, ignore_errors=True)
            os.close(held)
