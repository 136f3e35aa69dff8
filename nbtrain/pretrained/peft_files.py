"""The two files of a folder of adapters, as `peft` writes them."""

from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."


def read_settings(folder: Path) -> dict[str, Any]:
    """adapter_config.json. Raises CheckpointError if one of both files is missing or damaged."""
    try:
        found = files.read_json(folder / SETTINGS)
    except ValueError as error:
        raise CheckpointError(f"{error}") from None
    if not isinstance(found, dict) or not (folder / WEIGHTS).is_file():
        missing = WEIGHTS if isinstance(found, dict) else SETTINGS
        raise CheckpointError(
            f"{display(folder)}: has no {missing}, so that it is no folder of adapters as peft writes it."
        )
    return found
