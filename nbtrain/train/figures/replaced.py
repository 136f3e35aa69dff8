"""Temporary replacement of an attribute of DeepSpeed or torch."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """Set `place.name` to `value` inside the context, and restore it afterwards, even a class's attribute."""
    missing = object()
    own = vars(place).get(name, missing)
    setattr(place, name, value)
    try:
        yield
    finally:
        if own is missing:
            # The instance's attribute hides the class's attribute; deleting it restores the class's.
            delattr(place, name)
        else:
            setattr(place, name, own)
