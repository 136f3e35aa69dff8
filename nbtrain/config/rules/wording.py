"""The parts of a rule's message: place, key and value of what was found, and the nearest legal values."""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from nbtrain.config.fields import ConfigModel
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show

Problems = Iterator[str]


def value_of(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def found(config: RunConfig, key: str) -> str:
    """Return e.g. "gpt.yaml:22: batch.global_batch_size = 250"."""
    value = value_of(config, key)
    # A section is shown by what is set in it, as a YAML has it.
    shown = value.model_dump(exclude_defaults=True) if isinstance(value, ConfigModel) else value
    return f"{config.where(key)}: {key} = {show(shown)}"


def no_multiple(config: RunConfig, key: str, unit: int, words: str) -> Problems:
    """Yield the message about a value that is not a multiple of `unit`, which `words` describe."""
    if (value := value_of(config, key)) % unit:
        nearest = join(nearest_multiples(value, unit))
        yield f"{found(config, key)}\n  must be a multiple of {words}; nearest: {nearest}."


def no_divisor(config: RunConfig, key: str, whole: int, words: str) -> Problems:
    """Describe a value that does not divide `whole`, which `words` describe."""
    if whole % (value := value_of(config, key)):
        nearest = join(nearest_divisors(value, whole))
        yield f"{found(config, key)}\n  must divide {words}; nearest: {nearest}."


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` around `value`, without 0."""
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple]


def nearest_divisors(value: int, whole: int) -> list[int]:
    """Return the divisors of `whole` around `value`."""
    small = [divisor for divisor in range(1, math.isqrt(whole) + 1) if whole % divisor == 0]
    divisors = sorted({*small, *(whole // divisor for divisor in small)})
    below = [divisor for divisor in divisors if divisor < value]
    above = [divisor for divisor in divisors if divisor > value]
    return [*below[-1:], *above[:1]]


def join(values: Iterable[int]) -> str:
    """Return e.g. "224, 256"."""
    return ", ".join(str(value) for value in values)
