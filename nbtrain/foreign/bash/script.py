"""Represents a script that was read: its commands, and all that affects what they start."""

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

# Programs that run shell scripts.
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
    """Function that returns the commands of a script that the command starts, as in bash -c.

    It takes the script's text, its arguments and its environment.
    """
    read_file: "Callable[[str, Sequence[Runs], Mapping[str, Variable]], list[Command] | None]"
    """Function that returns the commands of a script file by name; None if no such file was given."""
    conditions: tuple[Unknown, ...] = ()
    """Unknown values that determine whether the command runs."""
    is_conditional: bool = False
    """Whether only the running shell knows if the command runs."""
    input: Runs | None = None
    """Text on the command's standard input, e.g. a here-document."""
    at: str = ""
    _words: list[Word] | None = field(default=None, init=False, repr=False)

    @property
    def words(self) -> list[Word]:
        """The command's words, built from `values` once and cached.

        All commands of a script are examined again for every launcher call that is found in it.
        """
        if self._words is None:
            self._words = [word_of(runs, self.at) for runs in self.values]
        return self._words

    @property
    def place(self) -> str:
        """Place of the command, e.g. train.sh:12."""
        return self.at


@dataclass(slots=True)
class Script:
    """The result of reading a script."""

    label: str
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, Word] = field(default_factory=dict)
    documents: dict[str, Word] = field(default_factory=dict)
    """Texts that the script writes to files, by file name. The place of each text is its first line."""
    comments: list[tuple[str, str]] = field(default_factory=list)
    """(place, text) of comments."""
    remarks: list[Finding] = field(default_factory=list)
    """Remarks for the script's author, e.g. about a comment that ends a command."""
    used: set[str] = field(default_factory=set)
    """Names of the variables for which the script used a value from the user."""
    decided: dict[str, str] = field(default_factory=dict)
    """{variable: place where the script sets it} for variables for which the user also gave a value."""
    read: set[str] = field(default_factory=set)
    """Names of other files that the script reads."""
    missing: list[tuple[str, str]] = field(default_factory=list)
    """(place, name) of files that the script sources but that were not given."""
    failed: tuple[str, str] = ("", "")
    """(place, text) of a command whose failure ends the script because of `set -e`; ("", "") without one."""
    unread: dict[str, Unread] = field(default_factory=dict)
    """Forms that the parser does not read, by the name that replaces each form in the tree."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Values and files from outside a script."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Values that the user gave for variables, as in `nbtrain import FILE TP=4`."""
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables that the scheduler or the manifest sets."""
    unset: frozenset[str] = frozenset()
    """Variables that the scheduler is known not to set."""
    open_names: re.Pattern[str] | None = None
    """Pattern of variables that a scheduler or an operator sets, but whose values nbtrain does not know."""
    files: Mapping[str, Word] = field(default_factory=dict)
    """Texts of the other given files by file name, and by their paths in the container that mounts them."""

    def file(self, path: str) -> Word | None:
        """Return the text of the file that the user supplied for `path`, or of one with the same file name.

        None if there is neither.
        """
        return self.files.get(path) or self.files.get(PurePosixPath(path).name)
