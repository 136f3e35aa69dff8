"""Checks the arguments of notebooks and scripts before anything starts, and decides whether a call waits."""

import numbers
import os
import reprlib
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.workspace import resolve, typed_path


def misused(name: str, value: object, expected: str) -> ConfigError:
    """Return the ConfigError for an argument of the wrong type. Its message shortens a long value."""
    return ConfigError(f"{name} = {reprlib.repr(value)} ({type(value).__name__}) must be {expected}.")


def whole_number(name: str, value: object, expected: str = "a whole number") -> int:
    """Return `value` as a plain int, which JSON can store; NumPy integers are accepted. Raises ConfigError
    for booleans and other types.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise misused(name, value, expected)
    return int(value)


def whole_or_none(name: str, value: object, none_means: str) -> int | None:
    """Return `value` as an int, or None.

    For other types, raises ConfigError, whose message says what None means: `none_means`.
    """
    return None if value is None else whole_number(name, value, f"a whole number, or None for {none_means}")


def number(name: str, value: object) -> float:
    """Return `value` as an int or a float, from any real number. Raises ConfigError for other types."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise misused(name, value, "a number")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def text(name: str, value: object) -> str:
    """Return `value` if it is valid Unicode text. Raises ConfigError for another type or half a surrogate
    pair.
    """
    if not isinstance(value, str):
        raise misused(name, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"character {error.start} is half of a surrogate pair"
        raise ConfigError(f"the {name} is not valid Unicode text: {half}. Remove it.") from None
    return value


def wait_wanted(wait: str) -> bool:
    """Return whether to wait: always for "yes", only under papermill for "auto", and never for "no".

    Raises ConfigError for any other value.
    """
    if wait not in ("yes", "no", "auto"):
        raise ConfigError(f'wait = {wait!r} must be "yes", "no" or "auto".')
    return wait == "yes" or (wait == "auto" and not is_watched())


def existing_path(path: str | os.PathLike) -> Path:
    """Return the absolute path of a file that a user named.

    The result is the typed path if it exists, otherwise the path below the workspace.
    """
    return typed.absolute() if (typed := typed_path(path)).exists() else resolve(path)
