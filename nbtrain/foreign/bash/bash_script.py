"""The commands that a bash script would start, with everything substituted that can be known. Nothing is run.

    text -> tree (syntax_tree.py) -> statements, in order, on a state (variables.py)
         -> words (expansion.py) -> Command

A value that only the running shell knows becomes Unknown, with the line at which it was lost. Where a
condition is not decided, both branches are followed, and what they set differently is unknown afterwards.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.arithmetic import NotArithmetic
from nbtrain.foreign.bash.command_output import NotComputed, output_of
from nbtrain.foreign.bash.expansion import Expansion, literal_unknown
from nbtrain.foreign.bash.patterns import Condition, Token, Undecided, matches
from nbtrain.foreign.bash.syntax_tree import (
    SPACE_AFTER_BACKSLASH,
    BashSyntaxError,
    Source,
    Unread,
    adjacent,
    comments,
    cut_by_comment,
    parse,
    source_of,
    source_of_parts,
)
from nbtrain.foreign.bash.variables import (
    UNNAMED,
    Function,
    Run,
    Runs,
    State,
    Variable,
    merge,
    text_of,
    text_variable,
    unknown_run,
    unknowns_of,
    without_duplicates,
    word_of,
)
from nbtrain.foreign.syntax.located import Unknown, Word

if TYPE_CHECKING:
    from tree_sitter import Node

# Most characters of all substitutions: more than any command line has, and few enough to hold in memory.
MOST_CHARACTERS = 5_000_000
# Most statements that are followed and words of commands, which take a few seconds; most rounds of a loop.
MOST_STEPS = 20_000
MOST_ROUNDS = 1000
# Most nested calls of functions, `source`, `eval` and `bash -c`.
MOST_CALLS = 20

# Variables that bash or the login sets, so that ${X:-default} is not the default.
SHELL_SETS = {
    *("BASH", "BASHPID", "BASH_REMATCH", "BASH_SOURCE", "BASH_VERSION", "DIRSTACK", "EPOCHSECONDS", "EUID"),
    *("FUNCNAME", "GROUPS", "HOME", "HOSTNAME", "HOSTTYPE", "LINENO", "LOGNAME", "MACHTYPE", "OLDPWD"),
    *("OSTYPE", "PATH", "PIPESTATUS", "PPID", "PWD", "RANDOM", "SECONDS", "SHELL", "SHLVL", "UID", "USER"),
}
SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
# Commands run for their exit status, which cannot be known here; all others are assumed to succeed.
QUESTIONS = {"egrep", "grep", "command", "which", "type", "pgrep", "diff", "cmp", "ls", "hash", "ping", "nc"}
# Files that prepare paths and modules; they are assumed to set no value of the training.
SETUP_FILES = re.compile(
    r"(?:.*/)?(?:(?:de)?activate|set_?env|setvars|env_npu|\.?bashrc|\.?(?:bash_)?profile|conda|mamba|nvm|"
    r"modules?|lmod|init_conda)(?:\.sh|\.bash)?|/(?:etc|usr|opt)/.*"
)
_SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
# Options of `set` that change what is read, by their letters.
_SET_OPTIONS = {"e": "errexit", "u": "nounset", "f": "noglob"}
# Statements that end the script by their failure after `set -e`.
_MAY_FAIL = {"command", "variable_assignment", "test_command", "subshell", "pipeline"}
_OPTION_VALUES = {"read": "dinNptu", "mapfile": "CcdnOsu", "readarray": "CcdnOsu"}
_IGNORED = {
    "comment",
    "heredoc_body",
    "heredoc_start",
    "heredoc_end",
    "file_descriptor",
}


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


def read_script(text: str | Word, label: str, around: Surroundings | None = None) -> Script:
    """Read a script. Raises ConfigError, with the line, if it is not a bash script."""
    word = text if isinstance(text, Word) else Word(text, f"{label}:1")
    script = Script(label)
    evaluator = _Evaluator(script, around or Surroundings())
    try:
        evaluator.file(source_of(word.text, word.place), True)
    except RecursionError:
        raise ConfigError(f"{label}: nested too deeply for the script of a job.") from None
    evaluator.finish()
    return script


def command_of_words(
    words: Sequence[Word], label: str, around: Surroundings, script: Script | None = None
) -> Command:
    """Return a command that no shell starts, such as the words of a manifest."""
    evaluator = _Evaluator(script or Script(label), around)
    values: list[Runs] = []
    for word in words:
        if word.unknowns:
            values.append((Run(word.text, word.place, True, word.unknowns[0]),))
        else:
            values.append((Run(word.text, word.place, True),))
    return evaluator.command(values, {}, None, words[0].place if words else f"{label}:1")


class _Evaluator:
    """Follows the statements in order."""

    def __init__(self, script: Script, around: Surroundings):
        self.script, self.around = script, around
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
        """Whether shopt lets ${X%PATTERN} have forms such as @(a|b)."""
        self.names: dict[str, str] = {}
        """{other name: variable} of declare -n."""
        self.frames: list[dict[str, Variable | None]] = []
        self.departures = 0
        """Number of `return`, `break 2` and `continue 2` that were followed, which leave more than a loop."""
        self.conditions: list[tuple[Unknown, ...]] = []
        """Unknown values of the conditions around the current statement."""
        self.in_condition = False
        self.tested = 0
        """Number of surrounding parts whose status is tested, so that their failure ends nothing."""
        self.stdin: Runs | None = None
        self.sink: list[Run] | None = None
        """Output of commands that is substituted or piped; None if it is not kept."""
        self.certain = 0, 0
        """Conditions and doubts around the beginning of the sink; what is printed under more of them may be
        missing.
        """
        self.causes: tuple[Unknown, ...] = ()
        """Unknown values that decide an unknown status of the last command."""
        self.silent = 0
        """Number of surrounding parts whose commands are not recorded, such as a loop of unknown length."""

    # --- what expansions ask ------------------------------------------------------------------------

    def variable(self, name: str, place: str) -> Variable | None:
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
        return self.state.arguments

    def has_option(self, name: str) -> bool:
        return name in self.state.options

    def is_settable(self, name: str) -> bool:
        return bool(self.around.open_names and self.around.open_names.fullmatch(name))

    def spend(self, characters: int, place: str, name: str) -> None:
        self.room -= characters
        if self.room < 0:
            raise ConfigError(
                f"{place}: the script's variables expand to more than {MOST_CHARACTERS:,} "
                f"characters at {name}; no command line is that long."
            )

    def lost(
        self,
        name: str,
        place: str,
        reason: str,
        causes: tuple[Unknown, ...] = (),
        choices: tuple[str, ...] = (),
    ) -> Variable:
        """Return a variable whose value only the running shell knows, or the one that the user passed."""
        if name in self.around.given:
            self.script.used.add(name)
            return text_variable((Run(self.around.given[name], place),))
        causes = _other_causes(name, causes)
        unknown = Unknown(literal_unknown(name), name, place, reason, causes, choices)
        return text_variable((unknown_run(unknown),))

    def assign(self, name: str, variable: Variable) -> None:
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
                variable = self.lost(name, runs[0].place if runs else "", "its number is not known")
        integer = variable.integer or bool(old and old.integer)
        variable = Variable(_owned(name, variable), variable.kind, exported, integer)
        if self.state.doubts:
            before = State({name: old} if old else {})
            after = State({name: variable})
            merged = merge(before, after, self.state.doubts, self._changed)
            variable = merged.variables[name]
        self.state.variables[name] = variable
        if self.state.sourced is not None:
            self.state.settled |= {name}
        if target := self.names.get(name):
            place = next((run.place for run in runs if run.place), "")
            self.state.variables[target] = self.lost(target, place, f"{name} is another name for it")

    def _changed(
        self, name: str, place: str, causes: tuple[Unknown, ...], choices: tuple[str, ...]
    ) -> Variable:
        return self.lost(name, place, "a condition decides it", without_duplicates(causes), choices)

    # --- files and blocks ---------------------------------------------------------------------------

    def file(self, source: Source, with_comments: bool = False) -> None:
        """Follow the statements of a source in the current state."""
        before = self.source, self.expansion
        tree = parse(source)
        root, source = tree.root, tree.source
        self._note_unread(tree.unread)
        self.source, self.expansion = source, Expansion(self, source)
        if with_comments:
            for node in comments(root):
                self.script.comments.append((source.place_of(node), source.of(node)))
            self._find_cut_commands(root)
        self.block(root.children)
        self.source, self.expansion = before

    def _note_unread(self, unread: Sequence[Unread]) -> None:
        """Keep the forms that the parser does not read, and report the statements among them."""
        for form in unread:
            self.script.unread[form.name] = form
            if form.is_statement and not self.silent:
                self.script.remarks.append(
                    Finding(
                        "warning",
                        "bash_is_read",
                        "",
                        form.place,
                        f"nbtrain does not read this form of bash: {form.shown}. What it sets is not known.",
                        "Write it in another form if it sets a value of the training.",
                        Cost(words="values that have to be given by hand"),
                    )
                )

    def _skip_unread(self, form: Unread, place: str) -> None:
        """Follow a statement that the parser does not read: every variable that it names may change."""
        reason = f"nbtrain does not read {form.shown}, which may set it"
        for name in dict.fromkeys(re.findall(r"(?<![\w$])(?:\$\{)?([A-Za-z_]\w*)", form.text)):
            if name in self.state.variables or re.search(rf"(?<!\w){name}(\[[^\]]*\])?\+?=", form.text):
                self.assign(name, self.lost(name, place, reason))
        if not self.silent:
            self.commands.append(self.command([(Run(form.text, place, True),)], {}, None, place))
        self._set_status(None)

    def _find_cut_commands(self, root: "Node") -> None:
        """Report comments and spaces that end a command which looks continued."""
        for node in comments(root):
            if cut_by_comment(self.source, node) and (rest := self._rest_after(node.end_byte)):
                place = self.source.place_of(node)
                text = shortened(self.source.of(node).strip())
                self._report_cut(place, f"the comment {text}", rest, "Move the comment out of the command.")
        for match in re.finditer(SPACE_AFTER_BACKSLASH.pattern.encode(), self.source.text):
            if not _is_code(root, match.start()):
                continue
            self._report_cut(
                self.source.place(match.start()),
                "the space after the backslash",
                self._rest_after(match.start()),
                "Make the backslash the last character of its line.",
            )

    def _rest_after(self, byte: int) -> str:
        """Return the first words of the line after the line that holds a byte."""
        start = self.source.text.find(b"\n", byte) + 1
        end = self.source.text.find(b"\n", start)
        return _first_words(self.source.slice(start, end)) if 0 < start <= end else ""

    def _is_cut_before(self, place: str) -> bool:
        """Return whether the line before a place is reported as one that ends its command."""
        label, _, line = place.rpartition(":")
        return f"{label}:{int(line) - 1}" in [remark.place for remark in self.script.remarks]

    def _report_cut(self, place: str, what: str, rest: str, fix: str) -> None:
        lost = f": {shortened(rest)} is not part of it" if rest.startswith("-") else ""
        self.script.remarks.append(
            Finding(
                "warning",
                "commands_are_not_cut",
                "",
                place,
                f"{what} ends the command, as bash reads it{lost}.",
                fix,
                Cost(words="flags that the program never receives"),
            )
        )

    def block(self, nodes: Sequence["Node"]) -> None:
        """Follow statements, some of which may be run in the background."""
        for number, node in enumerate(nodes):
            if self.state.flow:
                return
            if not node.is_named or node.type in _IGNORED:
                continue
            following = nodes[number + 1] if number + 1 < len(nodes) else None
            if following is not None and following.type == "&":
                self._apart(node)
                self._set_status(True)
            else:
                self.statement(node)

    def _apart(self, node: "Node") -> None:
        """Follow a statement in a subshell: what it sets is lost."""
        state = self.state
        self.state = state.copy()
        self.statement(node)
        status = self.state.status
        self.state = state
        self.state.status = status

    def _set_status(self, status: bool | None, causes: tuple[Unknown, ...] = ()) -> None:
        self.state.status, self.causes = status, causes

    def statement(self, node: "Node") -> None:
        """Follow one statement."""
        self._step_on(1, self.source.place_of(node))
        follow = _STATEMENTS.get(node.type)
        if follow is not None:
            follow(self, node)
        elif node.type in ("word", "concatenation", "string", "simple_expansion", "expansion"):
            self._simple(node, [node])
        else:
            self.block(node.children)
        fails = node.type in _MAY_FAIL or (
            node.type == "compound_statement" and node.children[0].type == "(("
        )
        if fails and self.state.status is False and not self.state.flow:
            self._fail(node)

    def _fail(self, node: "Node") -> None:
        """End the script after a command that fails, if `set -e` is on and nothing tests its status."""
        if "errexit" not in self.state.options or self.tested:
            return
        self.state.flow = "exit"
        self.departures += 1
        if not self.silent and not self.script.failed[0]:
            text = self.source.of(node).partition("\n")[0]
            self.script.failed = self.source.place_of(node), shortened(text)

    def _step_on(self, steps: int, place: str) -> None:
        """Count steps, and refuse a script whose loops take too many."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise ConfigError(
                f"{place}: the script's loops take more than {MOST_STEPS:,} steps, which are statements and "
                "words of commands. Give a script with the values of one training."
            )

    # --- simple commands ----------------------------------------------------------------------------

    def _command(self, node: "Node") -> None:
        self._simple(node, node.children)

    def _simple(self, node: "Node", children: Sequence["Node"]) -> None:
        """Follow a simple command: assignments, words and redirections."""
        outer_stdin, outer_sink, outer_certain = self.stdin, self.sink, self.certain
        own = [child for child in children if child.type in ("file_redirect", "herestring_redirect")]
        written: list[tuple[str, bool]] = []
        for child in own:
            if child.type == "file_redirect":
                self._redirect(child, written, [])
        if written:
            self.sink, self.certain = [], (len(self.conditions), len(self.state.doubts))
        self._run_words(node, children)
        if written:
            printed = _collapsed(tuple(self.sink or ()))
            self.sink, self.certain = outer_sink, outer_certain
            self._write(written[-1][0], printed, written[-1][1])
        if own:
            self.stdin = outer_stdin  # otherwise `read` has taken a line of what surrounds it

    def _run_words(self, node: "Node", children: Sequence["Node"]) -> None:
        assignments: list[tuple[str, Variable]] = []
        words: list[Runs] = []
        place = self.source.place_of(node)
        before, self.state.status = self.state.status, True
        end = children[0].start_byte if children else node.start_byte
        for child, *more in adjacent(self.source, children):
            gap = self.source.slice(end, child.start_byte)
            end = (more[-1] if more else child).end_byte
            if SPACE_AFTER_BACKSLASH.search(gap):
                words.append((Run(" ", self.source.place(child.start_byte), True),))
            if child.type == "variable_assignment" and not words:
                name, variable = self._assignment(child, following=more)
                assignments += [(name, variable)] if name else []
            elif child.type in ("file_redirect", "herestring_redirect"):
                if child.type == "herestring_redirect":
                    self.stdin = self._herestring(child)
                else:
                    words += self._words_in_redirect(child)
            elif child.is_named and child.type not in _IGNORED:
                # The * of `let N=A*B` multiplies: no file has such a name.
                is_let = bool(words) and text_of(words[0]) == "let"
                expand = self.expansion.texts if is_let else self.expansion.words
                words += expand(child, *more)
        after = self.source.text[node.end_byte : node.end_byte + 200].decode(errors="replace")
        if match := re.match(r"[ \t]*\\[ \t]+(#)?", after):
            words.append((Run(" #" if match.group(1) else " ", place, True),))
        if not words:
            # The last $(...), if there is one, sets the status.
            self._set_status(self.state.status, self.causes if self.state.status is None else ())
            for name, variable in assignments:
                self.assign(name, variable)
            return
        self.state.status = before
        self._step_on(len(words), place)
        self._start(words, assignments, place)

    def _words_in_redirect(self, node: "Node") -> list[Runs]:
        """Return the words after a redirection's target, which bash takes for arguments of the command."""
        named = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
        return [word for child in named[1:] for word in self.expansion.words(child)]

    def _herestring(self, node: "Node") -> Runs:
        named = [child for child in node.children if child.is_named]
        runs = self.expansion.value(named[-1]) if named else ()
        return (*runs, Run("\n", self.source.place_of(node), True))

    def _start(self, words: list[Runs], assignments: list[tuple[str, Variable]], place: str) -> None:
        """Run a builtin, call a function, or note a command."""
        head = text_of(words[0]) if not unknowns_of(words[0]) else ""
        if form := self.script.unread.get(head):
            self._skip_unread(form, place)
            return
        builtin = _BUILTINS.get(head)
        if head in self.state.functions and self.calls < MOST_CALLS:
            self._call(head, words[1:], assignments)
            return
        if head in ("command", "builtin") and len(words) > 1 and not text_of(words[1]).startswith("-"):
            self._start(words[1:], assignments, place)
            return
        if builtin is not None:
            before = {name: self.state.variables.get(name) for name, _ in assignments}
            for name, variable in assignments:
                self.assign(name, variable)
            builtin(self, words, place)
            self._restore(before)
            return
        environment = {name: word_of(variable.elements.get("0", ()), place) for name, variable in assignments}
        command = self.command(words, environment, self.stdin, place, dict(assignments))
        if not self.silent:
            self.commands.append(command)
            if re.match(r"--[a-z]", head) and not self._is_cut_before(place):
                self._report_cut(
                    place,
                    "the line before has no backslash at its end, which",
                    shortened(head),
                    "End the line before with a backslash.",
                )
        self._print(words)
        if not self.state.flow:
            asks = head in QUESTIONS or self.in_condition or not head
            asks = asks or (head.startswith("python") and [text_of(runs) for runs in words[1:2]] == ["-c"])
            causes = unknowns_of(words[0])
            self._set_status(None if asks else True, causes)
        # Alone, it only redirects the shell's own output.
        if head == "exec" and any(not re.fullmatch(r"\{\w+\}", text_of(runs)) for runs in words[1:]):
            self.state.flow = "exit"

    def command(
        self,
        words: list[Runs],
        environment: dict[str, Word],
        stdin: Runs | None,
        place: str,
        assignments: Mapping[str, Variable] | None = None,
    ) -> Command:
        """Return a command with what it inherits."""
        exported = dict(self.state.exported)
        for name, variable in (assignments or {}).items():
            exported[name] = Variable(variable.elements, variable.kind, True)
        conditions = [*self.conditions, self.state.doubts] if self.state.doubts else self.conditions
        calls, functions = self.calls, dict(self.state.functions)

        def inner(text: Runs, arguments: Sequence[Runs], more: Mapping[str, Variable]) -> list[Command]:
            return self._inner(text, arguments, exported | dict(more), calls, functions)

        def read_file(
            name: str, arguments: Sequence[Runs], more: Mapping[str, Variable]
        ) -> list[Command] | None:
            word = self.around.file(name)
            if word is None:
                return None
            self.script.read.add(PurePosixPath(name).name)
            runs = (Run(word.text, word.place, True),)
            return self._inner(runs, arguments, exported | dict(more), calls, {})

        return Command(
            words,
            environment,
            exported,
            inner,
            read_file,
            without_duplicates(unknown for condition in conditions for unknown in condition),
            bool(conditions),
            stdin,
            place,
        )

    def _inner(
        self,
        text: Runs,
        arguments: Sequence[Runs],
        environment: Mapping[str, Variable],
        calls: int,
        functions: Mapping[str, Function],
    ) -> list[Command]:
        """Return the commands of a script that another shell reads: `bash -c TEXT`, `bash FILE`."""
        if calls >= MOST_CALLS:
            return []
        inner = _Evaluator(self.script, self.around)
        inner.commands = []
        inner.calls, inner.room, inner.steps = calls + 1, self.room, self.steps
        inner.state.variables |= environment
        inner.state.arguments = tuple(arguments)
        source = inner.text_source(text)
        try:
            inner.file(source)
        except BashSyntaxError:
            inner.commands.append(
                inner.command([(Run(text_of(text), source.place(0), True),)], {}, None, source.place(0))
            )
        self.steps = inner.steps
        return inner.commands

    def text_source(self, text: Runs) -> Source:
        """Return the source of a text that a shell reads. Unknown parts become variables that hold them."""
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

    def _print(self, words: list[Runs]) -> None:
        """Add what a command prints to what is substituted or piped."""
        if self.sink is None:
            return
        unknowns = [part for runs in words for part in unknowns_of(runs)]
        unknowns += unknowns_of(self.stdin or ())
        place = word_of(words[0]).place
        head = text_of(words[0])
        if len(self.conditions) > self.certain[0] or len(self.state.doubts) > self.certain[1]:
            conditions = [*self.conditions[self.certain[0] :], self.state.doubts[self.certain[1] :]]
            causes = without_duplicates(part for condition in conditions for part in condition)
            shown = f"$({' '.join(text_of(runs) for runs in words)})"
            reason = "a condition decides whether it is printed"
            self.sink.append(unknown_run(Unknown(shown, "", place, reason, causes)))
            return
        if self.stdin is not None and (head == "tee" or (head == "cat" and len(words) == 1)):
            self.sink += self.stdin
            return
        if not unknowns:
            try:
                stdin = text_of(self.stdin) if self.stdin is not None else None
                texts = [text_of(runs) for runs in words]
                stdin = self._file_read(texts, stdin)
                if texts[0] == "cat" and stdin is not None:
                    texts = texts[:1]
                text = output_of(texts, stdin)
                self.spend(len(text), place, texts[0])
                self.sink.append(Run(text, place))
                return
            except NotComputed:
                pass
        elif head == "echo" and len(words) > 1 and not text_of(words[1]).startswith("-"):
            for number, runs in enumerate(words[1:]):
                self.sink += [*([Run(" ", place)] if number else []), *runs]
            self.sink.append(Run("\n", place))
            return
        shown = " ".join(text_of(runs) for runs in words)
        found = Unknown(f"$({shown})", "", place, f"$({shown}) is not run", tuple(unknowns))
        self.sink.append(unknown_run(found))

    def _file_read(self, texts: list[str], stdin: str | None) -> str | None:
        """Return the text of a file that the script wrote or that was passed, for `cat FILE`."""
        if texts[0] == "cat" and len(texts) == 2:
            word = self.script.documents.get(texts[1]) or self.around.file(texts[1])
            if word is not None and not word.unknowns:
                return word.text
        return stdin

    def _call(self, name: str, arguments: list[Runs], assignments: list[tuple[str, Variable]]) -> None:
        """Follow the body of a function."""
        function = self.state.functions[name]
        outer_arguments, outer = self.state.arguments, (self.source, self.expansion)
        before = {name: self.state.variables.get(name) for name, _ in assignments}
        doubts, departures = self.state.doubts, self.departures
        for name, variable in assignments:
            self.assign(name, variable)
        self.state.arguments = tuple(arguments)
        self.frames.append({})
        self.calls += 1
        self.source, self.expansion = function.source, Expansion(self, function.source)
        stdin, self.stdin = self.stdin, None
        self.statement(function.body)
        self.stdin = stdin
        self.source, self.expansion = outer
        self.calls -= 1
        self._restore(self.frames.pop() | before)
        self.state.arguments = outer_arguments
        if self.state.flow == "return":
            self.state.flow = ""
        self.state.doubts, self.departures = doubts, departures

    def _restore(self, before: Mapping[str, Variable | None]) -> None:
        """Give variables the values that they had before a call."""
        for name, variable in before.items():
            if variable is None:
                self.state.variables.pop(name, None)
            else:
                self.state.variables[name] = variable

    # --- assignments --------------------------------------------------------------------------------

    def _assignment(
        self, node: "Node", kind: str = "", following: Sequence["Node"] = (), is_new: bool = False
    ) -> tuple[str, Variable]:
        """Return the name and the new value of NAME=value, NAME+=value, NAME=(...) or NAME[key]=value.

        `following` are nodes that belong to the value although the parser separates them; `is_new` tells that
        the variable begins without a value.
        """
        place = self.source.place_of(node)
        target = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        name = _name_of(self.source, node)
        adds = any(child.type == "+=" for child in node.children)
        old = None if is_new else self.state.variables.get(name)
        if old is not None and old.kind == "unset":
            old = None
        if old is None and not is_new and name in self.around.given and adds:
            old = self.variable(name, place)
        kind = kind or (old.kind if old is not None and old.kind in ("table", "list") else "")
        if value_node is not None and value_node.type == "array":
            return name, self._list(name, value_node, old if adds else None, kind, place)
        runs = self.expansion.value(*([value_node] if value_node is not None else []), *following)
        if not runs:
            runs = (Run("", place),)
        if target is not None and target.type == "subscript":
            shown = self.source.of(target)
            key = self.expansion.key(
                old if old is not None else Variable({}, kind or "list"),
                shown.partition("[")[2].rpartition("]")[0],
                place,
            )
            if key is None or (old is not None and old.unknown is not None):
                return name, self.lost(name, place, f"{shown} is set to an element that is not known")
            elements = dict(old.elements) if old is not None else {}
            if adds:
                runs = (*elements.get(key, ()), *runs)
            return name, Variable(
                _ordered(elements | {key: runs}, kind), "table" if kind == "table" else "list"
            )
        if adds and old is None and not self.state.doubts:
            # Nothing here sets it: bash adds to what the environment holds, which is nothing for most.
            return name, text_variable(runs)
        if adds and old is not None:
            if old.integer:
                return name, self._added_number(name, old, runs, place)
            elements = dict(old.elements)
            elements["0"] = (*elements.get("0", ()), *runs)
            return name, Variable(_ordered(elements, old.kind), old.kind, old.exported)
        if kind in ("list", "table") and old is not None:
            return name, Variable(_ordered(old.elements | {"0": runs}, kind), kind)
        return name, text_variable(runs)

    def _added_number(self, name: str, old: Variable, runs: Runs, place: str) -> Variable:
        try:
            if unknowns_of(runs) or old.unknown:
                raise Undecided()
            first = self.expansion.number(text_of(old.elements.get("0", ())), place)
            return text_variable((Run(str(first + self.expansion.number(text_of(runs), place)), place),))
        except (Undecided, NotArithmetic):
            return self.lost(name, place, "its number is not known")

    def _list(self, name: str, node: "Node", old: Variable | None, kind: str, place: str) -> Variable:
        """Return the value of NAME=(...)."""
        elements = dict(old.elements) if old is not None else {}
        index = max((int(key) for key in elements if key.isdigit()), default=-1) + 1
        if old is not None and old.kind == "text" and not text_of(elements.get("0", ())):
            index = max(index, 1)
        for child, *more in adjacent(self.source, node.children):
            if child.type == "comment":
                continue
            text = self.source.of(child)
            match = re.match(r"\[([^\]]*)\](\+?)=", text)
            if match:
                key = self.expansion.key(Variable({}, kind or "list"), match.group(1), place)
                if key is None:
                    return self.lost(name, place, "an element's key is not known")
                start = child.start_byte + len(match.group(0).encode())
                stop = (more[-1] if more else child).end_byte
                runs = self.expansion.operand(start, stop, place, False)
                elements[key] = (*elements.get(key, ()), *runs) if match.group(2) else runs
                index = int(key) + 1 if key.isdigit() else index
                continue
            words = self.expansion.words(child, *more)
            self._step_on(len(words), place)
            for word in words:
                if kind == "table":
                    return self.lost(name, place, "a table is written without its keys")
                elements[str(index)] = word
                index += 1
        return Variable(_ordered(elements, kind), "table" if kind == "table" else "list")

    def _assign_node(self, node: "Node") -> None:
        self.state.status = True
        name, variable = self._assignment(node)
        self._set_status(self.state.status, self.causes if self.state.status is None else ())
        if name:
            self.assign(name, variable)

    def _declare(self, node: "Node") -> None:
        """Follow export, declare, local, readonly, typeset, which expand all words before they set the first
        variable.
        """
        keyword = self.source.of(node.children[0])
        options = ""
        declared: list[tuple[str, Variable | None]] = []
        for child in node.children[1:]:
            if not child.is_named or child.type in _IGNORED:
                continue
            if child.type == "variable_assignment":
                kind = "table" if "A" in options else "list" if "a" in options else ""
                is_new = self._is_new_local(keyword, options, _name_of(self.source, child))
                declared.append(self._assignment(child, kind, is_new=is_new))
                continue
            for runs in (
                [self.expansion.value(child)]
                if child.type == "variable_name"
                else (self.expansion.words(child))
            ):
                text = text_of(runs)
                if re.fullmatch(r"[-+][A-Za-z]+", text):
                    options += text if text[0] == "-" else ""
                    continue
                name, equals, _ = text.partition("=")
                if not re.fullmatch(r"[A-Za-z_]\w*", name):
                    continue
                value = text_variable(_without_start(runs, len(name) + 1)) if equals else None
                declared.append((name, value))
        for name, variable in declared:
            self._prepare(keyword, options, name)
            self._declared(keyword, options, name, variable)
        self._set_status(True)

    def _is_new_local(self, keyword: str, options: str, name: str) -> bool:
        """Return whether a declaration makes a variable local that the function has not declared yet."""
        is_local = keyword in ("local", "declare", "typeset") and "g" not in options
        return bool(self.frames) and is_local and name not in self.frames[-1]

    def _prepare(self, keyword: str, options: str, name: str) -> None:
        """Make a variable local to the function, if the declaration does."""
        if self._is_new_local(keyword, options, name):
            self.frames[-1][name] = self.state.variables.get(name)
            self.state.variables[name] = Variable({}, "unset")
        if "i" in options:
            old = self.state.variables.get(name)
            elements, kind = (old.elements, old.kind) if old else ({}, "unset")
            self.state.variables[name] = Variable(elements, kind, bool(old and old.exported), True)

    def _declared(self, keyword: str, options: str, name: str, variable: Variable | None) -> None:
        exports = (keyword == "export" and "n" not in options) or "x" in options
        if "n" in options and keyword != "export":
            place = next((run.place for run in variable.elements.get("0", ())), "") if variable else ""
            target = text_of(variable.elements.get("0", ())) if variable else ""
            if re.fullmatch(r"[A-Za-z_]\w*", target) and target != name:
                self.names[name] = target
                self.assign(target, self.lost(target, place, f"{name} is another name for it"))
            self.assign(name, self.lost(name, place, "it names another variable"))
            return
        if variable is not None:
            self.assign(name, Variable(variable.elements, variable.kind, exports, variable.integer))
            return
        old = self.state.variables.get(name)
        if old is None and exports and name in self.around.given:
            old = self.variable(name, "")
        if old is not None and exports:
            self.state.variables[name] = Variable(old.elements, old.kind, True, old.integer)
        elif (old is None and ("a" in options or "A" in options)) or (
            old is not None and old.kind == "unset" and ("a" in options or "A" in options)
        ):
            self.state.variables[name] = Variable({}, "table" if "A" in options else "list")

    def _unset_node(self, node: "Node") -> None:
        words = [
            word
            for group in adjacent(self.source, node.children[1:])
            for word in self.expansion.words(*group)
        ]
        self._unset([(Run("unset", ""),), *words], self.source.place_of(node))

    # --- builtins -----------------------------------------------------------------------------------

    def _unset(self, words: list[Runs], place: str) -> None:
        functions_only = False
        for runs in words[1:]:
            name = text_of(runs)
            if name.startswith("-"):
                functions_only = name == "-f"
                continue
            self.state.functions.pop(name, None)
            if functions_only:
                continue
            match = re.fullmatch(r"([A-Za-z_]\w*)\[(.*)\]", name)
            if match and (old := self.state.variables.get(match.group(1))) is not None:
                key = self.expansion.key(old, match.group(2), place)
                elements = {known: value for known, value in old.elements.items() if known != key}
                self.state.variables[match.group(1)] = Variable(elements, old.kind, old.exported)
            elif re.fullmatch(r"[A-Za-z_]\w*", name):
                self.state.variables[name] = Variable({}, "unset")
                if self.state.sourced is not None:
                    self.state.settled |= {name}
        self._set_status(True)

    def _eval(self, words: list[Runs], place: str) -> None:
        text: list[Run] = []
        for number, runs in enumerate(words[1:]):
            text += [Run(" ", word_of(runs, place).place), *runs] if number else runs
        if self.calls >= MOST_CALLS or not text:
            return
        self.calls += 1
        try:
            self.file(self.text_source(tuple(text)))
        except BashSyntaxError:
            if not self.silent:
                self.commands.append(self.command([tuple(text)], {}, None, place))
        self.calls -= 1

    def _source(self, words: list[Runs], place: str) -> None:
        if len(words) < 2:
            return
        name = text_of(words[1])
        word = None if unknowns_of(words[1]) else self.around.file(name)
        if word is None and not unknowns_of(words[1]):
            word = self.script.documents.get(name)
        if word is not None and self.calls < MOST_CALLS:
            self.script.read.add(PurePosixPath(name).name)
            arguments = self.state.arguments
            if len(words) > 2:
                self.state.arguments = tuple(words[2:])
            self.calls += 1
            self.file(source_of(word.text, word.place))
            self.calls -= 1
            self.state.arguments = arguments
            if self.state.flow == "return":
                self.state.flow = ""
            self._set_status(True)
            return
        shown = PurePosixPath(name).name
        if not self.silent:
            # A file that is not here may prepare the shell: the place of the job lists it.
            self.commands.append(self.command(words, {}, None, place))
            if not SETUP_FILES.fullmatch(name):
                self.script.missing.append((place, name))
        if SETUP_FILES.fullmatch(name):
            self._set_status(True)
            return
        if self.state.sourced is None or self.state.settled:
            reason = f"{shown}, which is read there, may set it"
            self.state.sourced = Unknown(name, "", place, reason)
            self.state.settled = frozenset()
        self._set_status(True)

    def _exit(self, words: list[Runs], place: str) -> None:
        self.state.flow = text_of(words[0])
        self.departures += 1
        if self.state.flow == "return" and not self.calls:
            self.state.flow = "exit"
        if len(words) > 1 and not unknowns_of(words[1]):
            self._set_status(text_of(words[1]) == "0")

    def _leave(self, words: list[Runs], place: str) -> None:
        self.state.flow = text_of(words[0])
        text = text_of(words[1]) if len(words) > 1 else "1"
        self.state.levels = int(text) if text.isdigit() and len(text) < 3 else 1
        self.departures += self.state.levels > 1

    def _set(self, words: list[Runs], place: str) -> None:
        """Follow `set -euo pipefail` and `set -- arguments`."""
        options, position = set(self.state.options), 1
        while position < len(words):
            text = text_of(words[position])
            if text == "--" or text[:1] not in ("-", "+") or len(text) < 2:
                break
            position += 1
            for letter in text[1:]:
                name = _SET_OPTIONS.get(letter, "")
                if letter == "o" and position < len(words):
                    name, position = text_of(words[position]), position + 1
                options = options | {name} if text[0] == "-" else options - {name}
        self.state.options = frozenset(options)
        if position < len(words):
            end = text_of(words[position])
            arguments = tuple(words[position + (end in ("-", "--")) :])
            if arguments or end != "-":
                self.state.arguments = arguments
        self._set_status(True)

    def _shift(self, words: list[Runs], place: str) -> None:
        count = text_of(words[1]) if len(words) > 1 else "1"
        arguments = self.state.arguments
        if arguments is None:
            self._set_status(None)
            return
        if not count.isdigit() or len(count) > 4:
            self.state.arguments = None
        elif int(count) <= len(arguments):
            self.state.arguments = arguments[int(count) :]
        self._set_status(count.isdigit() and int(count) <= len(arguments))

    def _read(self, words: list[Runs], place: str) -> None:
        """Follow read, mapfile and readarray; what they read is known for a here-string alone."""
        head, options, names, array = text_of(words[0]), "", [], False
        position, whole = 1, False
        while position < len(words):
            text = text_of(words[position])
            position += 1
            if not text.startswith("-") or len(text) < 2:
                names.append(text)
                continue
            options += text[1:]
            array = array or "a" in text
            if text[-1] in _OPTION_VALUES[head]:
                if text[-1] == "d" and position < len(words) and not text_of(words[position]):
                    whole = True  # read -d '' takes all lines
                    options = options.removesuffix("d")
                position += 1
        names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name)]
        stdin = self.stdin
        known = stdin is not None and not unknowns_of(stdin) and set(options) <= set("rat")
        if not known or stdin is None:
            if stdin is not None:
                self.stdin = (unknown_run(Unknown("the input", "", place, f"{head} takes a part of it")),)
            for name in names or (["REPLY"] if head == "read" else ["MAPFILE"]):
                self.assign(name, self.lost(name, place, f"{head} sets it"))
            self._set_status(None if head == "read" else True)
            return
        text = text_of(stdin)
        if head != "read":
            lines = text.removesuffix("\n").split("\n")
            lines = lines if "t" in options else [f"{line}\n" for line in lines]
            elements: dict[str, Runs] = {str(at): (Run(line, place),) for at, line in enumerate(lines)}
            self.assign(names[0] if names else "MAPFILE", Variable(elements, "list"))
            self.stdin = ()
            self._set_status(True)
            return
        line, ends, rest = (text, "", "") if whole else text.partition("\n")
        self.stdin = (Run(rest, place, True),)
        if "\\" in line and "r" not in options:
            for name in names or ["REPLY"]:
                self.assign(name, self.lost(name, place, "read sets it"))
            self._set_status(None)
            return
        variable = self.variable("IFS", "")
        separators = " \t\n" if variable is None else text_of(variable.elements.get("0", ()))
        fields = _fields(line, separators, 0 if array else len(names)) if names else [line]
        if array and names:
            self.assign(
                names[0], Variable({str(at): (Run(part, place),) for at, part in enumerate(fields)}, "list")
            )
        else:
            for at, name in enumerate(names or ["REPLY"]):
                self.assign(name, text_variable((Run(fields[at] if at < len(fields) else "", place),)))
        self._set_status(bool(ends))

    def _printf(self, words: list[Runs], place: str) -> None:
        if len(words) > 3 and text_of(words[1]) == "-v":
            name = text_of(words[2])
            before, certain = self.sink, self.certain
            self.sink, self.certain = [], (len(self.conditions), len(self.state.doubts))
            self._print([words[0], *words[3:]])
            printed, self.sink, self.certain = tuple(self.sink), before, certain
            if unknowns_of(printed):
                self.assign(name, self.lost(name, place, "printf sets it"))
            else:
                self.assign(name, text_variable((Run(text_of(printed), place),)))
        else:
            self._print(words)
        self._set_status(True)

    def _echo(self, words: list[Runs], place: str) -> None:
        self._print(words)
        self._set_status(True)

    def _getopts(self, words: list[Runs], place: str) -> None:
        if len(words) > 2:
            name = text_of(words[2])
            self.assign(name, self.lost(name, place, "getopts sets it"))
        self.assign("OPTARG", self.lost("OPTARG", place, "getopts sets it"))
        self._set_status(None)

    def _let(self, words: list[Runs], place: str) -> None:
        status: bool | None = True
        for runs in words[1:]:
            status = self._compute(text_of(runs), unknowns_of(runs), place)
        self._set_status(status)

    def _compute(self, text: str, unknowns: tuple[Unknown, ...], place: str) -> bool | None:
        """Evaluate arithmetic for its effects, and return whether it is not 0."""
        try:
            if unknowns:
                raise Undecided(*unknowns)
            return self.expansion.number(text, place) != 0
        except (Undecided, NotArithmetic) as error:
            causes = error.unknowns if isinstance(error, Undecided) else ()
            for one, other in _SETS.findall(text):
                name = one or other
                self.assign(name, self.lost(name, place, "arithmetic sets it", without_duplicates(causes)))
            self.causes = without_duplicates(causes)
            return None

    def _test_words(self, words: list[Runs], place: str) -> None:
        texts = words[1:]
        if text_of(words[0]) == "[" and texts and text_of(texts[-1]) == "]":
            texts = texts[:-1]
        self._decide([Token(text_of(runs), runs) for runs in texts], False, place)

    def _answer(self, words: list[Runs], place: str) -> None:
        self._set_status(text_of(words[0]) != "false")

    def _shopt(self, words: list[Runs], place: str) -> None:
        texts = [text_of(runs) for runs in words[1:]]
        if "extglob" in texts:
            self.extglob = "-s" in texts
        self._set_status(True)

    def _nothing(self, words: list[Runs], place: str) -> None:
        self._set_status(True)

    # --- conditions ---------------------------------------------------------------------------------

    def _decide(self, tokens: list[Token], double: bool, place: str) -> None:
        def number(text: str) -> int:
            return self.expansion.number(text, place)

        def is_set(name: str) -> bool:
            variable = self.variable(name, place)
            if variable is not None and (unknown := variable.unknown) is not None:
                raise Undecided(unknown)
            return variable is not None

        try:
            self._set_status(Condition(tokens, double, number, is_set).holds())
        except Undecided as error:
            self._set_status(None, without_duplicates(error.unknowns))
        except (NotArithmetic, IndexError):
            self._set_status(None)

    def _test(self, node: "Node") -> None:
        """Follow [ ... ], [[ ... ]] and (( ... )) used as a test."""
        opening = node.children[0].type
        place = self.source.place_of(node)
        if opening == "((":
            self._sum(node)
            return
        tokens = list(self._tokens(node.children[1:-1], opening == "[["))
        self._decide(tokens, opening == "[[", place)

    def _tokens(self, nodes: Sequence["Node"], double: bool) -> Iterator[Token]:
        """Yield the words and operators of a condition."""
        for node in nodes:
            if node.type in (
                "binary_expression",
                "unary_expression",
                "negated_command",
                "parenthesized_expression",
                "test_command",
                "list",
                "command",
                "pipeline",
                "postfix_expression",
                "ternary_expression",
            ):
                yield from self._tokens(node.children, double)
            elif node.type in _IGNORED:
                continue
            elif not node.is_named or node.type == "test_operator":
                text = self.source.of(node)
                if text in ("[", "]", "[[", "]]"):
                    continue
                yield Token(text, None if double else (Run(text, self.source.place_of(node)),))
            elif double:
                runs = self.expansion.value(node)
                yield Token(text_of(runs), runs)
            else:
                for runs in self.expansion.texts(node):
                    yield Token(text_of(runs), runs)

    def _sum(self, node: "Node") -> None:
        """Follow (( ... ))."""
        first, last = node.children[0], node.children[-1]
        place = self.source.place_of(node)
        self._set_status(self._arithmetic(node, first.end_byte, last.start_byte, place))

    def _arithmetic(self, node: "Node", start: int, end: int, place: str) -> bool | None:
        try:
            text = self.expansion._expression(node, start, end)
        except Undecided as error:
            return self._compute(self.source.slice(start, end), without_duplicates(error.unknowns), place)
        return self._compute(text, (), place)

    def _condition(self, nodes: Sequence["Node"]) -> tuple[bool | None, tuple[Unknown, ...]]:
        """Follow the commands of a condition, and return whether it holds."""
        before, self.in_condition = self.in_condition, True
        self.causes = ()
        self.tested += 1
        self.block(nodes)
        self.tested -= 1
        self.in_condition = before
        return self.state.status, self.causes if self.state.status is None else ()

    # --- compound statements ------------------------------------------------------------------------

    def _list_node(self, node: "Node") -> None:
        """Follow A && B and A || B."""
        left = node.children[0]
        operator = next(child.type for child in node.children[1:] if child.type in ("&&", "||"))
        right = [child for child in node.children[1:] if child.is_named and child.type not in _IGNORED]
        if left.is_named:
            self.tested += 1
            self.statement(left)
            self.tested -= 1
        if self.state.flow or not right:
            return
        status, causes = self.state.status, self.causes
        runs = status if operator == "&&" else (None if status is None else not status)
        if runs:
            self.block(right)
        elif runs is None:
            before = self.state.copy()
            self._under(causes, lambda: self.block(right))
            after_status = self.state.status
            self.state = merge(before, self.state, causes, self._changed)
            decisive = operator == "||"
            self._set_status(True if decisive and after_status else None, causes)
            if not decisive and after_status is False:
                self._set_status(False)

    def _under(self, causes: tuple[Unknown, ...], follow: Callable[[], None]) -> None:
        """Follow statements of which only the running shell knows whether they are run."""
        stdin = self.stdin
        self.conditions.append(causes)
        follow()
        self.conditions.pop()
        if self.stdin is not stdin:
            # Only the shell knows whether lines were taken.
            reason = "a condition decides which lines were read"
            self.stdin = (unknown_run(Unknown("the input", "", "", reason, causes)),)

    def _negated(self, node: "Node") -> None:
        self.tested += 1
        self.block([child for child in node.children if child.type != "!"])
        self.tested -= 1
        status = self.state.status
        self._set_status(None if status is None else not status, self.causes)

    def _if(self, node: "Node") -> None:
        parts: list[tuple[list[Node], list[Node]]] = []
        condition: list[Node] = []
        body: list[Node] = []
        target = condition
        otherwise: list[Node] = []
        for child in node.children:
            if child.type == "if":
                continue
            if child.type == "then":
                target = body
            elif child.type == "elif_clause":
                then = next(at for at, part in enumerate(child.children) if part.type == "then")
                parts.append((list(child.children[1:then]), list(child.children[then + 1 :])))
            elif child.type == "else_clause":
                otherwise = list(child.children[1:])
            elif child.type != "fi":
                target.append(child)
        self._branches([(condition, body), *parts], otherwise)

    def _branches(self, parts: list[tuple[list["Node"], list["Node"]]], otherwise: list["Node"]) -> None:
        if not parts:
            self._set_status(True)
            self.block(otherwise)
            return
        (condition, body), rest = parts[0], parts[1:]
        holds, causes = self._condition(condition)
        if self.state.flow:
            return
        if holds:
            self.block(body)
        elif holds is False:
            self._branches(rest, otherwise)
        else:
            self._fork(causes, lambda: self.block(body), lambda: self._branches(rest, otherwise))

    def _fork(
        self, causes: tuple[Unknown, ...], follow: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Follow two branches of which only the running shell knows which is run."""
        start = self.state.copy()
        self._under(causes, follow)
        first, self.state = self.state, start
        self._under(causes, otherwise)
        self.state = merge(first, self.state, causes, self._changed)
        self.causes = causes

    def _case(self, node: "Node") -> None:
        value_node = node.child_by_field_name("value")
        runs = self.expansion.value(value_node) if value_node is not None else ()
        items = [child for child in node.children if child.type == "case_item"]
        self._items(runs, items)

    def _items(self, runs: Runs, items: list["Node"]) -> None:
        if not items:
            self._set_status(True)
            return
        item, rest = items[0], items[1:]
        end = next(at for at, child in enumerate(item.children) if child.type == ")")
        patterns = [child for child in item.children[:end] if child.is_named]
        body = [child for child in item.children[end + 1 :]]
        falls = any(child.type in (";&", ";;&") for child in body)
        causes: list[Unknown] = []
        found: bool | None = False
        for pattern in patterns:
            try:
                if matches(runs, self.expansion.value(pattern)):
                    found = True
                    break
            except Undecided as error:
                found = None
                causes += error.unknowns
        if falls and found is not False:
            found, causes = None, causes or list(unknowns_of(runs))
        if found:
            self.block(body)
        elif found is False:
            self._items(runs, rest)
        else:
            known = without_duplicates(causes)
            self._fork(known, lambda: self.block(body), lambda: self._items(runs, rest))

    def _for(self, node: "Node") -> None:
        name_node = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if name_node is None or body is None:
            return
        name = self.source.of(name_node)
        place = self.source.place_of(node)
        keyword = node.children[0].type
        listed = any(child.type == "in" for child in node.children)
        values: list[Runs] = []
        if listed:
            at = next(number for number, child in enumerate(node.children) if child.type == "in")
            for child, *more in adjacent(self.source, node.children[at + 1 :]):
                if child == body:
                    break
                if child.type not in _IGNORED:
                    values += self.expansion.words(child, *more)
            unknown = tuple(part for runs in values for part in unknowns_of(runs))
            known = not any(_is_list(runs) for runs in values)
        else:
            arguments = self.state.arguments
            values, known = list(arguments or ()), arguments is not None
            unknown = () if known else (Unknown("$@", "@", place, "the caller passes it"),)
        if keyword == "select" or not known or len(values) > MOST_ROUNDS:
            lost = self.lost(name, place, "set in a loop", ())
            causes = without_duplicates(unknown)
            self._open_loop(causes, lambda: self.assign(name, lost), [body], place)
            return
        doubts, departures = self.state.doubts, self.departures
        for runs in values:
            self._step_on(1, place)
            self.assign(name, text_variable(runs or (Run("", place),)))
            if self._round([body]):
                break
        self._set_status(True)
        self._loop_ended(doubts, departures)

    def _c_for(self, node: "Node") -> None:
        opening = next(at for at, child in enumerate(node.children) if child.type == "((")
        closing = next(at for at, child in enumerate(node.children) if child.type == "))")
        body = node.child_by_field_name("body") or node.children[-1]
        place = self.source.place_of(node)
        semicolons = [child for child in node.children[opening:closing] if child.type == ";"]
        if len(semicolons) < 2:
            return
        spans = [
            (node.children[opening].end_byte, semicolons[0].start_byte),
            (semicolons[0].end_byte, semicolons[1].start_byte),
            (semicolons[1].end_byte, node.children[closing].start_byte),
        ]
        self._arithmetic(node, *spans[0], place)
        empty = not self.source.slice(*spans[1]).strip()
        doubts, departures = self.state.doubts, self.departures
        for _ in range(1 if empty else MOST_ROUNDS):
            holds = True if empty else self._arithmetic(node, *spans[1], place)
            if holds is False:
                self._loop_ended(doubts, departures)
                return
            if holds is None:
                break
            if self._round([body]):
                self._loop_ended(doubts, departures)
                return
            if self.state.doubts != doubts:
                break
            self._arithmetic(node, *spans[2], place)
        causes = self.causes
        self._open_loop(causes, lambda: None, [body], place, lambda: self._step(node, spans[2], place))

    def _step(self, node: "Node", span: tuple[int, int], place: str) -> None:
        self._arithmetic(node, *span, place)

    def _while(self, node: "Node") -> None:
        body = node.child_by_field_name("body") or node.children[-1]
        until = node.children[0].type == "until"
        place = self.source.place_of(node)
        condition = [child for child in node.children[1:] if child.type != "do_group"]
        doubts, departures = self.state.doubts, self.departures
        endless = " ".join(self.source.of(child) for child in condition).strip(" ;") in (":", "true", "1")
        for _ in range(1 if endless else MOST_ROUNDS):
            holds, causes = self._condition(condition)
            if until and holds is not None:
                holds = not holds
            if self.state.flow:
                return
            if holds is False:
                self._set_status(True)
                self._loop_ended(doubts, departures)
                return
            if holds is None:
                self._open_loop(causes, lambda: None, [body], place)
                return
            if self._round([body]):
                self._loop_ended(doubts, departures)
                return
            if self.state.doubts != doubts:
                break
        self._open_loop(self.state.doubts, lambda: None, [body], place)

    def _round(self, body: Sequence["Node"]) -> bool:
        """Follow one round of a loop, and return whether it was the last."""
        self.block(body)
        flow = self.state.flow
        if flow not in ("break", "continue"):
            return bool(flow)
        if self.state.levels > 1:
            self.state.levels -= 1
            return True
        self.state.flow, self.state.levels = "", 0
        return flow == "break"

    def _loop_ended(self, doubts: tuple[Unknown, ...], departures: int) -> None:
        """Forget doubts about whether the loop was left early, unless more than it may have been left."""
        if self.departures == departures:
            self.state.doubts = doubts

    def _open_loop(
        self,
        causes: tuple[Unknown, ...],
        begin: Callable[[], None],
        body: Sequence["Node"],
        place: str,
        step: Callable[[], None] | None = None,
    ) -> None:
        """Follow a loop whose rounds only the running shell knows: what it changes is unknown."""
        before = self.state.copy()
        outer, departures = self.state.doubts, self.departures
        sink, stdin = self.sink, self.stdin
        self.sink = None if sink is None else []
        self.silent += 1
        begin()
        self.block(body)
        if step:
            step()
        self.silent -= 1
        self.sink = sink
        if self.stdin is not stdin:
            self.stdin = (unknown_run(Unknown("the input", "", place, "a loop reads it", causes)),)
        changed = self._differences(before, self.state)
        self.state = before.copy()
        for name, at in changed.items():
            self.state.variables[name] = self._lost_in_loop(name, at or place, causes, before)
        begin()

        def follow() -> None:
            self.block(body)

        self._under(causes, follow)
        documents = self._differences(before, self.state)
        for name, at in (changed | documents).items():
            old = self.state.variables.get(name)
            lost = self._lost_in_loop(name, changed.get(name) or at or place, causes, before)
            self.state.variables[name] = Variable(lost.elements, lost.kind, bool(old and old.exported), False)
        if self.departures != departures:
            outer = (*outer, *(causes or (UNNAMED,)))
        self.state.flow, self.state.levels, self.state.doubts = "", 0, outer
        self._set_status(True)

    def _lost_in_loop(self, name: str, place: str, causes: tuple[Unknown, ...], before: State) -> Variable:
        """Return the value of a variable after a loop whose rounds are not known.

        The values around the loop do not tell how many rounds it has, so the user has to give the variable.
        """
        arguments = [cause for cause in causes if cause.name in ("@", "*", "#") or cause.name.isdigit()]
        reason = "the script's arguments decide it" if arguments else "a loop sets it"
        old = before.variables.get(name)
        runs = old.elements.get("0", ()) if old is not None and old.kind == "text" else ()
        if arguments and runs and not unknowns_of(runs):
            reason += f"; without them it is {shortened(text_of(runs)) or 'empty'}"
        return self.lost(name, place, reason, ())

    def _differences(self, before: State, after: State) -> dict[str, str]:
        """Return {variable: place} for the variables that differ."""
        found = {}
        for name, variable in after.variables.items():
            old = before.variables.get(name)
            if old is variable or (old is not None and variable.same(old)):
                continue
            runs = [run for value in variable.elements.values() for run in value]
            # The last part was written by the loop.
            place = next((run.place for run in reversed(runs) if run.place), "")
            unknown = variable.unknown
            found[name] = unknown.place if unknown is not None and unknown.place else place
        return found

    def _function(self, node: "Node") -> None:
        name_node = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name_node is not None and body is not None:
            self.state.functions[self.source.of(name_node)] = Function(self.source, body)
        self._set_status(True)

    def _subshell(self, node: "Node") -> None:
        inner = [child for child in node.children if child.is_named]
        if self.source.of(node).startswith("((") and [child.type for child in inner] == ["subshell"]:
            # The parser takes `! ((...))` for two subshells.
            place = self.source.place_of(node)
            self._set_status(self._arithmetic(node, node.start_byte + 2, node.end_byte - 2, place))
            return
        state = self.state
        self.state = state.copy()
        self.block(node.children)
        status, flow = self.state.status, self.state.flow
        self.state = state
        if flow != "exit" or status is not None:
            self.state.status = status

    def _pipeline(self, node: "Node") -> None:
        parts = [child for child in node.children if child.is_named and child.type not in _IGNORED]
        self._piped(parts, self.stdin)

    def _piped(self, parts: Sequence["Node"], stdin: Runs | None) -> None:
        """Follow the commands of a pipeline, each in a subshell, with what the one before prints."""
        outer_sink, outer_stdin, outer_certain = self.sink, self.stdin, self.certain
        statuses: list[bool | None] = []
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            self.stdin = stdin
            self.sink = outer_sink if last else []
            self.certain = outer_certain if last else (len(self.conditions), len(self.state.doubts))
            self._apart(part)
            statuses.append(self.state.status)
            if not last:
                stdin = _collapsed(tuple(self.sink or ()))
        self.sink, self.stdin, self.certain = outer_sink, outer_stdin, outer_certain
        if "pipefail" in self.state.options and self.state.status and not all(statuses):
            self._set_status(False if False in statuses else None)

    def _compound(self, node: "Node") -> None:
        if node.children and node.children[0].type == "((":
            self._sum(node)
        else:
            self.block(node.children)

    # --- redirections and substitution --------------------------------------------------------------

    def _redirected(self, node: "Node") -> None:
        """Follow a command with redirections; texts that it writes into files are kept."""
        body = node.child_by_field_name("body")
        outer_stdin, outer_sink = self.stdin, self.sink
        written: list[tuple[str, bool]] = []
        after: list[Node] = []
        piped: list[Node] = []
        extra: list[Node] = []
        descriptor = _descriptor(self.source, node, body)
        reads = False
        """Whether the command redirects its standard input."""
        for child in node.children:
            if child == body:
                continue
            if child.type == "file_redirect":
                before = list(written)
                reads = reads or any(part.type == "<" for part in child.children)
                self._redirect(child, written, extra)
                if descriptor not in ("", "1") and body is not None and child.start_byte == body.end_byte:
                    written = before
            elif child.type == "herestring_redirect":
                self.stdin, reads = self._herestring(child), True
            elif child.type == "heredoc_redirect":
                self.stdin, reads = self._heredoc(child), True
                for inner in child.children:
                    if inner.type == "file_redirect":
                        self._redirect(inner, written, extra)
                    elif inner.type == "pipeline":
                        piped = [part for part in inner.children if part.is_named]
                    elif inner.is_named and inner.type not in _IGNORED:
                        after.append(inner)
        target = written[-1] if written else None
        outer_certain = self.certain
        if target or piped:
            self.sink, self.certain = [], (len(self.conditions), len(self.state.doubts))
        if body is not None:
            if (extra or descriptor) and body.type == "command":
                self._simple(body, [*(body.children[:-1] if descriptor else body.children), *extra])
            else:
                self.statement(body)
        printed = _collapsed(tuple(self.sink or ())) if target or piped else ()
        self.stdin = outer_stdin if reads else self.stdin
        self.sink, self.certain = outer_sink, outer_certain
        if piped:
            self._piped(piped, printed)
        elif target:
            self._write(target[0], printed, target[1])
        if after:
            self.block(after)

    def _redirect(self, node: "Node", written: list[tuple[str, bool]], extra: list["Node"]) -> None:
        operator = next((child.type for child in node.children if not child.is_named), "")
        named = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
        if not named:
            return
        extra += named[1:]
        descriptor = next((self.source.of(c) for c in node.children if c.type == "file_descriptor"), "")
        runs = self.expansion.value(named[0])
        if text_of(runs) in ("/dev/stdout", "/dev/fd/1"):
            return
        if operator in (">", ">>", "&>", "&>>", ">|") and descriptor in ("", "1"):
            written.append((text_of(runs), operator in (">>", "&>>")))
        elif operator == ">&" and descriptor in ("", "1") and text_of(runs) == "2":
            written.append(("/dev/stderr", True))
        elif operator == "<":
            self.stdin = None
            if unknowns_of(runs):
                return
            word = self.script.documents.get(text_of(runs))
            word = word or self.around.file(text_of(runs))
            if word is not None and not word.unknowns:
                self.stdin = (Run(word.text, word.place, True),)

    def _heredoc(self, node: "Node") -> Runs:
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None:
            return ()
        self.spend(body.end_byte - body.start_byte, self.source.place_of(body), "a here-document")
        opening = self.source.of(start) if start is not None else ""
        tabs = any(child.type == "<<-" for child in node.children)
        if re.search(r"['\"\\]", opening):
            runs: Runs = (Run(self.source.of(body), self.source.place_of(body), True),)
        else:
            runs = tuple(run for run in self.expansion.value(body) if run.text)
        if tabs:
            runs = tuple(
                run._replace(text=re.sub(r"(?m)^\t+", "", run.text)) if not run.unknown else run
                for run in runs
            )
        return runs or (Run("", self.source.place_of(body), True),)

    def _write(self, name: str, printed: Runs, appends: bool) -> None:
        """Keep a text that is written into a file."""
        if self.silent or name.startswith("/dev/"):
            return
        known = [run for run in printed if run.text]
        if not known or (known[0].unknown is not None and not known[0].unknown.name and len(known) == 1):
            if not appends:
                self.script.documents.pop(name, None)
            return
        word = Word(text_of(printed), known[0].place, unknowns_of(printed))
        old = self.script.documents.get(name)
        if appends and old is not None:
            unknowns = (*(old.unknowns or ()), *(word.unknowns or ()))
            word = Word(old.text + word.text, old.place, unknowns)
        self.script.documents[name] = word

    def substitute(self, source: Source, node: "Node") -> Runs:
        """Return what $( ... ) prints, without the line ends at its end."""
        text = source.of(node).strip()
        for form in self.script.unread.values():
            text = text.replace(f"${{{form.name}}}", form.text)
        place = source.place_of(node)
        shown = text if text.startswith("$(") else f"$({text[1:-1]})"
        outer_sink, outer_stdin, outer_state = self.sink, self.stdin, self.state
        outer_silent, outer_source, outer_expansion = self.silent, self.source, self.expansion
        outer_condition, causes, outer_certain = self.in_condition, self.causes, self.certain
        self.in_condition = False
        self.certain = len(self.conditions), len(self.state.doubts)
        self.sink, self.stdin, self.state = [], None, outer_state.copy()
        self.state.options -= {"errexit"}
        self.silent += 1
        self.calls += 1
        if source is not self.source:
            self.source, self.expansion = source, Expansion(self, source)
        try:
            if self.calls > MOST_CALLS:
                printed: Runs = (unknown_run(Unknown(shown, "", place, "nested too deeply")),)
            elif text.startswith("`") and "\\" in text:
                printed = (unknown_run(Unknown(shown, "", place, f"{shown} is not run")),)
            else:
                counted = self._counted(node)
                if counted is not None:
                    printed = counted
                else:
                    redirected = [child for child in node.children if child.type == "file_redirect"]
                    if redirected and not any(
                        child.is_named and child.type != "file_redirect" for child in node.children
                    ):
                        self._redirect(redirected[0], [], [])
                        printed = self.stdin or (unknown_run(Unknown(shown, "", place)),)
                    else:
                        self.block(node.children)
                        printed = tuple(self.sink or ())
        finally:
            status = self.state.status
            self.sink, self.stdin, self.state = outer_sink, outer_stdin, outer_state
            self.silent, self.source, self.expansion = outer_silent, outer_source, outer_expansion
            self.calls -= 1
            self.certain = outer_certain
            self.in_condition = outer_condition
            self.causes = self.causes if status is None else causes
        self.state.status = status
        if not printed:
            return ()
        if unknowns := unknowns_of(printed):
            if self.in_condition and status:
                # A condition may ask whether the command succeeds.
                self._set_status(None, without_duplicates(unknowns))
            alone = [run for run in printed if run.text.strip()]
            if len(alone) == 1 and alone[0].unknown is not None and alone[0].unknown.name:
                return (alone[0],)
            nested = tuple(part for unknown in unknowns for part in _with_name(unknown))
            return (unknown_run(Unknown(shown, "", place, f"{shown} is not run", nested)),)
        result = text_of(printed).rstrip("\n")
        return (Run(result, place),) if result else ()

    def _counted(self, node: "Node") -> Runs | None:
        """Return the number of nodes or GPUs that a pipeline with `wc -l` counts, if the scheduler set it."""
        text = " ".join(self.source.of(node).split())
        place = self.source.place_of(node)
        if re.search(r"scontrol show hostnames?\b.*\| *wc -l", text):
            names = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
        elif re.search(r"(nvidia-smi (-L|--list-gpus|--query-gpu=\w+ .*)|rocm-smi .*) *\| *wc -l", text):
            names = ("SLURM_GPUS_ON_NODE", "NBTRAIN_GPUS_ON_NODE")
        else:
            return None
        for name in names:
            variable = self.state.variables.get(name)
            if variable is not None and variable.kind == "text" and not variable.unknown:
                return (Run(text_of(variable.elements["0"]), place),)
        return None

    def finish(self) -> None:
        """Keep what the script exports."""
        for name, variable in self.state.variables.items():
            if variable.exported and name not in self.around.environment and variable.kind == "text":
                self.script.exported[name] = word_of(variable.elements.get("0", ()), f"{self.script.label}:1")


# --- helpers --------------------------------------------------------------------------------------------


def _with_name(unknown: Unknown) -> Iterator[Unknown]:
    if unknown.name:
        yield unknown
    else:
        for cause in unknown.causes:
            yield from _with_name(cause)


def _other_causes(name: str, causes: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """Return the causes of a variable. A cause with the variable's own name, from an earlier round of a loop,
    is replaced by the causes of that value.
    """
    return without_duplicates(
        part
        for cause in causes
        for part in (cause.causes if cause.causes and cause.name == name else (cause,))
    )


def _owned(name: str, variable: Variable) -> dict[str, Runs]:
    """Return a variable's elements without their quotes, and with the output of commands named after the
    variable that holds it.
    """
    elements = {}
    for key, runs in variable.elements.items():
        kept = []
        for run in runs:
            unknown = run.unknown
            if unknown is not None and not unknown.name:
                causes = _other_causes(name, (part for cause in unknown.causes for part in _with_name(cause)))
                unknown = Unknown(unknown.text, name, unknown.place, unknown.reason, causes, unknown.choices)
            kept.append(Run(run.text, run.place, False, unknown))
        elements[key] = tuple(kept)
    return elements


def _collapsed(runs: Runs) -> Runs:
    """Return a text with its neighbouring known parts kept apart, so that each has its own place."""
    return tuple(run._replace(quoted=True) for run in runs)


def _descriptor(source: Source, node: "Node", body: "Node | None") -> str:
    """Return the descriptor of `command 2>> log` if the parser takes it for an argument; else ""."""
    if body is None or body.type != "command" or not body.children:
        return ""
    text = source.of(body.children[-1])
    follows = any(
        child.type == "file_redirect" and child.start_byte == body.end_byte for child in node.children
    )
    return text if follows and text.isdigit() and len(text) == 1 else ""


def _is_list(runs: Runs) -> bool:
    """Return whether a word may be several words, or none: an unquoted part that is not known."""
    return any(run.unknown is not None and not run.quoted for run in runs) and all(
        run.unknown is not None or not run.text for run in runs
    )


def _name_of(source: Source, node: "Node") -> str:
    target = node.child_by_field_name("name")
    return source.of(target).partition("[")[0] if target is not None else ""


def _ordered(elements: dict[str, Runs], kind: str) -> dict[str, Runs]:
    """Return the elements of a list by ascending index."""
    if kind == "table" or not all(key.isdigit() for key in elements):
        return elements
    return {key: elements[key] for key in sorted(elements, key=int)}


def _without_start(runs: Runs, length: int) -> Runs:
    kept = []
    for run in runs:
        if length >= len(run.text):
            length -= len(run.text)
            continue
        kept.append(run._replace(text=run.text[length:]) if length else run)
        length = 0
    return tuple(kept)


def _fields(line: str, separators: str, count: int) -> list[str]:
    """Split a line as `read` does: the last of `count` variables takes the rest."""
    blanks = "".join(letter for letter in separators if letter in " \t\n")
    others = "".join(letter for letter in separators if letter not in " \t\n")
    line = line.strip(blanks) if blanks else line
    if not separators or not line:
        return [line] if line else []
    blank = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    other = f"[{re.escape(others)}]" if others else "(?!)"
    pattern = re.compile(f"{blank}*{other}{blank}*|{blank}+")
    parts = pattern.split(line, maxsplit=count - 1 if count > 1 else 0 if count == 0 else -1)
    if count == 1:
        parts = [line]
    if count and len(parts) == count and (last := pattern.search(parts[-1])) and last.end() == len(parts[-1]):
        parts[-1] = parts[-1][: last.start()]  # the one separator after the last field
    if count == 0 and parts and not parts[-1]:
        parts.pop()
    return parts


def _first_words(text: str) -> str:
    """Return the first line of a text, without its final backslash; "" for a comment or an empty line."""
    line = text.partition("\n")[0].strip().rstrip("\\").strip()
    return "" if line.startswith("#") else line


def _is_code(root: "Node", byte: int) -> bool:
    """Return whether a byte is outside of comments, strings and here-documents."""
    node = root.descendant_for_byte_range(byte, byte + 1)
    while node is not None:
        if node.type in (
            "comment",
            "raw_string",
            "string",
            "heredoc_body",
            "ansi_c_string",
            "regex",
            "array",
        ):
            return False
        node = node.parent
    return True


_STATEMENTS: dict[str, Callable[[_Evaluator, "Node"], None]] = {
    "command": _Evaluator._command,
    "variable_assignment": _Evaluator._assign_node,
    "declaration_command": _Evaluator._declare,
    "unset_command": _Evaluator._unset_node,
    "test_command": _Evaluator._test,
    "list": _Evaluator._list_node,
    "negated_command": _Evaluator._negated,
    "if_statement": _Evaluator._if,
    "case_statement": _Evaluator._case,
    "for_statement": _Evaluator._for,
    "c_style_for_statement": _Evaluator._c_for,
    "while_statement": _Evaluator._while,
    "function_definition": _Evaluator._function,
    "subshell": _Evaluator._subshell,
    "pipeline": _Evaluator._pipeline,
    "compound_statement": _Evaluator._compound,
    "redirected_statement": _Evaluator._redirected,
}

_BUILTINS: dict[str, Callable[[_Evaluator, list[Runs], str], None]] = {
    "eval": _Evaluator._eval,
    "source": _Evaluator._source,
    ".": _Evaluator._source,
    "exit": _Evaluator._exit,
    "return": _Evaluator._exit,
    "break": _Evaluator._leave,
    "continue": _Evaluator._leave,
    "set": _Evaluator._set,
    "shift": _Evaluator._shift,
    "unset": _Evaluator._unset,
    "read": _Evaluator._read,
    "mapfile": _Evaluator._read,
    "readarray": _Evaluator._read,
    "printf": _Evaluator._printf,
    "echo": _Evaluator._echo,
    "getopts": _Evaluator._getopts,
    "let": _Evaluator._let,
    "test": _Evaluator._test_words,
    "[": _Evaluator._test_words,
    "true": _Evaluator._answer,
    ":": _Evaluator._answer,
    "false": _Evaluator._answer,
    "cd": _Evaluator._nothing,
    "trap": _Evaluator._nothing,
    "shopt": _Evaluator._shopt,
    "wait": _Evaluator._nothing,
    "alias": _Evaluator._nothing,
}
