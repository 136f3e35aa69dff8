"""YAML with the place of every key: file and line travel with each value to the error message."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nbtrain.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """SafeLoader whose floats are YAML 1.2's: 6e-4 is a number, as everybody writes it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


@dataclass
class Located:
    """A nested dict and, for each dotted key in it, where it was written."""

    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merged_with(self, child: "Located") -> "Located":
        """`child` over self: mappings merge, everything else is replaced whole."""
        return Located(_merge(self.value, child.value), {**self.origins, **child.origins})


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        # Another kind of backend or source is another set of keys: replace it whole.
        if both and value.get("kind", merged[key].get("kind")) == merged[key].get("kind"):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path, label: str | None = None) -> Located:
    """A run YAML with origins. `label` is the file's name in messages.

    Raises ConfigError where the file is missing, is not YAML, is no mapping or repeats a key.
    """
    label = label or path.name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse_yaml(text, label)


def parse_yaml(text: str, label: str) -> Located:
    """As read_yaml, from text."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{label}: the file is empty; a run YAML is a mapping with at least `extends:`.")
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{label}:{node.start_mark.line + 1}: a run YAML is a mapping of sections.")
        located = Located()
        located.value = _construct(loader, node, "", label, located.origins)
        return located
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{label}{line}: not YAML: {problem}.") from error
    finally:
        loader.dispose()


def _construct(loader: _Loader, node: yaml.Node, prefix: str, label: str, origins: dict[str, str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            place = f"{label}:{key_node.start_mark.line + 1}"
            if not isinstance(key, str):
                raise ConfigError(f"{place}: the key {key!r} must be text.")
            if key in result:
                raise ConfigError(f"{place}: {prefix}{key} is written twice; keep one.")
            origins[prefix + key] = place
            result[key] = _construct(loader, value_node, f"{prefix}{key}.", label, origins)
        return result
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            origins[f"{prefix}{index}"] = f"{label}:{item.start_mark.line + 1}"
            items.append(_construct(loader, item, f"{prefix}{index}.", label, origins))
        return items
    return loader.construct_object(node, deep=True)


def parse_value(text: str) -> Any:
    """The value of `key=value`, read as YAML reads it."""
    return yaml.load(text, Loader=_Loader)  # a SafeLoader
