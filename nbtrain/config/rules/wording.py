"""The parts of a rule's message: place, key and value of what was found, and the nearest legal values."""

import functools
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


def join(values: Iterable[int]) -> str:
    """Return e.g. "224, 256"."""
    return ", ".join(str(value) for value in values)
