"""How a broken rule begins: the place of the value, its key, and the value."""

from collections.abc import Iterator

from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show

Problems = Iterator[str]


def found(config: RunConfig, key: str) -> str:
    """ "gpt.yaml:22: batch.global_batch_size = 250"."""
    value = config
    for part in key.split("."):
        value = getattr(value, part)
    return f"{config.where(key)}: {key} = {show(value)}"
