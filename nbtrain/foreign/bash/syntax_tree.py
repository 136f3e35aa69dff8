"""Parses bash scripts with tree-sitter-bash, and records the place of each part.

Nothing is ever run. tree-sitter is loaded when the first script is read.
"""

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.repair import Repair

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Maximum nesting depth. No job script is nested deeper, and the evaluator recurses for each level.
MOST_DEPTH = 80
EXPANSIONS = {
    "simple_expansion",
    "expansion",
    "command_substitution",
    "process_substitution",
    "arithmetic_expansion",
}


class BashSyntaxError(ConfigError):
    """Raised for a script that bash could not read either."""


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a script, and where each of its parts was written."""

    text: bytes
    segments: tuple[tuple[int, str], ...]
    """(first byte of a piece of the text, place where the piece was written), ascending.

    The text of `eval` and `bash -c` may come from several places.
    """

    def place(self, byte: int) -> str:
        """Return the place of a byte, e.g. train.sh:12."""
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

    def replaced(self, start: int, end: int, text: bytes) -> "Source":
        """Return the source with the text between two bytes replaced by a text with as many lines."""
        moved = len(text) - (end - start)
        segments = [(byte + moved if byte >= end else byte, place) for byte, place in self.segments]
        return Source(self.text[:start] + text + self.text[end:], tuple(segments))


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of a script that the parser does not read, and the name that replaces it in the tree."""

    name: str
    text: str
    place: str
    is_statement: bool

    @property
    def shown(self) -> str:
        """The first line of the part, for messages."""
        line, _, more = self.text.partition("\n")
        return shortened(f"{line} …" if more else line)


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of a source, and the source as it was parsed, in which some forms are rewritten."""

    source: Source
    root: "Node"
    unread: tuple[Unread, ...] = ()


def source_of(text: str, place: str) -> Source:
    """Return the source of a text that begins at a place."""
    # A backslash at the end of the file does not continue a command.
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


_NUMBERS = itertools.count(1)


def _new_name() -> str:
    """Return a name that no script uses."""
    return f"nbtrain_form_{next(_NUMBERS)}"


def parse(source: Source) -> Tree:
    """Return the tree of a text. Raises BashSyntaxError, with the line, for text that is not bash.

    Forms of bash that the parser does not read are rewritten, or replaced by names (repair.py).
    """
    source, root = _with_ended_assignments(source)
    error = _first_error(root)
    tree = Tree(source, root) if error is None else _repaired(source)
    if tree is None:
        assert error is not None
        raise _syntax_error(source, error)
    _check_depth(tree.root, tree.source)
    return tree


def _with_ended_assignments(source: Source) -> "tuple[Source, Node]":
    """Return a source and its root node in which `X=$(...) 2> file` ends at its line.

    The parser would otherwise read the next line as the command of the assignment. The redirection, which
    changes no value, is replaced by spaces.
    """
    while True:
        root = _parser().parse(source.text).root_node
        spans = list(_redirections_before_a_line(source, root))
        if not spans:
            return source, root
        text = bytearray(source.text)
        for start, end in spans:
            text[start:end] = re.sub(rb"[^\n]", b" ", text[start:end])
        source = Source(bytes(text), source.segments)


def _redirections_before_a_line(source: Source, root: "Node") -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each redirection after an assignment that the next line is wrongly joined to.

    In `X=$(...) 2> file`, the parser takes the words on the next line for the command of the assignment.
    """
    pending = [root]
    while pending:
        node = pending.pop()
        pending += node.children
        if node.type != "command":
            continue
        redirections: list[tuple[int, int]] = []
        assigns = False
        for child, following in itertools.pairwise(node.children):
            if child.type == "file_redirect":
                redirections.append((child.start_byte, child.end_byte))
            elif child.type == "variable_assignment":
                assigns = True
            elif child.type != "comment":
                break
            gap = source.text[child.end_byte : following.start_byte].replace(b"\\\n", b"")
            if assigns and redirections and (b"\n" in gap or child.type == "comment"):
                yield from redirections
                break


