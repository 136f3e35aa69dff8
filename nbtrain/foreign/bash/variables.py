"""Represents the values of a script's variables, and how bash's scopes change them.

A value is a sequence of runs: text with the place where it was written, or a part that only the running shell
knows. Values never change, so a subshell, a branch or a function works on a cheap copy of the state.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nbtrain.foreign.syntax.located import Unknown, Word

if TYPE_CHECKING:
    from tree_sitter import Node

    from nbtrain.foreign.bash.syntax_tree import Source


class Run(NamedTuple):
    """A part of a value: text from one place, or a part that only the running shell knows."""

    text: str
    place: str
    quoted: bool = False
    """Whether quotes keep the part from being split, and its * from being a pattern."""
    unknown: Unknown | None = None


Runs = tuple[Run, ...]


def text_of(runs: Runs) -> str:
    """Return the text of a value, with the unknown parts as messages show them."""
    return "".join(run.text for run in runs)


def unknowns_of(runs: Runs) -> tuple[Unknown, ...]:
    """Return the parts of a value that only the running shell knows."""
    return tuple(run.unknown for run in runs if run.unknown)


def word_of(runs: Runs, place: str = "") -> Word:
    """Return a value as a word, whose place is where the first text of the value was written."""
    first = next((run.place for run in runs if run.text), runs[0].place if runs else place)
    return Word(text_of(runs), first, unknowns_of(runs))


def unknown_run(unknown: Unknown, place: str = "") -> Run:
    """Return the run of a part that only the running shell knows."""
    return Run(unknown.text, place or unknown.place, False, unknown)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: a text, a list, or a table (associative array)."""

    elements: dict[str, Runs]
    """Elements by index or key. A text has a single element with the index 0."""
    kind: str = "text"
    """Kind of variable: text, list, table or unset."""
    exported: bool = False
    integer: bool = False

    @property
    def unknown(self) -> Unknown | None:
        """The unknown value, if the variable is a text that consists of nothing else; otherwise None."""
        runs = self.elements.get("0", ())
        return runs[0].unknown if self.kind == "text" and len(runs) == 1 else None

    def same(self, other: "Variable | None") -> bool:
        """Return whether another variable has the same value."""
        if other is None or self.kind != other.kind or self.elements.keys() != other.elements.keys():
            return False
        return all(_same_runs(runs, other.elements[key]) for key, runs in self.elements.items())


def _same_runs(runs: Runs, other: Runs) -> bool:
    if runs is other:
        return True
    if unknowns_of(runs) or unknowns_of(other):
        return [(run.text, run.unknown) for run in runs] == [(run.text, run.unknown) for run in other]
    return text_of(runs) == text_of(other)


