"""The settings of a dataset or tokenizer that a YAML requests, as its manifest records them."""

import contextlib
import platform
from importlib import metadata
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from nbtrain.base.version import __version__
from nbtrain.config.data_section import DataConfig
from nbtrain.config.own_names import MAKES_DATASET
from nbtrain.config.schema import RunConfig
from nbtrain.config.sources import Source, text_settings

FORCE = "make it again with `nbtrain prepare RUN.yaml --force`"


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that decide a dataset's content, besides the tokenizer (compared by hash)."""
    data = config.data
    made = {key: getattr(data, key) for key in MAKES_DATASET if key != "blend"}
    sources = [text_settings(source) for source in data.sources]
    return {**made, "sources": sources, "cleaning": data.cleaning.model_dump()}


def with_defaults(there: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's settings, with defaults for keys that did not exist when it was written."""
    data = DataConfig(name="x")
    added = {key: getattr(data, key) for key in ("extra_json_keys", "split_sentences")}
    cleaning = {**data.cleaning.model_dump(), **there.get("cleaning", {})}
    filled = {**added, **there, "cleaning": cleaning}
    # Sources written by a version with other kinds stay unchanged: the comparison names them.
    with contextlib.suppress(KeyError, ValidationError):
        sources: TypeAdapter[list[Any]] = TypeAdapter(list[Source])
        filled["sources"] = [text_settings(source) for source in sources.validate_python(there["sources"])]
    return filled


def same_text(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether the `sources` and `cleaning` of two manifests' records produce the same text.

    `there` may be older than a setting; `wanted` has the form of `settings`.
    """
    before = with_defaults({key: there[key] for key in ("sources", "cleaning") if key in there})
    return all(before.get(key) == wanted[key] for key in ("sources", "cleaning"))


def software(*distributions: str) -> dict[str, str]:
    """Return versions of the software that prepares data."""
    versions = {"nbtrain": __version__, "python": platform.python_version(), "numpy": np.__version__}
    return {**versions, **{name: metadata.version(name) for name in distributions}}


def origin(config: RunConfig, key: str) -> str:
    """Return where a key was set: 'gpt.yaml:12', or 'this run' if no file set it."""
    where = config.where(key)
    return "this run" if where == "default" else where


def place(config: RunConfig, key: str) -> str:
    """Return 'gpt.yaml:12: data.sources', or the key alone if no file set it."""
    where = config.where(key)
    return key if where == "default" else f"{where}: {key}"


def differences(there: Any, here: Any, key: str = "") -> list[tuple[str, str, str]]:
    """Return (dotted key, value there, value here) of each setting that differs."""
    if there == here:
        return []
    # Only the list of sources is compared entry by entry; an inner list ([bytes, time] of a file) is one
    # value.
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
    """Return a list, or only its length if its entries are objects, as sources are."""
    if not any(isinstance(value, dict) for value in values):
        return repr(values)
    return "1 entry" if len(values) == 1 else f"{len(values)} entries"
