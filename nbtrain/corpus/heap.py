"""Memory that this process has freed and its C library keeps."""

import contextlib
import ctypes


def give_back() -> None:
    """Have the C library return that memory to the system; otherwise it stays with the process, unused."""
    # musl has no such call, and no need of it.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
