"""Syntax of bash scripts: the tree of tree-sitter-bash, and the place of every part.

Nothing is ever run. tree-sitter is loaded when the first script is read.
"""

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.terminal import shortened

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Deepest nesting that is read. No script of a job has more, and the evaluator calls itself for each level.
MOST_DEPTH = 80
EXPANSIONS = {
    "simple_expansion",
    "expansion",
    "command_substitution",
    "process_substitution",
    "arithmetic_expansion",
}


class BashSyntaxError(ConfigError):
    """A script that bash could not read either."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a script, and where each of its parts was written."""

    text: bytes
    segments: tuple[tuple[int, str], ...]
    """(first byte, place), ascending. The text of `eval` and `bash -c` may come from several lines."""

    def place(self, byte: int) -> str:
        """Return the place of a byte, such as "train.sh:12"."""
        start, place = self.segments[max(bisect_right(self.segments, byte, key=lambda part: part[0]) - 1, 0)]
        label, _, line = place.rpartition(":")
        lines = self.text.count(b"\n", start, byte)
        return f"{label}:{int(line) + lines}"

    def slice(self, start: int, end: int) -> str:
        """Return the text between two bytes."""
        return self.text[start:end].decode(errors="replace")

    def of(self, node: "Node") -> str:
        """Return the text of a node."""
        return self.slice(node.start_byte, node.end_byte)

    def place_of(self, node: "Node") -> str:
        """Return the place at which a node begins."""
        return self.place(node.start_byte)


def source_of(text: str, place: str) -> Source:
    """Return the source of a text that begins at a place."""
    # A backslash at the end of the file continues nothing.
    text = re.sub(r"(\s*\\)+\s*\Z", "", text.replace("\r\n", "\n").replace("\0", "\ufffd"))
    return Source(f"{text}\n".encode(errors="replace"), ((0, place),))


def source_of_parts(parts: Sequence[tuple[str, str]]) -> Source:
    """Return the source of a text whose (text, place) parts were written in several places."""
    segments, text = [], b""
    for part, place in parts:
        segments.append((len(text), place))
        text += part.encode(errors="replace")
    return Source(text + b"\n", tuple(segments) or ((0, "?:1"),))


@functools.cache
def _parser() -> "Parser":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(source: Source) -> "Node":
    """Return the root of the tree. Raises BashSyntaxError, with the line, for text that the parser
    does not read: text that is not bash, and a few rare forms of bash, such as $((10#$x)).
    """
    root = _parser().parse(source.text).root_node
    if root.has_error and (node := _first_error(root)) is not None:
        text = source.of(node).strip()
        if node.is_missing:
            missing = {
                "heredoc_end": "the line that ends the here-document",
                '"': 'the closing "',
                "word": "a word",
            }.get(node.type, node.type)
            message = f"{source.place_of(node.parent or node)}: cannot be read as bash: {missing} is missing."
        elif placeholder := re.match(
            r"<[A-Za-z][^<>|&;\n]*>", source.slice(node.start_byte, len(source.text))
        ):
            message = (
                f"{source.place_of(node)}: {shortened(placeholder.group(0))} is a placeholder, which bash "
                "takes for a redirection: write the value instead."
            )
        else:
            line = shortened(text.partition("\n")[0].strip() or "the end of the file")
            line += "" if line.endswith("…") else "."
            message = (
                f"{source.place_of(node)}: this is not bash, or a form that nbtrain does not read: {line}"
            )
        raise BashSyntaxError(message)
    _check_depth(root, source)
    return root


def _first_error(root: "Node") -> "Node | None":
    """Return the first node that does not fit bash's grammar."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.is_missing or node.type == "ERROR":
            return node
        pending += [child for child in reversed(node.children) if child.has_error or child.is_missing]
    return None


def _check_depth(root: "Node", source: Source) -> None:
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH * 4:
            raise BashSyntaxError(f"{source.place_of(level[0])}: nested too deeply for the script of a job.")
        level = [child for node in level for child in node.children]


def comments(root: "Node") -> Iterator["Node"]:
    """Yield all comments in their order."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "comment":
            yield node
        pending += reversed(node.children)


def expansions_in(node: "Node") -> Iterator["Node"]:
    """Yield the outermost expansions in a node, in their order."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        else:
            yield from expansions_in(child)


def adjacent(source: Source, nodes: "Sequence[Node]") -> "Iterator[list[Node]]":
    """Yield the nodes of each word: the parser makes two of a text that a backquote follows, and of one with
    a backslash at the end of a line.
    """
    group: list[Node] = []
    for node in nodes:
        if group and (
            not node.is_named
            or not re.fullmatch(rb"(\\\n)*", source.text[group[-1].end_byte : node.start_byte])
        ):
            yield group
            group = []
        if node.is_named:
            group.append(node)
    if group:
        yield group


def cut_by_comment(source: Source, comment: "Node") -> bool:
    """Return whether the line before a comment ends in a backslash, so that the comment ends its command."""
    before = source.text[max(comment.start_byte - 1000, 0) : comment.start_byte].rstrip(b" \t")
    return bool(re.search(rb"(^|[^\\])\\\n\Z", before))


# A backslash that is not the last character of its line: bash takes the space for an argument.
SPACE_AFTER_BACKSLASH = re.compile(r"(?<!\\)\\[ \t]+(?=#|\n|\Z)")
