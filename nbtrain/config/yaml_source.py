"""Read YAML with the file and line of every key, and refuse values that YAML misreads (010, 1:30, yes).

A run YAML is a small, plain document: one mapping, text keys, no anchors and no tags. `extends:` is the way
to share settings. Anchors could make a file refer to itself, and all code that reads it would have to guard
against that. Values that YAML 1.1 reads as something other than what they look like (1:30, 010, yes,
2024-01-01) are refused: see MisleadingValue.
"""

import contextlib
import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.base.git_lfs import pointer_problem
from nbtrain.base.text.addresses import text_without_secrets, without_secrets
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display

# YAML 1.2's floats: 6e-4 is a number, as everybody writes it; PyYAML's 1.1 reads it as text.
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)

_WHOLE_NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0", re.ASCII)

# YAML 1.2's octal numbers, which PyYAML reads as text.
_OCTAL_1_2 = re.compile(r"^[-+]?0o[0-7]+$")
# Python itself refuses to read or write an int of more than 4,300 digits.
MOST_DIGITS = 100

_TAG = "tag:yaml.org,2002:"
_TEXT = f"{_TAG}str"
_OCTAL_TAG = "tag:nbtrain,2026:octal"


class MisleadingValue(ValueError):
    """A value that YAML reads differently from what it looks like.

    The message says what YAML reads and what to write instead. `text` is the value as it was written.
    """

    def __init__(self, text: str, message: str):
        super().__init__(message)
        self.text = text


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats, without aliases and without tags."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not supported; use `extends:` to share settings", mark
            )
        event = self.peek_event()
        if (tag := getattr(event, "tag", None)) is not None:
            spelled = tag.replace(_TAG, "!!") if tag.startswith(_TAG) else tag
            raise yaml.composer.ComposerError(
                None,
                None,
                f"tags such as {shortened(spelled)} are not supported; remove the tag",
                event.start_mark,
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Writer of YAML that _Loader can read. It quotes text that _Loader would read as a float."""


class _LineDumper(_Dumper):
    """Writer of YAML on one line. Text of several lines is quoted, with its line ends escaped."""


_LineDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style='"' if "\n" in text else None)
)

for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
    # The writer quotes text that the reader would refuse.
    _kind.add_implicit_resolver(_OCTAL_TAG, _OCTAL_1_2, list("-+0"))

# libyaml, if PyYAML was built with it, reads and writes a resolved file of 300 lines in a tenth of the time.
_QUICK_LOADER: Any = None
_QUICK_DUMPER: Any = None
if yaml.__with_libyaml__:

    class _QuickLoader(yaml.CSafeLoader):
        """libyaml's loader with a cache of the types of scalars, because runs share most of their values."""

        _tags: ClassVar[dict[tuple[str, tuple[bool, bool]], str]] = {}

        def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> str:
            if kind is not yaml.ScalarNode or len(value) > MOST_DIGITS:
                return super().resolve(kind, value, implicit)
            tag = self._tags.get((value, implicit))
            if tag is None:
                tag = super().resolve(kind, value, implicit)
                if len(self._tags) < MOST_TAGS:
                    self._tags[value, implicit] = tag
            return tag

    _QUICK_LOADER = _QuickLoader
    _QUICK_DUMPER = type("_QuickDumper", (yaml.CSafeDumper,), {})
    for _quick, _kind in ((_QUICK_LOADER, _Loader), (_QUICK_DUMPER, _Dumper)):
        _quick.yaml_implicit_resolvers = _kind.yaml_implicit_resolvers
MOST_TAGS = 10_000
"""Maximum number of scalars whose types are cached."""
# Matches text that is left to PyYAML, because libyaml may read it differently or _Loader refuses it. Other
# text has only keys, block lists and values in ASCII, as nbtrain writes them.
_NOT_QUICK = re.compile(r"[^\n -~]|\\|(?:^|\s)[&*!%@`|>?]|\{[^}]|\[[^]]|^---|^\.\.\.", re.MULTILINE)


def _misleading(text: str, reads: str, number: str) -> MisleadingValue:
    instead = f"Write {number}, or" if number else "Write"
    return MisleadingValue(text, f"{reads}. {instead} {show(text)} with the quotes for text.")


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Any:
    for key, _ in node.value:
        if refuse := _OF_YAML_1_1.get(key.tag):
            refuse(loader, key)
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"{shortened(key.value)} is written twice; keep one"
            )
        seen.add(key.value)
    return loader.construct_yaml_map(node)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > MOST_DIGITS:
        raise MisleadingValue(text, f"has {len(text):,} digits; a number may have at most {MOST_DIGITS}.")
    value = loader.construct_yaml_int(node)
    digits = text.lstrip("+-").replace("_", "")
    if ":" in digits:
        raise _misleading(text, f"YAML reads this as {value}, a number in base 60", str(value))
    if digits.startswith("0b"):
        raise _misleading(text, f"YAML reads this as {value}, a binary number", str(value))
    if digits.startswith("0") and digits.isdigit() and int(digits) != abs(value):
        decimal = -int(digits) if value < 0 else int(digits)
        raise _misleading(text, f"YAML reads this as {value}, an octal number", f"{value} or {decimal}")
    return value


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = loader.construct_yaml_float(node)
    if ":" in node.value:
        raise _misleading(node.value, f"YAML reads this as {value}, a number in base 60", str(value))
    return value


