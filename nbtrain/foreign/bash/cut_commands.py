"""Reports commands that end too early: at a comment, or at a space after the backslash of a line."""

import re
from typing import TYPE_CHECKING

from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.script import Script
from nbtrain.foreign.bash.syntax_tree import (
    SPACE_AFTER_BACKSLASH,
    Source,
    comments,
    cut_by_comment,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# The rule that a space after a backslash breaks. Such a space is also an argument of the command.
BACKSLASHES_END_LINES = "backslashes_end_lines"


def report_cut_commands(script: Script, source: Source, root: "Node") -> None:
    """Report comments, and spaces after a backslash, that end a command before its next line."""
    for node in comments(root):
        if cut_by_comment(source, node) and (rest := _rest_after(source, node.end_byte)):
            place = source.place_of(node)
            text = shortened(source.of(node).strip())
            report_cut(script, place, f"the comment {text}", rest, "Move the comment out of the command.")
    for match in re.finditer(SPACE_AFTER_BACKSLASH.pattern.encode(), source.text):
        if not _is_code(root, match.start()):
            continue
        report_cut(
            script,
            source.place(match.start()),
            "the space after the backslash",
            _rest_after(source, match.start()),
            "Make the backslash the last character of its line.",
            BACKSLASHES_END_LINES,
        )


def _rest_after(source: Source, byte: int) -> str:
    """Return the line after the one that contains a byte, shortened by _first_words().

    Returns "" if there is no such line.
    """
    start = source.text.find(b"\n", byte) + 1
    end = source.text.find(b"\n", start)
    return _first_words(source.slice(start, end)) if 0 < start <= end else ""


def is_cut_before(script: Script, place: str) -> bool:
    """Return whether the line before a place was already reported as ending its command."""
    label, _, line = place.rpartition(":")
    return f"{label}:{int(line) - 1}" in [remark.place for remark in script.remarks]


def report_cut(
    script: Script, place: str, what: str, rest: str, fix: str, rule: str = "commands_are_not_cut"
) -> None:
    """Report that `what` ends a command. `rest` is the text that is therefore not part of the command."""
    lost = f", so {shortened(rest)} is not part of the command" if rest.startswith("-") else ""
    script.remarks.append(
        Finding(
            "warning",
            rule,
            "",
            place,
            f"in bash, {what} ends the command{lost}.",
            fix,
            Cost(words="flags that the program never receives"),
        )
    )


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