def text_variable(runs: Runs, exported: bool = False) -> Variable:
    """Return a variable that holds a text."""
    return Variable({"0": runs}, "text", exported)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the script defines."""

    source: "Source"
    body: "Node"


@dataclass(slots=True)
class State:
    """Variables, functions and arguments at a point of the script."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    arguments: tuple[Runs, ...] | None = None
    """Arguments of the script or the function; None if only the caller knows them."""
    flow: str = ""
    """Statement that skips the following commands (exit, return, break or continue); "" if they run."""
    levels: int = 0
    """Number of loops that `break` or `continue` still has to leave."""
    doubts: tuple[Unknown, ...] = ()
    """Conditions that determine whether the following commands still run."""
    settled: frozenset[str] = frozenset()
    """Variables that were assigned after `sourced` was read, so that the file does not determine them."""
    sourced: Unknown | None = None
    """A file that the script sources but that was not given. It may have set any variable."""
    status: bool | None = True
    """Whether the last command succeeded; None if that is not known."""
    options: frozenset[str] = frozenset()
    """`set` options that are on, e.g. errexit."""

    def copy(self) -> "State":
        """Return the state that a subshell or a branch begins with."""
        return State(
            dict(self.variables),
            dict(self.functions),
            self.arguments,
            self.flow,
            self.levels,
            self.doubts,
            self.settled,
            self.sourced,
            self.status,
            self.options,
        )

    def take(self, other: "State") -> None:
        """Replace the contents of this state with those of another state."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    @property
    def exported(self) -> dict[str, Variable]:
        """The variables that a command inherits if it is started in this state."""
        return {name: variable for name, variable in self.variables.items() if variable.exported}


# A condition that depends on no variable, such as [ -f FILE ].
UNNAMED = Unknown("a condition", "", "", "only a running shell knows it")

Forget = Callable[[str, str, tuple[Unknown, ...], tuple[str, ...]], Variable]


def merge(first: State, second: State, condition: tuple[Unknown, ...], changed_at: Forget) -> State:
    """Return the state after two branches, only one of which was run.

    `changed_at(name, place, condition, choices)` returns the variable for a name that the branches set to
    different values. `place` is where the newer value was set.
    """
    if first.flow == "exit" and second.flow == "exit":
        return first
    if first.flow == "exit":
        return second
    if second.flow == "exit":
        return first
    merged = second.copy()
    for name in [*first.variables, *(name for name in second.variables if name not in first.variables)]:
        one, other = first.variables.get(name), second.variables.get(name)
        if one is other or (one is not None and one.same(other)):
            if one is not None and other is not None and one.exported and not other.exported:
                merged.variables[name] = one
            continue
        merged.variables[name] = _either(name, one, other, condition, changed_at)
    merged.functions = second.functions | first.functions
    if first.arguments != second.arguments:
        merged.arguments = None
    if first.flow != second.flow:
        merged.flow, merged.levels = "", 0
        merged.doubts = (*first.doubts, *(condition or (UNNAMED,)), *second.doubts)
    elif first.doubts != second.doubts:
        merged.doubts = tuple(dict.fromkeys((*first.doubts, *second.doubts)))
    merged.sourced = first.sourced or second.sourced
    merged.settled = first.settled & second.settled
    merged.status = first.status if first.status == second.status else None
    merged.options = first.options & second.options
    return merged


def _either(
    name: str,
    one: Variable | None,
    other: Variable | None,
    condition: tuple[Unknown, ...],
    changed_at: Forget,
) -> Variable:
    """Return a variable that has one of two values."""
    exported = bool((one and one.exported) or (other and other.exported))
    longer, shorter = one, other
    for old, new in ((one, other), (other, one)):
        if old and new and old.kind == new.kind == "text":
            start, end = old.elements.get("0", ()), new.elements.get("0", ())
            added = _added(start, end)
            if added and not unknowns_of(added) and start:
                text = text_of(added)
                blanks = text[: len(text) - len(text.lstrip())]
                place = next((run.place for run in added if run.text.strip()), added[0].place)
                tail = changed_at(name, place, condition, ("", text.lstrip()))
                if tail.unknown is None:
                    return Variable(tail.elements, "text", exported)  # the user gave the value
                between = (Run(blanks, place),) if blanks else ()
                return Variable({"0": (*start, *between, *tail.elements["0"])}, "text", exported)
        if old and new and old.kind == new.kind == "list" and len(new.elements) > len(old.elements):
            more = [runs for key, runs in new.elements.items() if key not in old.elements]
            kept = all(_same_runs(runs, new.elements[key]) for key, runs in old.elements.items())
            if kept and more and not any(unknowns_of(runs) for runs in more):
                text = " ".join(text_of(runs) for runs in more)
                tail = changed_at(name, word_of(more[0]).place, condition, ("", text))
                if tail.unknown is None:
                    return Variable(tail.elements, "text", exported)
                key = next(key for key in new.elements if key not in old.elements)
                return Variable(old.elements | {key: tail.elements["0"]}, "list", exported)
    newer = longer if longer is not None and longer is not shorter else shorter
    places = [_place(variable) for variable in (one, other) if variable and variable.kind != "unset"]
    texts = [
        text_of(variable.elements["0"])
        for variable in (one, other)
        if variable and variable.kind == "text" and not unknowns_of(variable.elements.get("0", ()))
    ]
    place = places[0] if places else ""
    if newer is None or not place:
        place = next((unknown.place for unknown in condition if unknown.place), place)
    found = changed_at(name, place, condition, tuple(texts) if len(texts) == 2 else ())
    return Variable(found.elements, found.kind, exported)


def _place(variable: Variable) -> str:
    return next((run.place for runs in variable.elements.values() for run in runs if run.place), "")


def _added(start: Runs, end: Runs) -> Runs:
    """Return what `end` appends to `start`; () if `end` does not begin with `start`."""
    if len(end) < len(start):
        return ()
    for run, other in zip(start, end):
        if (run.text, run.unknown) != (other.text, other.unknown):
            return ()
    return end[len(start) :]


def without_duplicates(unknowns: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """Return the unknown values without duplicates, in order."""
    return tuple(dict.fromkeys(unknowns))
