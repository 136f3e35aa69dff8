"""Simulates a command's redirections: the text on its standard input, and the files it writes to."""

import re
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.shell import Shell
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    text_of,
    unknowns_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def redirect(shell: Shell, node: "Node", written: list[tuple[str, bool]], extra: list["Node"]) -> None:
    """Simulate one redirection, of standard input or of the output.

    Output files are added to `written` as (name, whether the output is appended). Words after the file, which
    belong to the command, are added to `extra`.
    """
    operator = next((child.type for child in node.children if not child.is_named), "")
    named = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    if not named:
        return
    extra += named[1:]
    descriptor = next((shell.source.of(c) for c in node.children if c.type == "file_descriptor"), "")
    runs = shell.expansion.value(named[0])
    if text_of(runs) in ("/dev/stdout", "/dev/fd/1"):
        return
    if operator in (">", ">>", "&>", "&>>", ">|") and descriptor in ("", "1"):
        written.append((text_of(runs), operator in (">>", "&>>")))
    elif operator == ">&" and descriptor in ("", "1") and text_of(runs) == "2":
        written.append(("/dev/stderr", True))
    elif operator == "<":
        shell.stdin = None
        if unknowns_of(runs):
            return
        word = shell.script.documents.get(text_of(runs))
        word = word or shell.around.file(text_of(runs))
        if word is not None and not word.unknowns:
            shell.stdin = (Run(word.text, word.place, True),)


def heredoc(shell: Shell, node: "Node") -> Runs:
    """Return the text of a here-document."""
    start = next((child for child in node.children if child.type == "heredoc_start"), None)
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if body is None:
        return ()
    shell.spend(body.end_byte - body.start_byte, shell.source.place_of(body), "a here-document")
    opening = shell.source.of(start) if start is not None else ""
    tabs = any(child.type == "<<-" for child in node.children)
    if re.search(r"['\"\\]", opening):
        runs: Runs = (Run(shell.source.of(body), shell.source.place_of(body), True),)
    else:
        runs = tuple(run for run in shell.expansion.value(body) if run.text)
    if tabs:
        runs = tuple(
            run._replace(text=re.sub(r"(?m)^\t+", "", run.text)) if not run.unknown else run for run in runs
        )
    return runs or (Run("", shell.source.place_of(body), True),)


def herestring(shell: Shell, node: "Node") -> Runs:
    """Return the text of `<<< WORD`."""
    named = [child for child in node.children if child.is_named]
    runs = shell.expansion.value(named[-1]) if named else ()
    return (*runs, Run("\n", shell.source.place_of(node), True))


def words_in_redirect(shell: Shell, node: "Node") -> list[Runs]:
    """Return the words after a redirection's target, which bash treats as arguments of the command."""
    named = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    return [word for child in named[1:] for word in shell.expansion.words(child)]
