"""Helpers that write the findings of rules: the setting that breaks a rule, and the rule with its numbers."""

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
    """Return the value of a key such as "batch.global_batch_size" in a run."""
    return functools.reduce(getattr, key.split("."), config)


def setting_text(config: RunConfig, key: str) -> str:
    """Return a setting as text, e.g. "batch.global_batch_size = 250"."""
    value = value_of(config, key)
    # Of a section, show only the settings that differ from their defaults, as a YAML would list them.
    shown = value.model_dump(exclude_defaults=True) if isinstance(value, ConfigModel) else value
    return f"{key} = {show(shown)}"


def broken(config: RunConfig, key: str, rule: str, fix: str = "") -> Finding:
    """Return the error about a key that breaks a rule: the key and its value, then the rule on the next line.

    `rule` is a predicate whose subject is the key, e.g. "must be at least 2.". `fix` is the sentence after
    the rule; it is "" if the rule already states the allowed values.
    """
    return mistake(config, key, f"{setting_text(config, key)}\n  {rule}", fix)


def hidden(config: RunConfig, key: str, message: str, fix: str = "") -> Finding:
    """Return an error about a key whose value may be a secret.

    If an override set the key, the place in the error is "override KEY", without the value.
    """
    return replace(mistake(config, key, message, fix), place=config.where(key).partition("=")[0])


def join(values: Iterable[int]) -> str:
    """Return the numbers separated by commas, e.g. "224, 256"."""
    return ", ".join(str(value) for value in values)
