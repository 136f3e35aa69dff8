"""Change single fields of a configuration that is already loaded.

    with_values(config, {"parallel.zero_stage": 2})       checks types, not rules
    with_overrides(config, {"parallel.zero_stage": 2})    checks types and rules

In later messages, a value that with_values() has changed keeps its old place, such as "gpt.yaml:12". A value
that with_overrides() has changed has an override as its place.

Unlike load(), both take values instead of text and leave default names as they are. Changes of the recipe,
the architecture, the run's name or the settings that a dataset or tokenizer is made from therefore need
load().
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.config.load.schema_errors import schema_finding
from nbtrain.config.rules.check import check_config
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.fields import ConfigModel
from nbtrain.config.yaml_source import Located, OverridePlace


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a run with other values, given by dotted key. The type of each value is checked.

    Rules between fields are not checked, and the places of the values stay as they are. Checking a value
    takes about 20 us. Raises ConfigError with every value that its field does not accept.
    """
    problems = []
    for key, value in values.items():
        try:
            config = _with_value(config, key.split("."), value)
        except ValidationError as error:
            located, section = Located(origins=_places({key: value})), key.split(".")[:-1]
            for entry in error.errors(include_url=False):
                problems.append(schema_finding({**entry, "loc": (*section, *entry["loc"])}, located, key))
    refuse(problems, ConfigError)
    return config


def _with_value(section: Any, keys: list[str], value: Any) -> Any:
    first, *rest = keys
    inner = _with_value(getattr(section, first), rest, value) if rest else _checked(section, first, value)
    return section.model_copy(update={first: inner})


def _checked(section: ConfigModel, name: str, value: Any) -> Any:
    """Return the value of a field as the section's schema stores it. Raises ValidationError."""
    known = type(section).model_fields
    values = {field: getattr(section, field) for field in known}
    return getattr(section.model_validate({**values, name: value}), name)


def with_overrides(config: RunConfig, values: Mapping[str, Any], check: bool = True) -> RunConfig:
    """Return a run with other values, given by dotted key, whose places are overrides.

    Raises ConfigError with every broken rule. With `check` False, only types are checked.
    """
    changed = with_values(config, values)
    kept = {
        known: place
        for known, place in config._origins.items()
        if not any(f"{known}.".startswith(f"{key}.") for key in values)
    }
    changed._origins = kept | _places(values)
    if check:
        check_config(changed)
    return changed


def _places(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: OverridePlace.of(key, value) for key, value in values.items()}
