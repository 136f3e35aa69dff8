"""Evaluates conditions and arithmetic: test, [ ... ], [[ ... ]] and (( ... ))."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.arithmetic import NotArithmetic
from nbtrain.foreign.bash.patterns import Condition, Token, Undecided
from nbtrain.foreign.bash.shell import IGNORED, Shell
from nbtrain.foreign.bash.variables import (
    Run,
    text_of,
    without_duplicates,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node

# Variables that arithmetic sets, such as X in `X += 1`.
_SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")


def compute(shell: Shell, text: str, unknowns: tuple[Unknown, ...], place: str) -> bool | None:
    """Evaluate arithmetic for its effects, and return whether the result is not 0; None if it is unknown."""
    try:
        if unknowns:
            raise Undecided(*unknowns)
        return shell.expansion.number(text, place) != 0
    except (Undecided, NotArithmetic) as error:
        causes = error.unknowns if isinstance(error, Undecided) else ()
        for one, other in _SETS.findall(text):
            name = one or other
            shell.assign(
                name, shell.lost(name, place, "an arithmetic expression sets it", without_duplicates(causes))
            )
        shell.causes = without_duplicates(causes)
        return None


def arithmetic(shell: Shell, node: "Node", start: int, end: int, place: str) -> bool | None:
    """Evaluate an arithmetic expression with its assignments, and return whether the result is not 0.

    The expression is the source text from byte `start` to byte `end`, inside `node`. Returns None if only the
    running shell knows the result.
    """
    try:
        text = shell.expansion._expression(node, start, end)
    except Undecided as error:
        return compute(shell, shell.source.slice(start, end), without_duplicates(error.unknowns), place)
    return compute(shell, text, (), place)


def decide(shell: Shell, tokens: list[Token], double: bool, place: str) -> None:
    """Set the shell's status to the result of a condition; None if only the running shell knows the result.

    `double` is set for [[ ... ]], and not set for [ ... ].
    """

    def number(text: str) -> int:
        return shell.expansion.number(text, place)

    def is_set(name: str) -> bool:
        variable = shell.variable(name, place)
        if variable is not None and (unknown := variable.unknown) is not None:
            raise Undecided(unknown)
        return variable is not None

    try:
        shell.set_status(Condition(tokens, double, number, is_set).holds())
    except Undecided as error:
        shell.set_status(None, without_duplicates(error.unknowns))
    except (NotArithmetic, IndexError):
        shell.set_status(None)


def follow_test(shell: Shell, node: "Node") -> None:
    """Simulate [ ... ], [[ ... ]] and (( ... )) used as a test."""
    opening = node.children[0].type
    place = shell.source.place_of(node)
    if opening == "((":
        follow_arithmetic(shell, node)
        return
    tokens = list(_tokens(shell, node.children[1:-1], opening == "[["))
    decide(shell, tokens, opening == "[[", place)


def _tokens(shell: Shell, nodes: Sequence["Node"], double: bool) -> Iterator[Token]:
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
            yield from _tokens(shell, node.children, double)
        elif node.type in IGNORED:
            continue
        elif not node.is_named or node.type == "test_operator":
            text = shell.source.of(node)
            if text in ("[", "]", "[[", "]]"):
                continue
            yield Token(text, None if double else (Run(text, shell.source.place_of(node)),))
        elif double:
            runs = shell.expansion.value(node)
            yield Token(text_of(runs), runs)
        else:
            for runs in shell.expansion.texts(node):
                yield Token(text_of(runs), runs)


def follow_arithmetic(shell: Shell, node: "Node") -> None:
    """Simulate (( ... ))."""
    first, last = node.children[0], node.children[-1]
    place = shell.source.place_of(node)
    shell.set_status(arithmetic(shell, node, first.end_byte, last.start_byte, place))
