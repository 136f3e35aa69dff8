"""The parts of a rule's message: place, key and value of what was found, and the nearest legal values."""

import math
from collections.abc import Iterable, Iterator

from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show

Problems = Iterator[str]


def value_of(config: RunConfig, key: str) -> object:
    """The value of a dotted key."""
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def found(config: RunConfig, key: str) -> str:
    """ "gpt.yaml:22: batch.global_batch_size = 250"."""
    return f"{config.where(key)}: {key} = {show(value_of(config, key))}"


def nearest_multiples(value: int, unit: int) -> list[int]:
    """The multiples of `unit` around `value`, 0 left out."""
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple]


def nearest_divisors(value: int, whole: int) -> list[int]:
    """The divisors of `whole` around `value`."""
    small = [divisor for divisor in range(1, math.isqrt(whole) + 1) if whole % divisor == 0]
    divisors = sorted({*small, *(whole // divisor for divisor in small)})
    below = [divisor for divisor in divisors if divisor < value]
    above = [divisor for divisor in divisors if divisor > value]
    return [*below[-1:], *above[:1]]


def join(values: Iterable[int]) -> str:
    """ "224, 256"."""
    return ", ".join(str(value) for value in values)
