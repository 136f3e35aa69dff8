"""Names of datasets and tokenizers: a run inherits a name only together with the settings that it stands for.

A run that extends gpt-tiny and has other text must not encode that text with gpt-tiny's tokenizer. Nor must
it store a tokenizer that is trained on that text under gpt-tiny's name. A layer (a file over what it extends,
or overrides over a file) that changes what a dataset or a tokenizer is made from, and does not name it,
therefore gets a separate name:

    data.name         the run's name if the layer sets it, otherwise the run's name and a hash of the settings
    tokenizer.name    data.name

A run with init_from has the tokenizer of the run that it starts from, because its weights know only the ids
of that tokenizer. If that run does not exist here, the new run keeps the inherited name. A run whose sources
are all token ids keeps the inherited name too: no tokenizer can be trained on them.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import resolve, suffixed_name, valid_name
from nbtrain.config.sections.data_section import DataConfig, TokenizerConfig
from nbtrain.config.sections.sources import text_settings
from nbtrain.config.yaml_source import Located, NotWritten, read_yaml

# Settings that decide the content of a dataset, in addition to its tokenizer.
MAKES_DATASET = ("sources", "blend", "cleaning", "json_key", "extra_json_keys", "split_sentences")
# Settings that decide a trained tokenizer, in addition to the text that it is trained on.
MAKES_TRAINED = ("vocab_size", "train_bytes", "trainer", "train_seed", "eod_token")
# Settings that decide an imported tokenizer.
MAKES_BROUGHT = ("path", "added_tokens", "eod_token")

OWN_NAMES = DATA_NAME, TOKENIZER_NAME = "data.name", "tokenizer.name"
LEADING = {"name", "init_from", "data", "tokenizer"}
_HASH_DIGITS = 8


def leads_names(key: str) -> bool:
    """Return whether changing this dotted key may give a run its own dataset or tokenizer name."""
    made = [f"data.{name}" for name in MAKES_DATASET]
    made += [f"tokenizer.{name}" for name in (*MAKES_TRAINED, *MAKES_BROUGHT)]
    return any(f"{key}.".startswith(f"{other}.") for other in (*made, *OWN_NAMES, "name", "init_from"))


def with_own_names(merged: Located, layer: Located, base: Located) -> Located:
    """Replace the dataset and tokenizer names in `merged` that the layer does not inherit, and return it.

    `merged` is the layer merged over `base`, and is changed. Values that the schema will refuse are compared
    as they are written.
    """
    sections = [merged.value.get(section, {}) for section in ("data", "tokenizer")]
    if not layer.value.keys() & LEADING or not all(isinstance(section, dict) for section in sections):
        return merged
    own_tokenizer = not _names(layer, TOKENIZER_NAME) and _has_other_tokenizer(merged, base)
    other_tokenizer = own_tokenizer or _at(merged, TOKENIZER_NAME) != _at(base, TOKENIZER_NAME)
    if own_tokenizer:
        _remove(merged, TOKENIZER_NAME)
    if not _names(layer, TOKENIZER_NAME) and (theirs := _tokenizer_of_start(layer)) is not None:
        other_tokenizer = theirs != _at(base, TOKENIZER_NAME)
        _remove(merged, TOKENIZER_NAME)
        _fill(merged, TOKENIZER_NAME, theirs)
    own_dataset = not _names(layer, DATA_NAME) and _has_other_dataset(merged, base, other_tokenizer)
    if own_dataset:
        _remove(merged, DATA_NAME)
    if own_dataset and "name" not in layer.value and isinstance(run := merged.value.get("name"), str):
        _fill(merged, DATA_NAME, _hashed(run, merged))
    return with_default_names(merged)


def with_default_names(located: Located) -> Located:
    """Give a dataset without a name the run's name, and a tokenizer without a name the dataset's name.

    Changes `located` in place. A file without a run name is a shared part of runs: the first run that extends
    it provides the names.
    """
    if isinstance(run := located.value.get("name"), str):
        _fill(located, DATA_NAME, run)
        _fill(located, TOKENIZER_NAME, _at(located, DATA_NAME))
    return located


def _has_other_tokenizer(merged: Located, base: Located) -> bool:
    """Return whether the merged settings produce a different tokenizer from the one that `base` names."""
    if not _at(base, TOKENIZER_NAME) or merged.value.get("init_from") is not None:
        return False
    then, now = _tokenizer_of(base), _tokenizer_of(merged)
    if any(then[key] != now.get(key) for key in then if then[key] is not None) or then.keys() != now.keys():
        return True
    if _at(merged, "tokenizer.path") is not None or _at(merged, "data.blend"):
        return False
    if not _at(merged, "data.sources"):
        return _at(merged, DATA_NAME) != _at(base, DATA_NAME)
    if all(isinstance(source, dict) and source.get("kind") == "tokens" for source in _sources(merged)):
        return False
    return not _is_shared_part(base) and _text_of(merged) != _text_of(base)


def _sources(located: Located) -> list[Any]:
    sources = _at(located, "data.sources")
    return sources if isinstance(sources, list) else [None]


def _has_other_dataset(merged: Located, base: Located, other_tokenizer: bool) -> bool:
    """Return whether the merged settings produce a different dataset from the one that `base` names."""
    if not _at(base, DATA_NAME):
        return False
    if _at(merged, "data.blend"):
        return _dataset_of(merged)["blend"] != _dataset_of(base)["blend"]
    if not _at(merged, "data.sources"):
        return False
    # Another tokenizer gives other token ids. If `base` names no tokenizer, its dataset name is meant for
    # whichever tokenizer the extending file names.
    if other_tokenizer and _at(base, TOKENIZER_NAME):
        return True
    return not _is_shared_part(base) and _dataset_of(merged) != _dataset_of(base)


def makes_same_dataset(one: Any, other: Any) -> bool:
    """Return whether two RunConfigs produce the same dataset, provided they have the same tokenizer."""
    return _dataset_of(Located(one.model_dump())) == _dataset_of(Located(other.model_dump()))


def makes_same_tokenizer(one: Any, other: Any) -> bool:
    """Return whether two RunConfigs train or import the same tokenizer."""
    first, second = Located(one.model_dump()), Located(other.model_dump())
    return _tokenizer_of(first) == _tokenizer_of(second) and _text_of(first) == _text_of(second)


def _tokenizer_of_start(layer: Located) -> str | None:
    """Return the tokenizer name of the run that a layer's init_from names. None if it names no run."""
    start = layer.value.get("init_from")
    if not isinstance(start, str) or "://" in start:
        return None
    for run in (RunDir(resolve(start)), *([RunDir.named(start)] if valid_name(start) else [])):
        with contextlib.suppress(ConfigError, OSError):
            if run.config_yaml.is_file():
                return _at(read_yaml(run.config_yaml), TOKENIZER_NAME)
    return None


