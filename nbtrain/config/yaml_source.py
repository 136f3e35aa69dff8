"""YAML with the place of every key: file and line travel with each value to the error message.

A run YAML is a small, plain document: one mapping, text keys, no anchors and no tags. `extends:` is the way to
share, and a file that could refer to itself would have to be guarded everywhere below.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nbtrain.base.addresses import text_without_secrets, without_secrets
from nbtrain.base.errors import ConfigError

# YAML 1.2's floats: 6e-4 is a number, as everybody writes it; PyYAML's 1.1 reads it as text.
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)

_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats and without aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not read; use `extends:` to share", mark
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """The writer that belongs to _Loader: text that looks like one of its floats is quoted."""


class _LineDumper(_Dumper):
    """The writer of one line: text of several is quoted, with its ends escaped."""


_LineDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style='"' if "\n" in text else None)
)

for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class OverridePlace(str):
    """Where a value was overridden, as messages show it; `argument` is all of key=value."""

    argument: str

    @classmethod
    def of(cls, key: str, value: Any) -> "OverridePlace":
        """Of one override. It is told wherever the value matters: without passwords."""
        place = cls(f"override {key}={show(value)}")
        place.argument = f"{key}={spelled(value)}"
        return place


@dataclass
class Located:
    """A nested dict and, for each dotted key in it, where it was written."""

    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merged_with(self, child: "Located") -> "Located":
        """`child` over self: mappings merge, everything else is replaced whole, its places too."""
        origins = dict(self.origins)
        value = _merge(self.value, child.value, "", origins)
        return Located(value, {**origins, **child.origins})

    def where(self, key: str) -> str | None:
        """The place of a dotted key: its own, that of what lies inside it, or that of what it lies in."""
        if key in self.origins:
            return self.origins[key]
        inside = (place for known, place in self.origins.items() if known.startswith(f"{key}."))
        if (place := next(inside, None)) is not None:
            return place
        outer = key.rpartition(".")[0]
        return self.where(outer) if outer else None


def _merge(
    base: dict[str, Any], over: dict[str, Any], prefix: str, origins: dict[str, str]
) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old, dotted = merged.get(key), f"{prefix}{key}"
        if isinstance(old, list) and _is_part_of(value, old):
            # data.sources.0.path=x: the entries as a mapping by their number, and back.
            entries = {str(index): entry for index, entry in enumerate(old)}
            merged[key] = list(_merge(entries, value, f"{dotted}.", origins).values())
        # Another kind of backend or source is another set of keys: replace it whole.
        elif (
            isinstance(value, dict)
            and isinstance(old, dict)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            merged[key] = _merge(old, value, f"{dotted}.", origins)
        else:
            merged[key] = value
            for known in [known for known in origins if f"{known}.".startswith(f"{dotted}.")]:
                del origins[known]
    return merged


def _is_part_of(value: Any, entries: list[Any]) -> bool:
    """Whether `value` names entries of a list by their numbers."""
    return (
        isinstance(value, dict) and bool(value) and all(key in map(str, range(len(entries))) for key in value)
    )


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
    located = Located()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(
                f"{label}: the file is empty; a run YAML is a mapping with at least `extends:`."
            )
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{label}:{node.start_mark.line + 1}: a run YAML is a mapping of sections.")
        located.value = _construct(loader, node, "", label, located.origins)
    except yaml.YAMLError as error:
        raise ConfigError(f"{label}{_line(error)}: not YAML: {_reason(error)}.") from error
    except RecursionError:
        raise ConfigError(f"{label}: not a run YAML: nested too deeply.") from None
    return located


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or " ".join(str(error).split())


def _construct(loader: _Loader, node: yaml.Node, prefix: str, label: str, origins: dict[str, str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = f"{label}:{key_node.start_mark.line + 1}"
            key = _scalar(loader, key_node, label) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise ConfigError(
                    f"{place}: the key {key_node.value if key is not None else '?'} must be text."
                )
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
    return _scalar(loader, node, label)


def _scalar(loader: _Loader, node: yaml.Node, label: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:
        # 2024-13-45 has the shape of a date.
        raise ConfigError(f"{label}:{node.start_mark.line + 1}: not YAML: {node.value}: {error}.") from error


def parse_value(text: str) -> Any:
    """The value of `key=value`, read as YAML reads it.

    Raises ValueError with the reason where it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(_reason(error)) from error
    except RecursionError:
        raise ValueError("nested too deeply") from None


def to_text(value: Mapping[str, Any]) -> str:
    """YAML text that read_yaml reads back to the same value."""

    def dump(allow_unicode: bool) -> str:
        return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=110)

    text = dump(allow_unicode=True)
    # PyYAML writes Unicode's line ends as they are and reads them as blanks; escaped they survive.
    return dump(allow_unicode=False) if re.search("[\x85\u2028\u2029]", text) else text


def show(value: Any) -> str:
    """A value in one line, as a run YAML spells it, without passwords, cut where it is long."""
    text = spelled(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def spelled(value: Any) -> str:
    """A value in one line, as a run YAML spells it, without passwords."""
    try:
        text = yaml.dump(
            without_secrets(value),
            Dumper=_LineDumper,
            default_flow_style=True,
            sort_keys=False,
            allow_unicode=True,
            width=10**6,
        )
    except yaml.YAMLError:  # an object that no YAML holds, given in Python
        text = text_without_secrets(repr(value))
    return text.removesuffix("...\n").strip()
