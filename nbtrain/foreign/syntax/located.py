"""Words and values of the user's files with their places, so that every message names file and line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.terminal import printable

# Parts of a word that come from outside the script: $1, ${NAME}, $(command).
OUTSIDE = re.compile(r"\$(\w+|\{[^}]*\}|\([^)]*\)|[@*#?])|`[^`]*`")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part of a value that only the running shell knows."""

    text: str
    """The part as messages show it: "$1", "${TP}", "$(nvidia-smi -L)"."""
    name: str = ""
    """The variable that holds it; "" for the output of a command that no variable holds."""
    place: str = ""
    """Place at which the value was lost, such as "train.sh:12"."""
    reason: str = ""
    """Clause that says why the value is not known; "" if no file sets the variable."""
    causes: tuple["Unknown", ...] = ()
    """Values that would decide this one, such as the variables of the condition around its assignment."""
    choices: tuple[str, ...] = ()
    """The texts that it may have, if these are known."""
    is_set: bool = False
    """Whether it is certainly set and not empty, such as the number of a Slurm job."""

    @property
    def is_absent(self) -> bool:
        """Return whether no file sets the variable, so that only the environment can."""
        return bool(self.name) and not self.reason

    def roots(self) -> Iterator["Unknown"]:
        """Yield the unknown values that decide this one: the values of its condition, or itself."""
        if self.causes and all(cause.name for cause in self.causes):
            for cause in self.causes:
                yield from cause.roots()
        else:
            yield self


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, or a value of a manifest."""

    text: str
    place: str
    """Place of the word, such as "train.sh:12"."""
    unknowns: tuple[Unknown, ...] | None = None
    """Parts that only the running shell knows. None for a word that no shell expands: its text is final."""

    @property
    def from_outside(self) -> str:
        """Return the first part of the word that only the running shell knows, e.g. "$1"; "" if there is
        none.
        """
        if self.unknowns is not None:
            return self.unknowns[0].text if self.unknowns else ""
        match = OUTSIDE.search(self.text)
        return match.group(0) if match else ""

    @property
    def is_outside(self) -> bool:
        """Return whether all of the word is one part that only the running shell knows."""
        if self.unknowns is not None:
            return len(self.unknowns) == 1 and self.text == self.unknowns[0].text
        return bool(OUTSIDE.fullmatch(self.text))

    def after(self, separator: str) -> "Word":
        """Return the part of the word after the first separator."""
        return self._part(self.text.partition(separator)[2])

    def before(self, separator: str) -> "Word":
        """Return the part of the word before the first separator."""
        return self._part(self.text.partition(separator)[0])

    def _part(self, text: str) -> "Word":
        unknowns = self.unknowns and tuple(part for part in self.unknowns if part.text in text)
        return Word(text, self.place, unknowns)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of JSON or YAML with its place."""

    value: Any
    place: str


def question(unknown: Unknown, fields: Sequence[str] = (), dependents: Sequence[str] = ()) -> tuple[str, str]:
    """Return the place of an unknown value, and a sentence that tells the user how to give it.

    `fields` are the run's fields that need it, and `dependents` the variables that it decides.
    """
    named = [root for root in dict.fromkeys(unknown.roots()) if root.name]
    given = " and ".join(f"{name}=..." for name in fields) if len(fields) <= MOST_FIELDS else ""
    if not named:
        shown = unknown.name or unknown.text
        reason = f" ({unknown.reason})" if unknown.reason else ""
        return unknown.place, (
            f"{shown} is not known here{reason}; give {given}"
            if given
            else f"{shown} is not known here{reason}. Write its value into the script."
        )
    root = named[0]
    reason = root.reason or "no file sets it"
    names = list(dict.fromkeys(part.name for part in named))
    decided = [name for name in dict.fromkeys((unknown.name, *dependents)) if name and name not in names]
    decides = f", and decides {', '.join(decided)}" if decided else ""
    wanted = " ".join(f"{name}=..." for name in names)
    if len(decided) == 1:
        wanted += f" or {decided[0]}=..."
    instead = f", or {given}" if given else ""
    return root.place, f"{root.name} is not known here ({reason}){decides}; give {wanted}{instead}"


# Most fields that a question names as alternatives to the variable that decides them.
MOST_FIELDS = 3


RENDER = "Render the template first (`helm template CHART`)."
"""The fix for a value that is a template of Helm or Jinja."""
FILL_IN = "Fill in the variables first: envsubst < FILE > NEW_FILE."
"""The fix for a variable in a text that no shell reads, such as the command of a container."""


def whole_number(word: Word | Value, what: str) -> int:
    """Convert the word to an integer. Raises ConfigError, which calls the word `what`."""
    text = str(word.text if isinstance(word, Word) else word.value)
    try:
        return int(text)
    except ValueError:
        hint = f" {FILL_IN}" if "$" in text else f" {RENDER}" if "{{" in text else ""
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
