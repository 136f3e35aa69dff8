"""Findings of rules: the key that breaks a rule, its value, and the rule with its numbers."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nbtrain.base.findings import Finding
from nbtrain.config.findings import mistake
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.fields import ConfigModel
from nbtrain.config.yaml_source import show

Problems = Iterator[Finding]


def value_of(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    return functools.reduce(getattr, key.split("."), config)


def setting_text(config: RunConfig, key: str) -> str:
    """Return e.g. "batch.global_batch_size = 250"."""
    value = value_of(config, key)
    # A section is shown by what is set in it, as a YAML has it.
    shown = value.model_dump(exclude_defaults=True) if isinstance(value, ConfigModel) else value
    return f"{key} = {show(shown)}"


def broken(config: RunConfig, key: str, rule: str, fix: str = "") -> Finding:
    """Return the error for a key that breaks a rule: the key with its value, and the rule on the next
    line. `fix` is the sentence that follows it, "" if the rule itself names the values that it allows.
    """
    return mistake(config, key, f"{setting_text(config, key)}\n  {rule}", fix)


def hidden(config: RunConfig, key: str, message: str, fix: str = "") -> Finding:
    """Return an error about a key whose value may be a secret: its place does not repeat an override."""
    return replace(mistake(config, key, message, fix), place=config.where(key).partition("=")[0])


def join(values: Iterable[int]) -> str:
    """Return the numbers separated by commas, e.g. "224, 256"."""
    return ", ".join(str(value) for value in values)
