"""Simulates simple commands, which consist of assignments, words and redirections.

Each becomes a Command, the effect of a builtin, or the call of a function.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.assignments import assignment
from nbtrain.foreign.bash.cut_commands import is_cut_before, report_cut
from nbtrain.foreign.bash.expansion import Expansion
from nbtrain.foreign.bash.output import collapsed, print_output, write_file
from nbtrain.foreign.bash.redirections import herestring, redirect, words_in_redirect
from nbtrain.foreign.bash.script import Command
from nbtrain.foreign.bash.shell import IGNORED, MOST_CALLS, Shell
from nbtrain.foreign.bash.syntax_tree import (
    SPACE_AFTER_BACKSLASH,
    BashSyntaxError,
    Unread,
    adjacent,
)
from nbtrain.foreign.bash.variables import (
    Function,
    Run,
    Runs,
    Variable,
    text_of,
    unknowns_of,
    without_duplicates,
    word_of,
)
from nbtrain.foreign.syntax.located import Word

if TYPE_CHECKING:
    from tree_sitter import Node

# Commands run for their exit status, which cannot be known here; all others are assumed to succeed.
QUESTIONS = {"egrep", "grep", "command", "which", "type", "pgrep", "diff", "cmp", "ls", "hash", "ping", "nc"}


def follow_command(shell: Shell, node: "Node") -> None:
    """Simulate a simple command."""
    simple_command(shell, node, node.children)


def follow_word(shell: Shell, node: "Node") -> None:
    """Simulate a statement that is a single word."""
    simple_command(shell, node, [node])


def simple_command(shell: Shell, node: "Node", children: Sequence["Node"]) -> None:
    """Simulate a simple command: assignments, words and redirections."""
    outer_stdin, outer_sink, outer_certain = shell.stdin, shell.sink, shell.certain
    own = [child for child in children if child.type in ("file_redirect", "herestring_redirect")]
    written: list[tuple[str, bool]] = []
    for child in own:
        if child.type == "file_redirect":
            redirect(shell, child, written, [])
    if written:
        shell.sink, shell.certain = [], (len(shell.conditions), len(shell.state.doubts))
    _run_words(shell, node, children)
    if written:
        printed = collapsed(tuple(shell.sink or ()))
        shell.sink, shell.certain = outer_sink, outer_certain
        write_file(shell, written[-1][0], printed, written[-1][1])
    if own:
        shell.stdin = outer_stdin  # otherwise `read` may have consumed a line of the surrounding input


def _run_words(shell: Shell, node: "Node", children: Sequence["Node"]) -> None:
    assignments: list[tuple[str, Variable]] = []
    words: list[Runs] = []
    place = shell.source.place_of(node)
    before, shell.state.status = shell.state.status, True
    end = children[0].start_byte if children else node.start_byte
    for child, *more in adjacent(shell.source, children):
        gap = shell.source.slice(end, child.start_byte)
        end = (more[-1] if more else child).end_byte
        if SPACE_AFTER_BACKSLASH.search(gap):
            words.append((Run(" ", shell.source.place(child.start_byte), True),))
        if child.type == "variable_assignment" and not words:
            name, variable = assignment(shell, child, following=more)
            assignments += [(name, variable)] if name else []
        elif child.type in ("file_redirect", "herestring_redirect"):
            if child.type == "herestring_redirect":
                shell.stdin = herestring(shell, child)
            else:
                words += words_in_redirect(shell, child)
        elif child.is_named and child.type not in IGNORED:
            # In `let N=A*B`, the * multiplies; it is not a file pattern.
            is_let = bool(words) and text_of(words[0]) == "let"
            expand = shell.expansion.texts if is_let else shell.expansion.words
            words += expand(child, *more)
    after = shell.source.text[node.end_byte : node.end_byte + 200].decode(errors="replace")
    if match := re.match(r"[ \t]*\\[ \t]+(#)?", after):
        words.append((Run(" #" if match.group(1) else " ", place, True),))
    if not words:
        # The last $(...), if there is one, sets the status.
        shell.set_status(shell.state.status, shell.causes if shell.state.status is None else ())
        for name, variable in assignments:
            shell.assign(name, variable)
        return
    shell.state.status = before
    shell.step_on(len(words), place)
    _start(shell, words, assignments, place)


def _start(shell: Shell, words: list[Runs], assignments: list[tuple[str, Variable]], place: str) -> None:
    """Simulate a builtin or the call of a function, or record any other command."""
    head = text_of(words[0]) if not unknowns_of(words[0]) else ""
    if form := shell.script.unread.get(head):
        _skip_unread(shell, form, place)
        return
    builtin = shell.language.builtins.get(head)
    if head in shell.state.functions and shell.calls < MOST_CALLS:
        _call(shell, head, words[1:], assignments)
        return
    if head in ("command", "builtin") and len(words) > 1 and not text_of(words[1]).startswith("-"):
        _start(shell, words[1:], assignments, place)
        return
    if builtin is not None:
        before = {name: shell.state.variables.get(name) for name, _ in assignments}
        for name, variable in assignments:
            shell.assign(name, variable)
        builtin(shell, words, place)
        shell.restore(before)
        return
    environment = {name: word_of(variable.elements.get("0", ()), place) for name, variable in assignments}
    command = command_of(shell, words, environment, shell.stdin, place, dict(assignments))
    if not shell.silent:
        shell.commands.append(command)
        if re.match(r"--[a-z]", head) and not is_cut_before(shell.script, place):
            report_cut(
                shell.script,
                place,
                "the missing backslash at the end of the previous line",
                shortened(head),
                "End the previous line with a backslash.",
            )
    print_output(shell, words)
    if not shell.state.flow:
        asks = head in QUESTIONS or shell.in_condition or not head
        asks = asks or (head.startswith("python") and [text_of(runs) for runs in words[1:2]] == ["-c"])
        causes = unknowns_of(words[0])
        shell.set_status(None if asks else True, causes)
    # exec without a command only redirects the shell's own output.
    if head == "exec" and any(not re.fullmatch(r"\{\w+\}", text_of(runs)) for runs in words[1:]):
        shell.state.flow = "exit"


def command_of(
    shell: Shell,
    words: list[Runs],
    environment: dict[str, Word],
    stdin: Runs | None,
    place: str,
    assignments: Mapping[str, Variable] | None = None,
) -> Command:
    """Return a command with the variables and functions that it inherits."""
    exported = dict(shell.state.exported)
    for name, variable in (assignments or {}).items():
        exported[name] = Variable(variable.elements, variable.kind, True)
    conditions = [*shell.conditions, shell.state.doubts] if shell.state.doubts else shell.conditions
    calls, functions = shell.calls, dict(shell.state.functions)

    def inner(text: Runs, arguments: Sequence[Runs], more: Mapping[str, Variable]) -> list[Command]:
        return _commands_of_script(shell, text, arguments, exported | dict(more), calls, functions)

    def read_file(name: str, arguments: Sequence[Runs], more: Mapping[str, Variable]) -> list[Command] | None:
        word = shell.around.file(name)
        if word is None:
            return None
        shell.script.read.add(PurePosixPath(name).name)
        runs = (Run(word.text, word.place, True),)
        return _commands_of_script(shell, runs, arguments, exported | dict(more), calls, {})

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


def _commands_of_script(
    shell: Shell,
    text: Runs,
    arguments: Sequence[Runs],
    environment: Mapping[str, Variable],
    calls: int,
    functions: Mapping[str, Function],
) -> list[Command]:
    """Return the commands of a script that another shell reads: `bash -c TEXT`, `bash FILE`."""
    if calls >= MOST_CALLS:
        return []
    inner = Shell(shell.language, shell.script, shell.around)
    inner.commands = []
    inner.calls, inner.room, inner.steps = calls + 1, shell.room, shell.steps
    inner.state.variables |= environment
    inner.state.arguments = tuple(arguments)
    source = inner.text_source(text)
    try:
        inner.file(source)
    except BashSyntaxError:
        inner.commands.append(
            command_of(inner, [(Run(text_of(text), source.place(0), True),)], {}, None, source.place(0))
        )
    shell.steps = inner.steps
    return inner.commands


def _call(shell: Shell, name: str, arguments: list[Runs], assignments: list[tuple[str, Variable]]) -> None:
    """Simulate the body of a function."""
    function = shell.state.functions[name]
    outer_arguments, outer = shell.state.arguments, (shell.source, shell.expansion)
    before = {name: shell.state.variables.get(name) for name, _ in assignments}
    doubts, departures = shell.state.doubts, shell.departures
    for name, variable in assignments:
        shell.assign(name, variable)
    shell.state.arguments = tuple(arguments)
    shell.frames.append({})
    shell.calls += 1
    shell.source, shell.expansion = function.source, Expansion(shell, function.source)
    stdin, shell.stdin = shell.stdin, None
    shell.statement(function.body)
    shell.stdin = stdin
    shell.source, shell.expansion = outer
    shell.calls -= 1
    shell.restore(shell.frames.pop() | before)
    shell.state.arguments = outer_arguments
    if shell.state.flow == "return":
        shell.state.flow = ""
    shell.state.doubts, shell.departures = doubts, departures


def _skip_unread(shell: Shell, form: Unread, place: str) -> None:
    """Simulate a statement that the parser does not read. Every variable that it names may change."""
    reason = f"nbtrain does not read {form.shown}, which may set it"
    for name in dict.fromkeys(re.findall(r"(?<![\w$])(?:\$\{)?([A-Za-z_]\w*)", form.text)):
        if name in shell.state.variables or re.search(rf"(?<!\w){name}(\[[^\]]*\])?\+?=", form.text):
            shell.assign(name, shell.lost(name, place, reason))
    if not shell.silent:
        shell.commands.append(command_of(shell, [(Run(form.text, place, True),)], {}, None, place))
    shell.set_status(None)
