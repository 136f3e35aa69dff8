"""The simulated shell: a script's variables, files and blocks, and what is certain about them.

For a variable that the script does not set, Shell.variable() returns the user's value if one was given, and
otherwise a value that only the running shell knows.

A Shell does not implement any statement itself. Its Language has a function for each statement and builtin
(statements.py, builtins.py); each function takes the shell and changes the shell's state as the statement
would.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.arithmetic import NotArithmetic
from nbtrain.foreign.bash.cut_commands import report_cut_commands
from nbtrain.foreign.bash.expansion import Expansion, literal_unknown
from nbtrain.foreign.bash.patterns import Undecided
from nbtrain.foreign.bash.script import Script, Surroundings
from nbtrain.foreign.bash.syntax_tree import (
    Source,
    Unread,
    comments,
    parse,
    source_of,
    source_of_parts,
)
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    State,
    Variable,
    merge,
    text_of,
    text_variable,
    unknown_run,
    without_duplicates,
    word_of,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node

# Maximum number of characters of all substitutions: more than any command line has, but few enough for
# memory.
MOST_CHARACTERS = 5_000_000
# Maximum number of steps (statements and words of commands), which take a few seconds, and of a loop's
# rounds.
MOST_STEPS = 20_000
MOST_ROUNDS = 1000
# Maximum depth of nested calls of functions, `source`, `eval` and `bash -c`.
MOST_CALLS = 20

# Variables that bash or the login sets, so that ${X:-default} does not yield the default.
SHELL_SETS = {
    *("BASH", "BASHPID", "BASH_REMATCH", "BASH_SOURCE", "BASH_VERSION", "DIRSTACK", "EPOCHSECONDS", "EUID"),
    *("FUNCNAME", "GROUPS", "HOME", "HOSTNAME", "HOSTTYPE", "LINENO", "LOGNAME", "MACHTYPE", "OLDPWD"),
    *("OSTYPE", "PATH", "PIPESTATUS", "PPID", "PWD", "RANDOM", "SECONDS", "SHELL", "SHLVL", "UID", "USER"),
}
# Statements whose failure ends the script after `set -e`.
_MAY_FAIL = {"command", "variable_assignment", "test_command", "subshell", "pipeline"}
# Nodes of the tree that are not part of a statement.
IGNORED = {
    "comment",
    "heredoc_body",
    "heredoc_start",
    "heredoc_end",
    "file_descriptor",
}


@dataclass(frozen=True, slots=True)
class Language:
    """The functions that a Shell calls to simulate each kind of statement and each builtin."""

    statements: Mapping[str, "Callable[[Shell, Node], None]"]
    """Functions by the node type of a statement."""
    builtins: Mapping[str, "Callable[[Shell, list[Runs], str], None]"]
    """Functions by the name of a builtin; each takes the command's words and their place."""
    substitute: "Callable[[Shell, Source, Node], Runs]"
    """Function that returns what $( ... ) prints."""


