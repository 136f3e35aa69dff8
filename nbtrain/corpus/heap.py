"""Returns memory that this process has freed from its C library to the system."""

import contextlib
import ctypes


def give_back() -> None:
    """Have the C library return freed memory to the system; otherwise it stays with the process, unused."""
    # musl has no such call, and does not need it.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
