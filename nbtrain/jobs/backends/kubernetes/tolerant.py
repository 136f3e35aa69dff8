"""Read fields written by other programs; a field of an unexpected type counts as absent."""

from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty mapping."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def number(value: Any) -> int:
    """Return `value` if it is an integer, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
