"""Dataset and tokenizer settings that a run YAML requests, in the form in which manifests record them."""

import platform
from importlib import metadata
from typing import Any

from nbtrain.base.version import __version__
from nbtrain.config.names.own_names import MAKES_DATASET
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.sources import text_settings

FORCE = "make it again with `nbtrain prepare RUN.yaml --force`"


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine a dataset's content; the tokenizer is compared by hash instead."""
    data = config.data
    made = {key: getattr(data, key) for key in MAKES_DATASET if key != "blend"}
    sources = [text_settings(source) for source in data.sources]
    return {**made, "sources": sources, "cleaning": data.cleaning.model_dump()}


def text_of_settings(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded settings that determine the text before encoding: sources and cleaning."""
    return {key: recorded[key] for key in ("sources", "cleaning")}


def same_text(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether two recorded settings produce the same text: equal `sources` and `cleaning`."""
    return text_of_settings(there) == text_of_settings(wanted)


def software(*distributions: str) -> dict[str, str]:
    """Return the versions of the software that prepares data."""
    versions = {"nbtrain": __version__, "python": platform.python_version()}
    return {**versions, **{name: metadata.version(name) for name in ("numpy", *distributions)}}


def origin(config: RunConfig, key: str) -> str:
    """Return where a key was set: 'gpt.yaml:12', or 'this run' if no file set it."""
    where = config.where(key)
    return "this run" if where == "default" else where


def place_of_setting(config: RunConfig, key: str) -> str:
    """Return where a key was set, and the key: 'gpt.yaml:12: data.sources'.

    If no file set the key, return only the key.
    """
    where = config.where(key)
    return key if where == "default" else f"{where}: {key}"


def differences(there: Any, here: Any, key: str = "") -> list[tuple[str, str, str]]:
    """Return (dotted key, value in `there`, value in `here`) for each setting that differs."""
    if there == here:
        return []
    # Only the outer list, the list of sources, is compared entry by entry. An inner list, such as a file's
    # [bytes, time], counts as one value.
    if isinstance(there, list) and isinstance(here, list) and "[" not in key:
        if len(there) != len(here):
            return [(key, _entries(there), _entries(here))]
        pairs = [(f"{key}[{index}]", a, b) for index, (a, b) in enumerate(zip(there, here))]
    elif isinstance(there, dict) and isinstance(here, dict):
        names = sorted(there.keys() | here.keys())
        pairs = [(f"{key}.{name}" if key else name, there.get(name), here.get(name)) for name in names]
    else:
        return [(key, repr(there), repr(here))]
    return [found for name, a, b in pairs for found in differences(a, b, name)]


def _entries(values: list[Any]) -> str:
    """Return a list as text; for a list of objects, such as sources, return only the number of objects."""
    if not any(isinstance(value, dict) for value in values):
        return repr(values)
    return "1 entry" if len(values) == 1 else f"{len(values)} entries"