class Shell:
    """A shell at a point in a script: its variables, and everything that affects the next statement."""

    def __init__(self, language: Language, script: Script, around: Surroundings):
        self.language, self.script, self.around = language, script, around
        self.state = State()
        for name, word in around.environment.items():
            runs = (Run(word.text, word.place),)
            if word.unknowns:
                runs = (unknown_run(word.unknowns[0]),)
            self.state.variables[name] = text_variable(runs, True)
        for name in around.unset:
            self.state.variables[name] = Variable({}, "unset")
        if positions := [int(name) for name in around.given if name.isdigit() and int(name) < 100]:
            self.state.arguments = tuple(
                (Run(around.given.get(str(at), ""), "the command line"),)
                for at in range(1, max(positions) + 1)
            )
            script.used |= {name for name in around.given if name.isdigit()}
        self.commands = script.commands
        self.source = source_of("", f"{script.label}:1")
        self.expansion = Expansion(self, self.source)
        self.room = MOST_CHARACTERS
        self.steps = 0
        self.calls = 0
        self.extglob = False
        """Whether shopt allows forms such as @(a|b) in ${X%PATTERN}."""
        self.names: dict[str, str] = {}
        """{other name: variable} set by declare -n."""
        self.frames: list[dict[str, Variable | None]] = []
        self.departures = 0
        """Number of simulated statements so far that leave more than one loop, such as `return` or `break 2`.
        """
        self.conditions: list[tuple[Unknown, ...]] = []
        """Unknown values in the conditions around the current statement."""
        self.in_condition = False
        self.tested = 0
        """Number of enclosing statements that test a status, so that a failure does not end the script."""
        self.stdin: Runs | None = None
        self.sink: list[Run] | None = None
        """Output collected so far for a substitution or a pipe; None if output is not collected."""
        self.certain = 0, 0
        """(number of `conditions`, number of doubts in the state) when `sink` was created.

        Output that is printed while there are more conditions or doubts may be missing when the script runs.
        """
        self.causes: tuple[Unknown, ...] = ()
        """Unknown values that the last command's status depends on, if the status is unknown."""
        self.silent = 0
        """Number of enclosing statements whose commands are not recorded, such as a loop of unknown length.
        """

    def variable(self, name: str, place: str) -> Variable | None:
        """Return a variable, or None if it is certainly not set.

        A variable that the script does not set has the user's value, if one was given. Otherwise only the
        running shell knows its value.
        """
        if form := self.script.unread.get(name):
            reason = f"nbtrain does not read {form.shown}"
            return text_variable((unknown_run(Unknown(form.text, "", form.place, reason)),))
        variable = self.state.variables.get(name)
        if variable is None and name in ("IFS", "OPTIND"):
            return None
        sourced = self.state.sourced
        if sourced is not None and name not in self.state.settled and place:
            return self.lost(name, sourced.place, sourced.reason)
        if variable is not None:
            return None if variable.kind == "unset" else variable
        if name in self.around.given:
            self.script.used.add(name)
            return text_variable((Run(self.around.given[name], "the command line"),))
        reason = "the shell sets it" if name in SHELL_SETS else ""
        return text_variable((unknown_run(Unknown(literal_unknown(name), name, place, reason)),))

    def arguments(self) -> tuple[Runs, ...] | None:
        """Return the positional arguments, or None if only the caller knows them."""
        return self.state.arguments

    def has_option(self, name: str) -> bool:
        """Return whether `set` has turned an option on, such as noglob."""
        return name in self.state.options

    def is_settable(self, name: str) -> bool:
        """Return whether a scheduler or an operator may set a variable that the script does not set."""
        return bool(self.around.open_names and self.around.open_names.fullmatch(name))

    def spend(self, characters: int, place: str, name: str) -> None:
        """Count substituted characters. Raises ConfigError if a script produces too many."""
        self.room -= characters
        if self.room < 0:
            raise ConfigError(
                f"{place}: the script's variables expand to more than {MOST_CHARACTERS:,} "
                f"characters at {name}; no command line is that long. Check what the script appends to "
                f"{name} in a loop."
            )

    def lost(
        self,
        name: str,
        place: str,
        reason: str,
        causes: tuple[Unknown, ...] = (),
        choices: tuple[str, ...] = (),
    ) -> Variable:
        """Return the new value of a variable that is set to something unknown.

        The new value is the user's if one was given, otherwise an unknown value with the `reason`.
        """
        if name in self.around.given:
            self.script.used.add(name)
            return text_variable((Run(self.around.given[name], place),))
        causes = _other_causes(name, causes)
        unknown = Unknown(literal_unknown(name), name, place, reason, causes, choices)
        return text_variable((unknown_run(unknown),))

    def assign(self, name: str, variable: Variable) -> None:
        """Set a variable. If only the running shell knows the value, use the user's value, if given."""
        old = self.state.variables.get(name)
        exported = variable.exported or bool(old and old.exported)
        runs = [run for value in variable.elements.values() for run in value]
        if name in self.around.given and not self.silent:
            if any(run.unknown for run in runs):
                place = next((run.place for run in runs if run.place), "")
                self.script.used.add(name)
                variable = text_variable((Run(self.around.given[name], place),))
            elif runs and runs[0].place != "the command line":
                self.script.decided.setdefault(name, runs[0].place)
        elif name in self.around.given and any(run.unknown for run in runs):
            variable = text_variable((Run(self.around.given[name], ""),))
        if old is not None and old.integer and variable.kind == "text" and not variable.unknown:
            try:
                number = self.expansion.number(text_of(variable.elements.get("0", ())), "")
                place = runs[0].place if runs else ""
                variable = text_variable((Run(str(number), place),))
            except (Undecided, NotArithmetic):
                variable = self.lost(
                    name,
                    runs[0].place if runs else "",
                    "it is an integer variable, and its new value is not known",
                )
        integer = variable.integer or bool(old and old.integer)
        variable = Variable(_owned(name, variable), variable.kind, exported, integer)
        if self.state.doubts:
            before = State({name: old} if old else {})
            after = State({name: variable})
            merged = merge(before, after, self.state.doubts, self.changed)
            variable = merged.variables[name]
        self.state.variables[name] = variable
        if self.state.sourced is not None:
            self.state.settled |= {name}
        if target := self.names.get(name):
            place = next((run.place for run in runs if run.place), "")
            self.state.variables[target] = self.lost(
                target, place, f"{name} is a reference to it (declare -n)"
            )

    def changed(
        self, name: str, place: str, causes: tuple[Unknown, ...], choices: tuple[str, ...]
    ) -> Variable:
        """Return the value of a variable that two branches set differently."""
        return self.lost(name, place, "it depends on a condition", without_duplicates(causes), choices)

    def file(self, source: Source, with_comments: bool = False) -> None:
        """Simulate the statements of a source in the current state."""
        before = self.source, self.expansion
        tree = parse(source)
        root, source = tree.root, tree.source
        self._note_unread(tree.unread)
        self.source, self.expansion = source, Expansion(self, source)
        if with_comments:
            for node in comments(root):
                self.script.comments.append((source.place_of(node), source.of(node)))
            report_cut_commands(self.script, source, root)
        self.block(root.children)
        self.source, self.expansion = before

    def _note_unread(self, unread: Sequence[Unread]) -> None:
        """Record the forms that the parser does not read, and report those that are statements."""
        for form in unread:
            self.script.unread[form.name] = form
            if form.is_statement and not self.silent:
                self.script.remarks.append(
                    Finding(
                        "warning",
                        "bash_is_read",
                        "",
                        form.place,
                        f"nbtrain does not read this form of bash: {form.shown}. The variables that it sets "
                        "are not known.",
                        "If the training uses one of these variables, write this line in another form.",
                        Cost(words="values that you have to add by hand"),
                    )
                )

    def block(self, nodes: Sequence["Node"]) -> None:
        """Simulate statements, some of which may run in the background."""
        for number, node in enumerate(nodes):
            if self.state.flow:
                return
            if not node.is_named or node.type in IGNORED:
                continue
            following = nodes[number + 1] if number + 1 < len(nodes) else None
            if following is not None and following.type == "&":
                self.apart(node)
                self.set_status(True)
            else:
                self.statement(node)

    def apart(self, node: "Node") -> None:
        """Simulate a statement in a subshell, whose assignments are lost."""
        state = self.state
        self.state = state.copy()
        self.statement(node)
        status = self.state.status
        self.state = state
        self.state.status = status

    def set_status(self, status: bool | None, causes: tuple[Unknown, ...] = ()) -> None:
        """Set the status of the last command, and the unknown values that the status depends on."""
        self.state.status, self.causes = status, causes

    def statement(self, node: "Node") -> None:
        """Simulate one statement."""
        self.step_on(1, self.source.place_of(node))
        follow = self.language.statements.get(node.type)
        if follow is not None:
            follow(self, node)
        else:
            self.block(node.children)
        fails = node.type in _MAY_FAIL or (
            node.type == "compound_statement" and node.children[0].type == "(("
        )
        if fails and self.state.status is False and not self.state.flow:
            self._fail(node)

    def _fail(self, node: "Node") -> None:
        """End the script after a failing command, if `set -e` is on and nothing tests the status."""
        if "errexit" not in self.state.options or self.tested:
            return
        self.state.flow = "exit"
        self.departures += 1
        if not self.silent and not self.script.failed[0]:
            text = self.source.of(node).partition("\n")[0]
            self.script.failed = self.source.place_of(node), shortened(text)

    def step_on(self, steps: int, place: str) -> None:
        """Count steps. Raises ConfigError if a script's loops take too many."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise ConfigError(
                f"{place}: the script's loops take more than {MOST_STEPS:,} steps (statements and words of "
                "commands). Give a script with the values of a single training."
            )

    def text_source(self, text: Runs) -> Source:
        """Return the source of a text that a shell reads. A new variable replaces each unknown part."""
        parts: list[tuple[str, str]] = []
        for run in text:
            if run.unknown is None:
                parts.append((run.text, run.place or f"{self.script.label}:1"))
                continue
            name = f"nbtrain_unknown_{len(self.state.variables)}"
            self.state.variables[name] = text_variable((run,))
            if self.state.sourced is not None:
                self.state.settled |= {name}
            parts.append((f"${{{name}}}", run.place or f"{self.script.label}:1"))
        return source_of_parts(parts)

    def under(self, causes: tuple[Unknown, ...], follow: Callable[[], None]) -> None:
        """Simulate statements that may or may not run, by calling `follow`.

        `causes` are the unknown values that decide whether the statements run.
        """
        stdin = self.stdin
        self.conditions.append(causes)
        follow()
        self.conditions.pop()
        if self.stdin is not stdin:
            # Only the shell knows whether lines were read.
            reason = "a condition determines which lines are read"
            self.stdin = (unknown_run(Unknown("the input", "", "", reason, causes)),)

    def fork(
        self, causes: tuple[Unknown, ...], follow: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Simulate two branches. Only the running shell knows which of them runs."""
        start = self.state.copy()
        self.under(causes, follow)
        first, self.state = self.state, start
        self.under(causes, otherwise)
        self.state = merge(first, self.state, causes, self.changed)
        self.causes = causes

    def condition(self, nodes: Sequence["Node"]) -> tuple[bool | None, tuple[Unknown, ...]]:
        """Simulate a condition's commands. Return whether it holds, and the unknown values it depends on.

        The first value is None if only the running shell knows the result.
        """
        before, self.in_condition = self.in_condition, True
        self.causes = ()
        self.tested += 1
        self.block(nodes)
        self.tested -= 1
        self.in_condition = before
        return self.state.status, self.causes if self.state.status is None else ()

    def restore(self, before: Mapping[str, Variable | None]) -> None:
        """Restore variables to their values before a call."""
        for name, variable in before.items():
            if variable is None:
                self.state.variables.pop(name, None)
            else:
                self.state.variables[name] = variable

    def substitute(self, source: Source, node: "Node") -> Runs:
        """Return what $( ... ) prints, without trailing line ends."""
        return self.language.substitute(self, source, node)

    def finish(self) -> None:
        """Record the variables that the script exports."""
        for name, variable in self.state.variables.items():
            if variable.exported and name not in self.around.environment and variable.kind == "text":
                self.script.exported[name] = word_of(variable.elements.get("0", ()), f"{self.script.label}:1")


