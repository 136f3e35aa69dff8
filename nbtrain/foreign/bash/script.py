"""A script that was read: its commands, with everything around them that decides what they start."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from nbtrain.base.findings import Finding
from nbtrain.foreign.bash.syntax_tree import (
    Unread,
)
from nbtrain.foreign.bash.variables import (
    Runs,
    Variable,
    word_of,
)
from nbtrain.foreign.syntax.located import Unknown, Word

# Programs that read a script.
SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}


@dataclass(slots=True)
class Command:
    """A command that the script would start."""

    values: list[Runs]
    environment: dict[str, Word]
    """Assignments VAR=value before the command."""
    exported: Mapping[str, Variable]
    """Variables that the command inherits."""
    read_inner: "Callable[[Runs, Sequence[Runs], Mapping[str, Variable]], list[Command]]"
    """Returns the commands of a script that the command starts (bash -c), with its arguments and
    environment.
    """
    read_file: "Callable[[str, Sequence[Runs], Mapping[str, Variable]], list[Command] | None]"
    """Returns the commands of a script file by its name; None if no such file was passed."""
    conditions: tuple[Unknown, ...] = ()
    """Unknown values that decide whether the command runs."""
    is_conditional: bool = False
    """Whether only the running shell knows that the command runs."""
    input: Runs | None = None
    """Text that the command reads: a here-document."""
    at: str = ""
    _words: list[Word] | None = field(default=None, init=False, repr=False)

    @property
    def words(self) -> list[Word]:
        """Return the values as words, made once: every launch of a script looks at all commands."""
        if self._words is None:
            self._words = [word_of(runs, self.at) for runs in self.values]
        return self._words

    @property
    def place(self) -> str:
        """The place of the command, such as "train.sh:12"."""
        return self.at


@dataclass(slots=True)
class Script:
    """A script after it was read."""

    label: str
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, Word] = field(default_factory=dict)
    documents: dict[str, Word] = field(default_factory=dict)
    """Texts that the script writes into files, by file. Their place is the first line of the text."""
    comments: list[tuple[str, str]] = field(default_factory=list)
    """(place, text) of comments."""
    remarks: list[Finding] = field(default_factory=list)
    """Remarks for the author of the script, such as a comment that ends a command."""
    used: set[str] = field(default_factory=set)
    """Names of the user's values that were needed."""
    decided: dict[str, str] = field(default_factory=dict)
    """{variable: place} of the user's values that the script itself sets."""
    read: set[str] = field(default_factory=set)
    """Other files that the script reads."""
    missing: list[tuple[str, str]] = field(default_factory=list)
    """(place, name) of files that the script sources and that were not passed."""
    failed: tuple[str, str] = ("", "")
    """(place, text) of a command whose failure ends the script, because of `set -e`."""
    unread: dict[str, Unread] = field(default_factory=dict)
    """Forms that the parser does not read, by the name that stands for each in the tree."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Values and files from outside of a script."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the user passed: import FILE TP=4."""
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables that the scheduler or the manifest sets."""
    unset: frozenset[str] = frozenset()
    """Variables that the scheduler is known not to set."""
    open_names: re.Pattern[str] | None = None
    """Variables that a scheduler or an operator sets, but whose value is not known here."""
    files: Mapping[str, Word] = field(default_factory=dict)
    """Texts of the other files that were passed, by file name, and by path where a container mounts them."""

    def file(self, path: str) -> Word | None:
        """Return a file by the path that a script names, or else by its name."""
        return self.files.get(path) or self.files.get(PurePosixPath(path).name)
