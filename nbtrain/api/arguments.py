"""Arguments of notebooks and scripts: checked before anything starts, refused in one sentence."""

import numbers
import reprlib

from nbtrain.base.errors import ConfigError
from nbtrain.lab.widgets.watched import is_watched


def misused(name: str, value: object, expected: str) -> ConfigError:
    """The error for an argument of the wrong kind; a long value is shortened."""
    return ConfigError(f"{name} = {reprlib.repr(value)} ({type(value).__name__}) must be {expected}.")


def whole(name: str, value: object, expected: str = "a whole number") -> int:
    """`value`, of NumPy too, as an int for JSON. Raises ConfigError for anything else, and for booleans."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise misused(name, value, expected)
    return int(value)


def whole_or_none(name: str, value: object, none_means: str) -> int | None:
    """`value` as an int, or None. Raises ConfigError, which says what None means, for anything else."""
    return None if value is None else whole(name, value, f"a whole number, or None for {none_means}")


def number(name: str, value: object) -> float:
    """`value` as an int or a float, from any real number. Raises ConfigError for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise misused(name, value, "a number")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def text(name: str, value: object) -> str:
    """`value` if it is Unicode text. Raises ConfigError for another type and for half a surrogate pair."""
    if not isinstance(value, str):
        raise misused(name, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"character {error.start} is half of one"
        raise ConfigError(f"the {name} is not Unicode text: {half}.") from None
    return value


def wait_wanted(wait: str) -> bool:
    """Whether `wait` asks to wait here: "yes", or "auto" while nobody watches. Raises ConfigError."""
    if wait not in ("yes", "no", "auto"):
        raise ConfigError(f'wait = {wait!r} must be "yes", "no" or "auto".')
    return wait == "yes" or (wait == "auto" and not is_watched())
