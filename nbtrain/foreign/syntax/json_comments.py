"""Reads DeepSpeed's JSON as users write it: with comments, trailing commas, and the place of each key.

Megatron-DeepSpeed and the Trainer of transformers read the file with Python's json, which rejects comments
and trailing commas. DeepSpeed itself reads Hjson, which allows both, but rejects a key that is written twice.
This reader accepts all of these and reports them, so that the file can be read and its errors can be named.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from nbtrain.base.errors import ConfigError
from nbtrain.base.files import too_many_digits

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None, "NaN": float("nan"), "Infinity": float("inf")}
_COMMENTS = {"//": "\n", "#": "\n", "/*": "*/"}
# A name in a JSON template, such as CONFIG_BATCH_SIZE or $ZERO_STAGE.
_PLACEHOLDER = re.compile(r"\$\{\w+\}|\$?[A-Z][A-Z0-9_]{2,}")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
MOST_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Fault:
    """Text that Python's json rejects, or a key that occurs twice in an object."""

    place: str
    kind: Literal["comment", "comma", "byte order mark", "duplicate"]
    text: str
    """The problem as a clause, e.g. "train_batch_size is written twice"."""

    @property
    def is_duplicate(self) -> bool:
        """Whether a key occurs twice: Python's json uses the last value, and DeepSpeed rejects the file."""
        return self.kind == "duplicate"


@dataclass(slots=True)
class Document:
    """A JSON object, with the place of each dotted key."""

    label: str
    value: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def place(self, key: str) -> str:
        """Return where a dotted key was written, or the file name if it was not written."""
        return self.places.get(key, self.label)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key, or `default` if the key is missing."""
        value: Any = self.value
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value


def read_json(text: str, label: str, first_line: int = 1) -> Document:
    """Read a JSON object. Raises ConfigError, with the line, if the text is not a JSON object."""
    reader = _Reader(text, label, first_line)
    document = reader.document
    value = reader.value("", 0)
    reader.blanks()
    if reader.position < len(text):
        raise reader.error("there is text after the end of the JSON object")
    if not isinstance(value, dict):
        raise ConfigError(f"{label}:{first_line}: a DeepSpeed configuration must be a JSON object {{ ... }}.")
    document.value = value
    return document


class _Reader:
    def __init__(self, text: str, label: str, first_line: int):
        self.text, self.position = text, 0
        self.line, self.counted = first_line, 0
        self.document = Document(label)

    @property
    def place(self) -> str:
        # The position only grows, so each line break is counted only once.
        self.line += self.text.count("\n", self.counted, self.position)
        self.counted = self.position
        return f"{self.document.label}:{self.line}"

    def error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.place}: not JSON: {reason}.")

    def refused(self, kind: Literal["comment", "comma", "byte order mark"], shown: str) -> None:
        """Report text that Python's json refuses, and DeepSpeed's Hjson reads."""
        self.document.faults.append(Fault(self.place, kind, f"{shown}: Python's json refuses it"))

    def blanks(self) -> None:
        """Skip spaces and comments. The first comment of a file is reported."""
        while self.position < len(self.text):
            if self.text[self.position] == "\ufeff":
                self.refused("byte order mark", "a byte order mark")
                self.position += 1
                continue
            if self.text[self.position].isspace():
                self.position += 1
                continue
            opening = next((one for one in _COMMENTS if self.text.startswith(one, self.position)), "")
            if not opening:
                return
            closing = _COMMENTS[opening]
            if not any(fault.kind == "comment" for fault in self.document.faults):
                self.refused("comment", f"a comment ({opening})")
            end = self.text.find(closing, self.position + len(opening))
            if end < 0 and closing == "*/":
                raise self.error("the comment /* has no end")
            self.position = len(self.text) if end < 0 else end + len(closing)

    def value(self, key: str, depth: int) -> Any:
        self.blanks()
        if depth > MOST_DEPTH:
            raise self.error("the value is nested too deeply")
        self.document.places[key] = self.place
        character = self.text[self.position : self.position + 1]
        if character == "{":
            return self._object(key, depth)
        if character == "[":
            return self._list(key, depth)
        if character == '"':
            return self._string()
        if match := _NUMBER.match(self.text, self.position):
            try:
                value = json.loads(match.group(0))
            except ValueError:
                raise self.error(too_many_digits()) from None
            self.position = match.end()
            return value
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.position):
                self.position += len(word)
                return value
        if match := _PLACEHOLDER.match(self.text, self.position):
            words = f"{match.group(0)} is a placeholder that a script replaces. Pass that script as well"
            raise self.error(f"{words}, or write the value{f' of {key}' if key else ''} in this file")
        raise self.error(f"a value is missing{f' for {key}' if key else ''}")

    def _string(self) -> str:
        match = _STRING.match(self.text, self.position)
        if not match:
            raise self.error('the quote " has no end on its line')
        try:
            text = json.loads(match.group(0), strict=False)
        except json.JSONDecodeError as error:
            raise self.error(error.msg) from None
        self.position = match.end()
        return str(text)

    def _object(self, key: str, depth: int) -> dict[str, Any]:
        self.position += 1
        found: dict[str, Any] = {}
        while not self._closed("}", bool(found)):
            if self.text[self.position : self.position + 1] != '"':
                raise self.error('a key in double quotes, such as "train_batch_size", is missing')
            place = self.place
            name = self._string()
            dotted = f"{key}.{name}" if key else name
            self.blanks()
            if self.text[self.position : self.position + 1] != ":":
                raise self.error(f"the colon after {dotted} is missing")
            self.position += 1
            if name in found:
                self.document.faults.append(Fault(place, "duplicate", f"{dotted} is written twice"))
            found[name] = self.value(dotted, depth + 1)
            self.document.places[dotted] = place
        return found

    def _list(self, key: str, depth: int) -> list[Any]:
        self.position += 1
        found: list[Any] = []
        while not self._closed("]", bool(found)):
            found.append(self.value(f"{key}.{len(found)}", depth + 1))
        return found

    def _closed(self, bracket: str, further: bool) -> bool:
        """Return whether the object or list ends here. Skip the comma if another entry follows."""
        self.blanks()
        comma = further and self.text.startswith(",", self.position)
        if comma:
            self.position += 1
            self.blanks()
        if self.text.startswith(bracket, self.position):
            if comma:
                self.refused("comma", f"a comma before {bracket}")
            self.position += 1
            return True
        if self.position >= len(self.text):
            raise self.error(f"{bracket} is missing at the end")
        if further and not comma:
            raise self.error("a comma is missing")
        return False
