"""Exclusion of long-lived objects from Python's garbage collection.

Importing torch, DeepSpeed and nbtrain creates two hundred thousand objects. During the import, Python would
check all of them several times for objects that are no longer used, which takes 0.3 s.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def kept_from_the_collector() -> Iterator[None]:
    """Exclude the objects that are created inside the block from garbage collection.

    Use it for objects that live as long as the process.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
