"""A signal from the kernel that ends a process when its parent ends, by the Linux system call prctl.

PR_SET_PDEATHSIG has its value from linux/prctl.h.
"""

import ctypes
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1

# Loaded before any fork: a child between fork and exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: Any) -> None:
    """Call the prctl system call. Raises OSError."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process the signal `number` when the thread that started the process ends."""
    prctl(PR_SET_PDEATHSIG, int(number))