def _repaired(source: Source) -> Tree | None:
    """Return the tree of a source in which the forms that the parser rejects are replaced.

    Returns None if the text is not bash.
    """

    @functools.cache
    def refuses(text: str) -> bool:
        return _first_error(_parser().parse(text.encode("latin-1")).root_node) is not None

    unread: list[Unread] = []
    for text, change in Repair(refuses, _new_name).changes(source.text.decode("latin-1")):
        if change.name:
            shown = change.unread.encode("latin-1").decode(errors="replace")
            for form in unread:
                shown = shown.replace(f"${{{form.name}}}", form.text)
            unread.append(Unread(change.name, shown, source.place(change.start), change.is_statement))
        source = source.replaced(change.start, change.end, change.text.encode("latin-1"))
        root = _parser().parse(text.encode("latin-1")).root_node
        if _first_error(root) is None:
            ended, root = _with_ended_assignments(source)
            if _first_error(root) is None:
                return Tree(ended, root, tuple(unread))
    return None


def _syntax_error(source: Source, node: "Node") -> BashSyntaxError:
    """Return the error for the first node that does not fit bash's grammar."""
    text = source.of(node).strip()
    if node.is_missing:
        missing = {
            "heredoc_end": "the line that ends the here-document",
            '"': 'the closing "',
            "word": "a word",
        }.get(node.type, node.type)
        where = source.place_of(node.parent or node)
        message = f"{where}: the script cannot be read as bash: {missing} is missing."
    elif placeholder := re.match(r"<[A-Za-z][^<>|&;\n]*>", source.slice(node.start_byte, len(source.text))):
        message = (
            f"{source.place_of(node)}: {shortened(placeholder.group(0))} is a placeholder, which bash "
            "reads as a redirection. Write the value instead."
        )
    else:
        line = shortened(text.partition("\n")[0].strip() or "the end of the file")
        line += "" if line.endswith("…") else "."
        message = (
            f"{source.place_of(node)}: this is not bash, or a form of bash that nbtrain does not read: {line}"
            " Correct it, or write it in another form."
        )
    return BashSyntaxError(message)


def _first_error(root: "Node") -> "Node | None":
    """Return the first node that does not fit bash's grammar, or None."""
    pending = [root] if root.has_error else []
    while pending:
        node = pending.pop()
        if node.type == "ERROR" or (node.is_missing and not _ends_an_assignment(node)):
            return node
        pending += [child for child in reversed(node.children) if child.has_error or child.is_missing]
    return None


def _ends_an_assignment(node: "Node") -> bool:
    """Return whether tree-sitter reports a missing command name after `X=$(...) 2> file`.

    That is valid bash: an assignment with a redirection needs no command.
    """
    command = node.parent
    while command is not None and command.type == "command_name":
        command = command.parent
    return (
        node.type == "word"
        and command is not None
        and command.type == "command"
        and command.children[0].type == "variable_assignment"
        and any(child.type == "file_redirect" for child in command.children)
    )


def _check_depth(root: "Node", source: Source) -> None:
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH * 4:
            raise BashSyntaxError(
                f"{source.place_of(level[0])}: the script is nested too deeply to be read. Give the script "
                "that starts the training."
            )
        level = [child for node in level for child in node.children]


def comments(root: "Node") -> Iterator["Node"]:
    """Yield all comments in order."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "comment":
            yield node
        pending += reversed(node.children)


def expansions_in(node: "Node") -> Iterator["Node"]:
    """Yield the outermost expansions in a node, in order."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        else:
            yield from expansions_in(child)


def adjacent(source: Source, nodes: "Sequence[Node]") -> "Iterator[list[Node]]":
    """Yield the nodes of each word.

    The parser splits a text before a backquote, and at a backslash at the end of a line.
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


# A backslash that is not the last character of its line: bash reads the space as an argument.
SPACE_AFTER_BACKSLASH = re.compile(r"(?<!\\)\\[ \t]+(?=#|\n|\Z)")