def _is_shared_part(base: Located) -> bool:
    """Return whether a file is only a base for runs.

    Such a file is not a run and has no text, so its names are meant for the runs that extend it.
    """
    return "name" not in base.value and not _at(base, "data.sources")


def _tokenizer_of(located: Located) -> dict[str, Any]:
    keys = MAKES_TRAINED if _at(located, "tokenizer.path") is None else MAKES_BROUGHT
    fields, section = TokenizerConfig.model_fields, _section(located, "tokenizer")
    return {key: section.get(key, None if fields[key].is_required() else fields[key].default) for key in keys}


def _text_of(located: Located) -> dict[str, Any]:
    """Return the settings that decide which text a tokenizer is trained on."""
    return {key: value for key, value in _dataset_of(located).items() if key in ("sources", "cleaning")}


def _dataset_of(located: Located) -> dict[str, Any]:
    """Return the settings that decide a dataset's content, with defaults if they are valid."""
    fields, section = DataConfig.model_fields, _section(located, "data")
    values: dict[str, Any] = {}
    for key in MAKES_DATASET:
        value = section.get(key, fields[key].default)
        with contextlib.suppress(ValidationError):
            value = _adapter(key).validate_python(value)
        if isinstance(value, list):
            value = [text_settings(entry) if isinstance(entry, BaseModel) else entry for entry in value]
        values[key] = value.model_dump() if isinstance(value, BaseModel) else value
    return values


@functools.cache
def _adapter(key: str) -> TypeAdapter[Any]:
    annotation: Any = DataConfig.model_fields[key].annotation
    return TypeAdapter(annotation)


def _hashed(run: str, located: Located) -> str:
    """Return a name made of the run's name and a hash of the settings."""
    made = {**_dataset_of(located), **_tokenizer_of(located), TOKENIZER_NAME: _at(located, TOKENIZER_NAME)}
    text = json.dumps(made, sort_keys=True, default=str)
    digits = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return suffixed_name(run, digits)


def _names(layer: Located, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in _section(layer, section)


def _at(located: Located, key: str) -> Any:
    section, _, name = key.partition(".")
    return _section(located, section).get(name)


def _section(located: Located, name: str) -> Mapping[str, Any]:
    section = located.value.get(name)
    return section if isinstance(section, Mapping) else {}


def _fill(located: Located, key: str, value: Any) -> None:
    """Set a name that is missing, and record that no file sets it."""
    section, _, name = key.partition(".")
    if isinstance(values := located.value.get(section), dict) and name not in values:
        located.value[section] = {**values, name: value}
        located.origins[key] = NotWritten()


def _remove(located: Located, key: str) -> None:
    section, _, name = key.partition(".")
    if section in located.value:
        located.value[section] = {
            other: value for other, value in located.value[section].items() if other != name
        }
        located.origins.pop(key, None)
