"""Python's search for unused objects (the garbage collector), kept away from objects that live until the end.

torch, DeepSpeed and nbtrain are two hundred thousand objects. While they are imported, Python looks through
all of them several times, which takes 0.3 s.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def kept_from_the_collector() -> Iterator[None]:
    """Exclude the objects that are created inside the block from garbage collection, because they live as
    long as the process.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
