"""Parses a line of JSON with Python's json module if orjson rejects it although the document is usable.

Examples are records in which other keys hold NaN, Infinity or numbers beyond float64, and texts with lone
surrogates, which json.dumps writes.
"""

import json
from typing import Any

import orjson

KINDS = {bool: "true or false", **dict.fromkeys((int, float), "a number"), str: "text", list: "a list"}


def record_of(line: bytes) -> dict[str, Any]:
    """Return the object on a line; its strings may hold lone surrogates.

    Raises ValueError with a description of the problem.
    """
    try:
        value = _value(line)
        if isinstance(value, dict):
            return value
        problem = f"not an object but {kind_of(value)}"
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg}, column {error.colno})"
    is_array = line.lstrip().startswith(b"[")
    rule = "; each line must hold one object, not an array" if is_array else ""
    raise ValueError(not_utf8(line) or problem + rule)


def _value(content: bytes) -> Any:
    """Return the value on a line. Raises json.JSONDecodeError if neither parser can read it."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        refusal = error
    try:
        return json.loads(content.decode().rstrip(" \t\r\n"), parse_int=_integer)
    except json.JSONDecodeError:
        raise  # orjson may have stopped at something that json accepts: this error is the actual problem
    except (ValueError, RecursionError):
        raise refusal from None


def _integer(digits: str) -> float:
    """Parse an integer, as a float if it is long: Python's int rejects more than 4,300 digits."""
    return int(digits) if len(digits) < 1000 else float(digits)


def kind_of(value: Any) -> str:
    """Return the JSON name of a value's type with its article, e.g. "a list"."""
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else KINDS.get(type(value), type(value).__name__)


def keys_of(value: dict[str, Any]) -> str:
    """Return the first keys of an object as a list for messages; "no keys" if it is empty."""
    return ", ".join(map(repr, list(value)[:5])) or "no keys"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, that is, contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(content: bytes) -> str | None:
    """Return a clause that names the first byte that is not UTF-8; None if all bytes are UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{content[error.start]:02x})"
    return None
