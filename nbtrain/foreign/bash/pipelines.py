"""Simulates pipelines and commands with redirections, whose output becomes input or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.output import collapsed, write_file
from nbtrain.foreign.bash.redirections import heredoc, herestring, redirect
from nbtrain.foreign.bash.shell import IGNORED, Shell
from nbtrain.foreign.bash.simple_commands import simple_command
from nbtrain.foreign.bash.syntax_tree import (
    Source,
)
from nbtrain.foreign.bash.variables import (
    Runs,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def follow_pipeline(shell: Shell, node: "Node") -> None:
    """Simulate A | B."""
    parts = [child for child in node.children if child.is_named and child.type not in IGNORED]
    _piped(shell, parts, shell.stdin)


def _piped(shell: Shell, parts: Sequence["Node"], stdin: Runs | None) -> None:
    """Simulate the commands of a pipeline, each in a subshell that reads the previous command's output."""
    outer_sink, outer_stdin, outer_certain = shell.sink, shell.stdin, shell.certain
    statuses: list[bool | None] = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        shell.stdin = stdin
        shell.sink = outer_sink if last else []
        shell.certain = outer_certain if last else (len(shell.conditions), len(shell.state.doubts))
        shell.apart(part)
        statuses.append(shell.state.status)
        if not last:
            stdin = collapsed(tuple(shell.sink or ()))
    shell.sink, shell.stdin, shell.certain = outer_sink, outer_stdin, outer_certain
    if "pipefail" in shell.state.options and shell.state.status and not all(statuses):
        shell.set_status(False if False in statuses else None)


def follow_redirected(shell: Shell, node: "Node") -> None:
    """Simulate a command with redirections, and record the texts that it writes to files."""
    body = node.child_by_field_name("body")
    outer_stdin, outer_sink = shell.stdin, shell.sink
    written: list[tuple[str, bool]] = []
    after: list[Node] = []
    piped: list[Node] = []
    extra: list[Node] = []
    descriptor = _descriptor(shell.source, node, body)
    reads = False
    """Whether the command redirects its standard input."""
    for child in node.children:
        if child == body:
            continue
        if child.type == "file_redirect":
            before = list(written)
            reads = reads or any(part.type == "<" for part in child.children)
            redirect(shell, child, written, extra)
            if descriptor not in ("", "1") and body is not None and child.start_byte == body.end_byte:
                written = before
        elif child.type == "herestring_redirect":
            shell.stdin, reads = herestring(shell, child), True
        elif child.type == "heredoc_redirect":
            shell.stdin, reads = heredoc(shell, child), True
            for inner in child.children:
                if inner.type == "file_redirect":
                    redirect(shell, inner, written, extra)
                elif inner.type == "pipeline":
                    piped = [part for part in inner.children if part.is_named]
                elif inner.is_named and inner.type not in IGNORED:
                    after.append(inner)
    target = written[-1] if written else None
    outer_certain = shell.certain
    if target or piped:
        shell.sink, shell.certain = [], (len(shell.conditions), len(shell.state.doubts))
    if body is not None:
        if (extra or descriptor) and body.type == "command":
            simple_command(shell, body, [*(body.children[:-1] if descriptor else body.children), *extra])
        else:
            shell.statement(body)
    printed = collapsed(tuple(shell.sink or ())) if target or piped else ()
    shell.stdin = outer_stdin if reads else shell.stdin
    shell.sink, shell.certain = outer_sink, outer_certain
    if piped:
        _piped(shell, piped, printed)
    elif target:
        write_file(shell, target[0], printed, target[1])
    if after:
        shell.block(after)


def _descriptor(source: Source, node: "Node", body: "Node | None") -> str:
    """Return the file descriptor, 2 in `command 2>> log`, if the parser treats it as an argument; else ""."""
    if body is None or body.type != "command" or not body.children:
        return ""
    text = source.of(body.children[-1])
    follows = any(
        child.type == "file_redirect" and child.start_byte == body.end_byte for child in node.children
    )
    return text if follows and text.isdigit() and len(text) == 1 else ""