def _construct_bool(loader: _Loader, node: yaml.ScalarNode) -> bool:
    value = loader.construct_yaml_bool(node)
    word = "true" if value else "false"
    if node.value.lower() != word:
        raise _misleading(node.value, f"YAML reads this as {word}", word)
    return value


def _refuse_octal(loader: _Loader, node: yaml.ScalarNode) -> None:
    value = str(int(node.value.replace("0o", ""), 8))
    raise _misleading(
        node.value, f"YAML 1.1 reads this as text and YAML 1.2 as {value}, an octal number", value
    )


def _refuse_date(loader: _Loader, node: yaml.ScalarNode) -> None:
    raise _misleading(node.value, "YAML reads this as a date, which no field accepts", "")


def _refuse_merge(loader: _Loader, node: yaml.ScalarNode) -> None:
    reads = "YAML 1.1 reads this as a merge of mappings, which is not supported: use `extends:` instead"
    raise _misleading(node.value, reads, "")


def _refuse_default(loader: _Loader, node: yaml.ScalarNode) -> None:
    raise _misleading(node.value, "YAML 1.1 reads this as a default value, which no field accepts", "")


# Tags of the bare words << and =.
_OF_YAML_1_1 = {f"{_TAG}merge": _refuse_merge, f"{_TAG}value": _refuse_default}
for _tag, _constructor in (
    (f"{_TAG}map", _mapping),
    (f"{_TAG}int", _construct_int),
    (f"{_TAG}float", _construct_float),
    (f"{_TAG}bool", _construct_bool),
    (f"{_TAG}timestamp", _refuse_date),
    (_OCTAL_TAG, _refuse_octal),
    *_OF_YAML_1_1.items(),
):
    _Loader.add_constructor(_tag, _constructor)


class OverridePlace(str):
    """Place of a value that an override has set, as messages show it.

    `argument` is the complete key=value.
    """

    argument: str

    @classmethod
    def of(cls, key: str, value: Any) -> "OverridePlace":
        """Return the place of one override. It appears in messages, so it holds no passwords."""
        text = spelled(value)
        place = cls(f"override {shortened(key)}={shortened(text)}")
        place.argument = f"{key}={text}"
        return place


class NotWritten(str):
    """Place of a value that no file and no override sets, although it is not the schema's default."""

    def __new__(cls) -> "NotWritten":
        return super().__new__(cls, "default")


