"""Words and values of the user's files with their places, so that every message names file and line."""

import re
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.terminal import printable

# Parts of a word that come from outside the script: $1, ${NAME}, $(command).
OUTSIDE = re.compile(r"\$(\w+|\{[^}]*\}|\([^)]*\)|[@*#?])|`[^`]*`")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, or a value of a manifest."""

    text: str
    place: str
    """Place of the word, such as "train.sh:12"."""

    @property
    def from_outside(self) -> str:
        """Return the first part of the word that only the running shell knows, e.g. "$1"; "" if there is
        none.
        """
        match = OUTSIDE.search(self.text)
        return match.group(0) if match else ""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of JSON or YAML with its place."""

    value: Any
    place: str


def whole(word: Word | Value, what: str) -> int:
    """Convert the word to an integer. Raises ConfigError, which calls the word `what`."""
    text = str(word.text if isinstance(word, Word) else word.value)
    try:
        return int(text)
    except ValueError:
        hint = " Fill in the variables first: envsubst < FILE > NEW_FILE." if "$" in text else ""
        raise ConfigError(
            f"{word.place}: {what} = {printable(text)}: must be a whole number.{hint}"
        ) from None


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def quantity(word: Value, what: str) -> float:
    """Convert a Kubernetes quantity: "8", "500m", "16Gi". Raises ConfigError, which calls the word `what`."""
    text = str(word.value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[kMGTP]i?|Ki)?", text)
    if not match:
        raise ConfigError(
            f"{word.place}: {what} = {printable(text)}: must be a number with a unit such as m, Mi or Gi."
        )
    number, unit = float(match.group(1)), match.group(2) or ""
    return number / 1000 if unit == "m" else number * _UNITS[unit]
