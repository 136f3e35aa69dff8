"""Reads, with Python's json, JSON that orjson refuses although its document can be used.

NaN, Infinity and numbers beyond float64 occur under other keys; json.dumps writes lone surrogates.
"""

import json
from typing import Any

import orjson

KINDS = {bool: "true or false", **dict.fromkeys((int, float), "a number"), str: "text", list: "a list"}


def record_of(line: bytes) -> dict[str, Any]:
    """The object of a line; its strings may hold lone surrogates. Raises ValueError, with what is wrong."""
    try:
        value = _value(line)
        if isinstance(value, dict):
            return value
        problem = f"not an object but {kind_of(value)}"
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg})"
    is_array = line.lstrip().startswith(b"[")
    rule = "; one object per line is asked for, not an array" if is_array else ""
    raise ValueError(not_utf8(line) or problem + rule)


def _value(content: bytes) -> Any:
    """The value of a line. Raises json.JSONDecodeError if neither parser reads it."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        refusal = error
    try:
        return json.loads(content.decode(), parse_int=_integer)
    except json.JSONDecodeError:
        raise  # what orjson refused may be readable, and the mistake come later
    except (ValueError, RecursionError):
        raise refusal from None


def _integer(digits: str) -> float:
    """Python makes no int of more than 4,300 digits; only whether it is a number matters here."""
    return int(digits) if len(digits) < 1000 else float(digits)


def kind_of(value: Any) -> str:
    """A value in the words of JSON."""
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else KINDS.get(type(value), type(value).__name__)


def keys_of(value: dict[str, Any]) -> str:
    """The first keys of an object, for messages."""
    return ", ".join(map(repr, list(value)[:5])) or "no keys"


def is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8: it holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(content: bytes) -> str | None:
    """Return the problem with bytes that are not UTF-8; None if they are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{content[error.start]:02x})"
    return None
