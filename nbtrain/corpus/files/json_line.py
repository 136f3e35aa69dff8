"""Parses with Python's json module what orjson rejects although the document is usable.

Other keys may hold NaN, Infinity and numbers beyond float64, and json.dumps writes lone surrogates.
"""

import json
from typing import Any

import orjson

KINDS = {bool: "true or false", **dict.fromkeys((int, float), "a number"), str: "text", list: "a list"}


def record_of(line: bytes) -> dict[str, Any]:
    """Return the object on a line; its strings may hold lone surrogates. Raises ValueError with the
    problem.
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
    """Return the value on a line. Raises json.JSONDecodeError if neither parser reads it."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        refusal = error
    try:
        return json.loads(content.decode().rstrip(" \t\r\n"), parse_int=_integer)
    except json.JSONDecodeError:
        raise  # the part that orjson refused may be readable, and the real error come later
    except (ValueError, RecursionError):
        raise refusal from None


def _integer(digits: str) -> float:
    """Parse an integer as a float: Python refuses more than 4,300 digits, and only the type matters here."""
    return int(digits) if len(digits) < 1000 else float(digits)


def kind_of(value: Any) -> str:
    """Return the JSON name of a value's type."""
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else KINDS.get(type(value), type(value).__name__)


def keys_of(value: dict[str, Any]) -> str:
    """Return the first keys of an object as a list for messages."""
    return ", ".join(map(repr, list(value)[:5])) or "no keys"


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(content: bytes) -> str | None:
    """Return a description of why some bytes are not UTF-8; None if they are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{content[error.start]:02x})"
    return None
