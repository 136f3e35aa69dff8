"""The dotted keys of the schema, and the message about an unknown key."""

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.terminal import shortened
from nbtrain.config.names.other_names import other_name
from nbtrain.config.schema import ConfigModel, RunConfig
from nbtrain.config.yaml_source import Located


@functools.cache
def field_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Mapping[str, type[BaseModel] | None]:
    """Return all dotted keys of the schema, read-only.

    The value for a section is the section's pydantic class; the value for any other field is None.
    """
    keys: dict[str, type[BaseModel] | None] = {}
    for name, info in model.model_fields.items():
        section = _section(info.annotation)
        keys[prefix + name] = section
        if section is not None:
            keys.update(field_keys(section, f"{prefix}{name}."))
    return keys


@functools.cache
def free_form() -> Mapping[str, Any]:
    """Return {key: type of its values} of every field that is a mapping with user-chosen names."""
    found = {}
    for prefix, model in {"": RunConfig, **field_keys()}.items():
        for name, info in model.model_fields.items() if model else ():
            if get_origin(info.annotation) is dict:
                # The origin of Annotated[str, ...] is str.
                values = get_args(info.annotation)[1]
                found[f"{prefix}.{name}".lstrip(".")] = getattr(values, "__origin__", values)
    return found


def parts_of(key: str) -> list[str]:
    """Return the parts of a dotted key.

    Inside a mapping of single values, the rest of the key is one name, even if it contains dots
    (labels.example.com/team). parallel.deepspeed_extra is nested, as DeepSpeed's JSON is.
    """
    for mapping, values in free_form().items():
        if values is not Any and key.startswith(f"{mapping}."):
            return [*mapping.split("."), key.removeprefix(f"{mapping}.")]
    return key.split(".")


def holds_text(key: str) -> bool:
    """Return whether a dotted key is a name in a mapping whose values are text, such as labels.team."""
    section = ".".join(parts_of(key)[:-1])
    return free_form().get(section) is str


@functools.cache
def entry_models() -> Mapping[str, type[BaseModel]]:
    """Return {key of a list: pydantic class of its entries}, for lists whose entries are sections."""
    models: dict[str, type[BaseModel]] = {}
    for prefix, model in {"": RunConfig, **field_keys()}.items():
        for name, info in model.model_fields.items() if model else ():
            entries = get_args(info.annotation) if get_origin(info.annotation) is list else ()
            if (entry := _section(entries[0]) if entries else None) is not None:
                models[f"{prefix}.{name}".lstrip(".")] = entry
    return models


def _section(annotation: Any) -> type[ConfigModel] | None:
    if get_origin(annotation) is list:  # its items have keys, the list itself has none
        return None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, ConfigModel):
            return candidate
    return None


def unknown_keys(located: Located) -> list[Finding]:
    """Return a finding for each key that the schema does not have, with the nearest known key."""
    known = field_keys()
    sections = [key for key, model in known.items() if model is not None]
    problems = []

    def walk(value: Mapping[str, Any], prefix: str) -> None:
        for key, inner in value.items():
            dotted = f"{prefix}{key}"
            if dotted not in known:
                section = prefix.rstrip(".") or "a run"
                # A mapping was probably meant to be a section, so a similar section is suggested first.
                near = _nearest(dotted, sections) if isinstance(inner, Mapping) else ""
                near = _numbered(dotted, inner) or near or _nearest(dotted, known)
                message = f"{shortened(section)} has no key `{shortened(key)}`.{near}"
                place = located.where(dotted) or ""
                problems.append(Finding("error", "unknown_keys", dotted, place, message, cost=FATAL))
            elif isinstance(inner, Mapping) and known[dotted] is not None:
                walk(inner, f"{dotted}.")

    walk(located.value, "")
    return problems


def _numbered(dotted: str, inner: Any) -> str:
    """Return a hint to write the key of a list entry with dots: a.0.path instead of a[0].path.

    `inner` is the value of the key `dotted`. "" if the key has no index in brackets.
    """
    keys = dotted
    while isinstance(inner, Mapping) and len(inner) == 1:
        ((key, inner),) = inner.items()
        keys += f".{key}"
    numbered = re.sub(r"\[(\d+)\]", r".\1", keys)
    return "" if numbered == keys else f" Nearest: {numbered}."


def _nearest(dotted: str, known: Iterable[str]) -> str:
    section, _, last = dotted.rpartition(".")
    words: dict[str, list[str]] = {}
    for key in known:
        words.setdefault(key.rpartition(".")[2], []).append(key)
    if hint := other_name(last):
        return hint
    siblings = {
        word: key for word, keys in words.items() for key in keys if key.rpartition(".")[0] == section
    }
    candidates = [
        # The most frequent mistake is the right word in the wrong section. The next is a typing error.
        *words.get(last, []),
        *(siblings[word] for word in difflib.get_close_matches(last, siblings, n=1, cutoff=0.7)),
        # A key that contains the typed word is suggested only if the word has more than 3 letters.
        *(key for word, keys in words.items() for key in keys if len(last) > 3 and last in word),
        *(words[word][0] for word in difflib.get_close_matches(last, words, n=1, cutoff=0.65)),
    ]
    return f" Nearest: {candidates[0]}." if candidates else ""
