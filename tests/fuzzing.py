"""Number of cases in fuzz tests: few in `make test`, many more in `make soak`."""

import os

FACTOR_VARIABLE = "NBTRAIN_FUZZ_FACTOR"


def num_cases(number: int) -> int:
    """Return `number`, multiplied by NBTRAIN_FUZZ_FACTOR if that variable is set."""
    return number * int(os.environ.get(FACTOR_VARIABLE, "1"))
