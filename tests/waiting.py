"""Seconds that a test waits at most, and the wait until a condition holds.

NBTRAIN_PATIENCE_SECONDS=60          maximum seconds for each wait, useful while writing a test
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

# Long enough for a machine on which much else runs.
PATIENCE_SECONDS = float(os.environ.get("NBTRAIN_PATIENCE_SECONDS", "900"))

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value],
    what: str | Callable[[], str],
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = 0.05,
) -> Value:
    """Wait until `condition` returns a true value, and return that value.

    Raises an AssertionError that names `what` if it returns none within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(pause_seconds)
    return value
