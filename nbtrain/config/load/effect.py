"""The settings of a run that may affect the numbers of its training, for the run's certificate.json."""

from typing import Any

from nbtrain.base.text.addresses import without_secrets
from nbtrain.config.load import flatten
from nbtrain.config.rules.resume import WITHOUT_EFFECT, within
from nbtrain.config.schema import RunConfig

# Data with another name has the same effect. The certificate has hashes of the data's contents instead.
NAMES = ("data.name", "tokenizer.name")


def shown_settings(config: RunConfig) -> dict[str, Any]:
    """Return {dotted key: JSON value} for all settings, without passwords in addresses."""
    return without_secrets(dict(flatten(config.model_dump(mode="json"))))


def settings_with_effect(config: RunConfig) -> dict[str, Any]:
    """Return {dotted key: JSON value} for the settings that may affect the numbers of the training."""
    settings = shown_settings(config).items()
    return {key: value for key, value in settings if not within(key, (*WITHOUT_EFFECT, *NAMES))}