@dataclass
class Located:
    """A nested dict with the place where each of its dotted keys was written."""

    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merged_with(self, child: "Located") -> "Located":
        """Return a copy with the values of `child` merged into it.

        Mappings are merged; all other values of `child` replace values here, along with their places.
        """
        origins = dict(self.origins)
        value = _merge(self.value, child.value, "", origins)
        return Located(value, {**origins, **child.origins})

    def where(self, key: str) -> str | None:
        """Return the place where a dotted key is set.

        If the key is not set, return the place of a key inside it or, if there is none, of the key that
        contains it. Return None if none of these keys is set.
        """
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
            # data.sources.0.path=x: the list is merged as a mapping from number to entry.
            entries = {str(index): entry for index, entry in enumerate(old)}
            merged[key] = list(_merge(entries, value, f"{dotted}.", origins).values())
        # A source or worker of another kind has other keys, so it is replaced as a whole. The backend is
        # merged, because it has fields for all kinds and a section for each kind.
        elif (
            isinstance(value, dict)
            and isinstance(old, dict)
            and (dotted == "backend" or _same_kind(value, old, dotted))
        ):
            merged[key] = _merge(old, value, f"{dotted}.", origins)
        else:
            merged[key] = value
            for known in [known for known in origins if f"{known}.".startswith(f"{dotted}.")]:
                del origins[known]
    return merged


# {section: its kind if the YAML sets none}
DEFAULT_KINDS = {"lora": "lora", "data.workers": "local"}


def _same_kind(value: dict[str, Any], old: dict[str, Any], key: str) -> bool:
    kind = old.get("kind", DEFAULT_KINDS.get(key))
    return bool(value.get("kind", kind) == kind)


def _is_part_of(value: Any, entries: list[Any]) -> bool:
    """Return whether `value` is a mapping whose keys are indices of `entries`, such as "0"."""
    return (
        isinstance(value, dict) and bool(value) and all(key in map(str, range(len(entries))) for key in value)
    )


def label_of(path: Path) -> str:
    """Return the name of a YAML in messages: its file name or, for a config.yaml, its path.

    Every run has a config.yaml, so its name alone would not identify it.
    """
    return display(os.path.normpath(path.absolute())) if path.name == "config.yaml" else path.name


