"""JSON as Python writes it: what orjson refuses and is no reason to lose a document.

NaN, Infinity and numbers beyond float64 occur under keys that are not read, and lone surrogates come from
json.dumps. A reader asks orjson first, and comes here with the lines that orjson refuses.
"""

import json
from typing import Any

import orjson


def loads(content: bytes) -> Any:
    """The value; its strings may hold lone surrogates. Raises json.JSONDecodeError if neither parser reads
    it.
    """
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


def problem_of(content: bytes, error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is no JSON."""
    return not_utf8(content) or _with_rule(f"not JSON ({error.msg})", content)


def no_object(value: Any, content: bytes = b"") -> str:
    """What is wrong with a value that is no object, and with its line."""
    return _with_rule(f"not an object but {kind_of(value)}", content)


def kind_of(value: Any) -> str:
    """A value in JSON's words."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)


def is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8: it holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(content: bytes) -> str | None:
    """What is wrong with bytes that are no UTF-8; None if they are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{content[error.start]:02x})"
    return None


def _integer(digits: str) -> float:
    """Python makes no int of more than 4,300 digits; only whether it is a number matters here."""
    return int(digits) if len(digits) < 1000 else float(digits)


def _with_rule(problem: str, content: bytes) -> str:
    is_array = content.lstrip().startswith(b"[")
    return f"{problem}; one object per line is asked for, not an array" if is_array else problem
