"""Returns freed memory, which the C library keeps for this process, to the system."""

import contextlib
import ctypes


def give_back() -> None:
    """Make the C library return freed memory to the system, which it otherwise keeps for this process."""
    # musl does not have this call and does not need it.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