def _other_causes(name: str, causes: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """Return the unknown values (causes) that determine the variable `name`.

    A cause with the variable's own name comes from an earlier round of a loop. It is replaced by the causes
    that it has itself.
    """
    return without_duplicates(
        part
        for cause in causes
        for part in (cause.causes if cause.causes and cause.name == name else (cause,))
    )


def _owned(name: str, variable: Variable) -> dict[str, Runs]:
    """Return a variable's elements, with all parts unquoted.

    An unknown part without a name, such as the output of a command, gets the name of the variable.
    """
    elements = {}
    for key, runs in variable.elements.items():
        kept = []
        for run in runs:
            unknown = run.unknown
            if unknown is not None and not unknown.name:
                causes = _other_causes(
                    name, (part for cause in unknown.causes for part in named_causes(cause))
                )
                unknown = Unknown(unknown.text, name, unknown.place, unknown.reason, causes, unknown.choices)
            kept.append(Run(run.text, run.place, False, unknown))
        elements[key] = tuple(kept)
    return elements


def named_causes(unknown: Unknown) -> Iterator[Unknown]:
    """Yield an unknown value or, if it has no name, the named values that it depends on."""
    if unknown.name:
        yield unknown
    else:
        for cause in unknown.causes:
            yield from named_causes(cause)
