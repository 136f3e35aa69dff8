"""Represents words and values in the user's files with their places, so that messages name file and line."""

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
    """The part as messages show it, e.g. $1, ${TP} or $(nvidia-smi -L)."""
    name: str = ""
    """Name of the variable that holds the part; "" for the output of a command that no variable holds."""
    place: str = ""
    """Place at which the value was lost, e.g. train.sh:12."""
    reason: str = ""
    """Clause that says why the value is not known; "" if no file sets the variable."""
    causes: tuple["Unknown", ...] = ()
    """Unknown values that determine this value, e.g. the variables in the condition of its assignment."""
    choices: tuple[str, ...] = ()
    """The texts that the part may have, if they are known."""
    is_set: bool = False
    """Whether the part is certainly set and not empty, e.g. the number of a Slurm job."""

    @property
    def is_absent(self) -> bool:
        """Whether no file sets the variable, so that only the environment can set it."""
        return bool(self.name) and not self.reason

    def roots(self) -> Iterator["Unknown"]:
        """Yield the unknown values that finally determine this value; the value itself without causes."""
        if self.causes and all(cause.name for cause in self.causes):
            for cause in self.causes:
                yield from cause.roots()
        else:
            yield self


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line, or a value in a manifest."""

    text: str
    place: str
    """Place of the word, e.g. train.sh:12."""
    unknowns: tuple[Unknown, ...] | None = None
    """Parts that only the running shell knows. None for a word that no shell expands, whose text is final."""

    @property
    def from_outside(self) -> str:
        """The first part of the word that only the running shell knows, e.g. $1; "" without such a part."""
        if self.unknowns is not None:
            return self.unknowns[0].text if self.unknowns else ""
        match = OUTSIDE.search(self.text)
        return match.group(0) if match else ""

    @property
    def is_outside(self) -> bool:
        """Whether the entire word is one part that only the running shell knows."""
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
    """A JSON or YAML value with its place."""

    value: Any
    place: str


def question(unknown: Unknown, fields: Sequence[str] = (), dependents: Sequence[str] = ()) -> tuple[str, str]:
    """Return the place of an unknown value, and a sentence that tells the user how to provide it.

    `fields` are the run's fields that need the value; `dependents` are the variables that it determines.
    """
    named = [root for root in dict.fromkeys(unknown.roots()) if root.name]
    given = " and ".join(f"{name}=..." for name in fields) if len(fields) <= MOST_FIELDS else ""
    if not named:
        shown = unknown.name or unknown.text
        reason = f" ({unknown.reason})" if unknown.reason else ""
        fix = f"Add {given} to the command." if given else "Write the value into the script."
        return unknown.place, f"the value of {shown} is not known{reason}. {fix}"
    root = named[0]
    is_argument = root.name.isdigit()  # $1
    shown = f"${root.name}" if is_argument else root.name
    reason = root.reason or ("it is an argument of the script" if is_argument else "no file sets it")
    names = list(dict.fromkeys(part.name for part in named))
    decided = [name for name in dict.fromkeys((unknown.name, *dependents)) if name and name not in names]
    decides = f", which determines {', '.join(decided)}," if decided else ""
    wanted = " ".join(f"{name}=..." for name in names)
    if len(decided) == 1:
        wanted += f" or {decided[0]}=..."
    instead = f", or {given}," if given else ""
    return root.place, (
        f"the value of {shown}{decides} is not known ({reason}). Add {wanted}{instead} to the command."
    )


# Maximum number of fields that a question offers as alternatives to the variable that determines them.
MOST_FIELDS = 3


RENDER = "Render the template first (`helm template CHART`)."
"""Fix for a value that is a Helm or Jinja template."""
FILL_IN = "Fill in the variables first: envsubst < FILE > NEW_FILE."
"""Fix for a variable in a text that no shell reads, such as a container's command."""


def whole_number(word: Word | Value, what: str) -> int:
    """Convert a word to an integer. Raises ConfigError, whose message calls the value `what`."""
    text = str(word.text if isinstance(word, Word) else word.value)
    try:
        return int(text)
    except ValueError:
        hint = f" {FILL_IN}" if "$" in text else f" {RENDER}" if "{{" in text else ""
        raise ConfigError(
            f"{word.place}: {what} = {printable(text)}: the value must be a whole number.{hint}"
        ) from None


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def quantity(word: Value, what: str) -> float:
    """Convert a Kubernetes quantity such as "8", "500m" or "16Gi" to a number.

    Raises ConfigError, whose message calls the value `what`.
    """
    text = str(word.value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[kMGTP]i?|Ki)?", text)
    if not match:
        raise ConfigError(
            f"{word.place}: {what} = {printable(text)}: the value must be a number with a unit such as m, Mi "
            "or Gi."
        )
    number, unit = float(match.group(1)), match.group(2) or ""
    return number / 1000 if unit == "m" else number * _UNITS[unit]