def read_yaml(path: Path, label: str | None = None, shape: str | None = None) -> Located:
    """Read a run YAML with the places of its keys. Raises ConfigError if it is not a mapping.

    `label` is the name of the file in messages. For a file that is not a run YAML, `shape` is a text that
    describes its form.
    """
    label = label or label_of(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: cannot be read: byte {error.start + 1} is not UTF-8. Save the file as UTF-8 text."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if problem := pointer_problem(text.encode()):
        raise ConfigError(f"{path}: {problem}.")
    return parse_yaml(text, label, shape)


# Largest text whose nodes are cached. Run YAMLs are small, but another file may have any length, and its
# nodes take a hundred times as much memory.
_LONGEST_KEPT = 1 << 16


@functools.lru_cache(maxsize=64)
def _composed(text: str) -> yaml.Node | None:
    """Return the YAML nodes of a text. They are cached, because a form reads the same text repeatedly.

    Callers must not change the nodes.
    """
    if _QUICK_LOADER and not _NOT_QUICK.search(text):
        with contextlib.suppress(yaml.YAMLError):
            return _QUICK_LOADER(text).get_single_node()
    # This loader reports errors in nbtrain's words.
    return _Loader(text).get_single_node()


def parse_yaml(text: str, label: str, shape: str | None = None) -> Located:
    """Read YAML from text in the same way as read_yaml."""
    located = Located()
    try:
        loader = _Loader("")  # its constructors
        node = (_composed if len(text) <= _LONGEST_KEPT else _composed.__wrapped__)(text)
        if node is None:
            rule = shape or "a run YAML is a mapping with at least `extends:`"
            raise ConfigError(f"{label}: the file is empty; {rule}.")
        if not isinstance(node, yaml.MappingNode):
            rule = shape or "a run YAML is a mapping of sections"
            raise ConfigError(f"{label}:{node.start_mark.line + 1}: {rule}.")
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
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    # The problem may quote a tag, which may be long.
    return shortened(problem, 200)


def _construct(loader: _Loader, node: yaml.Node, prefix: str, label: str, origins: dict[str, str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = f"{label}:{key_node.start_mark.line + 1}"
            key = None
            if isinstance(key_node, yaml.ScalarNode):
                key = _scalar(loader, key_node, f"{place}: the key")
            if not isinstance(key, str):
                found = "?" if key is None else shortened(key_node.value)
                raise ConfigError(f"{place}: the key {found} must be text.")
            if key in result:
                raise ConfigError(f"{place}: {shortened(prefix + key)} is written twice; keep one.")
            origins[prefix + key] = place
            result[key] = _construct(loader, value_node, f"{prefix}{key}.", label, origins)
        return result
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            origins[f"{prefix}{index}"] = f"{label}:{item.start_mark.line + 1}"
            items.append(_construct(loader, item, f"{prefix}{index}.", label, origins))
        return items
    place = f"{label}:{node.start_mark.line + 1}"
    return _scalar(loader, node, place, prefix[:-1])


def _scalar(loader: _Loader, node: yaml.Node, place: str, key: str | None = None) -> Any:
    """Return the value of a node.

    Error messages begin with `place` and, unless it is None, with the `key` to which the value belongs.
    """
    try:
        return _value(node.tag, node.value)
    except (yaml.YAMLError, ValueError, MisleadingValue):
        pass  # the error below needs the node, which knows its place
    try:
        return loader.construct_object(node, deep=True)
    except MisleadingValue as error:
        written = shortened(node.value)
        found = f"{place} {written}" if key is None else f"{place}: {shortened(key)} = {written}"
        raise ConfigError(f"{found}: {error}") from error


# Runs share most of their values, and YAML's constructors take 3 us for each.
@functools.lru_cache(maxsize=4096)
def _value(tag: str, text: str) -> Any:
    """Return the value of a scalar, which is immutable."""
    return _Loader("").construct_object(yaml.ScalarNode(tag, text), deep=True)


def parse_value(text: str) -> Any:
    """Parse the value of `key=value`.

    Raises MisleadingValue for a value that YAML misreads, and ValueError for text that is not YAML.
    """
    # A shortcut: most overrides are a number, true or false, and PyYAML takes 0.1 ms for each.
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if text in ("true", "false"):
        return text == "true"
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except MisleadingValue:
        raise
    except (yaml.YAMLError, ValueError) as error:
        reason = _reason(error) if isinstance(error, yaml.YAMLError) else shortened(str(error))
        raise ValueError(f"not YAML: {reason}.") from error
    except RecursionError:
        raise ValueError("not YAML: nested too deeply.") from None


def to_text(value: Mapping[str, Any]) -> str:
    """Return YAML text that read_yaml reads back to the same value."""

    def dump(allow_unicode: bool, dumper: Any = _Dumper) -> str:
        return yaml.dump(dict(value), Dumper=dumper, sort_keys=False, allow_unicode=allow_unicode, width=110)

    if _QUICK_DUMPER and not _NOT_QUICK.search(text := dump(True, _QUICK_DUMPER)):
        return text
    text = dump(allow_unicode=True)
    # PyYAML writes Unicode's line ends unescaped and reads them as spaces. Escaped, they survive.
    return dump(allow_unicode=False) if re.search("[\x85\u2028\u2029]", text) else text


def show(value: Any) -> str:
    """Return a value on one line, spelled as in a run YAML, without passwords.

    A long value is shortened.
    """
    return shortened(spelled(value))


def spelled(value: Any) -> str:
    """Return a value on one line, spelled as in a run YAML, without passwords."""
    # A shortcut for most overrides, because this function is called for every override.
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) is int and abs(value) < 10**MOST_DIGITS:
        return str(value)
    if not value and type(value) in (list, dict):
        return "[]" if type(value) is list else "{}"
    # For each response, a form calls this function with hundreds of values, most of them the same every time.
    return _spelled_scalar(value) if isinstance(value, str | float) else _spelled(value)


def _spelled(value: Any) -> str:
    try:
        text = yaml.dump(
            without_secrets(value),
            Dumper=_LineDumper,
            default_flow_style=True,
            sort_keys=False,
            allow_unicode=True,
            width=10**6,
        )
    except yaml.YAMLError:  # an object passed in Python that YAML cannot represent
        text = text_without_secrets(repr(value))
    except ValueError:  # an int passed in Python with more digits than Python writes
        text = "a number of more than 4,300 digits"
    return text.removesuffix("...\n").strip()


_spelled_scalar = functools.lru_cache(4096, typed=True)(_spelled)
