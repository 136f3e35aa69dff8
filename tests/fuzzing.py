"""The number of cases in tests of arbitrary input: few in `make test`, many times as many in `make soak`."""

import os

FACTOR_VARIABLE = "NBTRAIN_FUZZ_FACTOR"


def num_cases(number: int) -> int:
    """Return `number`, times NBTRAIN_FUZZ_FACTOR if that is set."""
    return number * int(os.environ.get(FACTOR_VARIABLE, "1"))
