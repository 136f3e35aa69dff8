"""Values of a config.json, checked when they are read; the error for an invalid value names its key."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display


class Keys:
    """A config.json or an object in it; `place` refers to it in messages."""

    def __init__(self, values: Mapping[str, Any], path: Path, inside: str = ""):
        self.values = values
        self.path = path
        self.inside = inside

    def __contains__(self, key: str) -> bool:
        """Return whether a key has a value that is not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int | None = None) -> int:
        """Return an integer of at least `least` and at most `most`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refused(key, f"must be a whole number of at least {least}")
        if most is not None and value > most:
            raise self.refused(key, f"must be at most {most:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of at least 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self.refused(key, "must be a number of at least 0")
        # JSON has whole numbers of any length.
        if value > sys.float_info.max:
            raise self.refused(key, f"is above {sys.float_info.max:.1e}, the largest number that is read")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.refused(key, "must be text")
        return value

    def object(self, key: str) -> "Keys":
        """Return the object under a key; an empty one if the key is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refused(key, "must be an object")
        return Keys(value or {}, self.path, f"{self.inside}{key}.")

    def must_be(self, key: str, allowed: Any, default: Any, why: str) -> None:
        """Raise CheckpointError unless a key has the only value that our model supports."""
        if self.values.get(key, default) not in (allowed, None):
            raise self.refused(key, why)

    def refused(self, key: str, rule: str) -> CheckpointError:
        """Return the error for a value, with its place, the value and `rule`."""
        found = shortened(repr(self.values.get(key)))
        return CheckpointError(f"{display(self.path)}: {self.inside}{key} = {found}: {rule}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{display(self.path)}: has no {self.inside}{key}, which the model needs.")
        return value
