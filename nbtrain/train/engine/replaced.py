"""Replaces an attribute of DeepSpeed or torch for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """`place.name` is `value` inside; afterwards it is what it was, its class's own attribute included."""
    missing = object()
    own = vars(place).get(name, missing)
    setattr(place, name, value)
    try:
        yield
    finally:
        if own is missing:
            # What was set hides the attribute of the class; without it the class's is back.
            delattr(place, name)
        else:
            setattr(place, name, own)
