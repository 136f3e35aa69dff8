"""Simulates A && B, A || B, !, if and case. Both branches are simulated if a condition is undecided."""

from typing import TYPE_CHECKING

from nbtrain.foreign.bash.patterns import Undecided, matches
from nbtrain.foreign.bash.shell import IGNORED, Shell
from nbtrain.foreign.bash.variables import (
    Runs,
    merge,
    unknowns_of,
    without_duplicates,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node


def follow_list(shell: Shell, node: "Node") -> None:
    """Simulate A && B and A || B."""
    left = node.children[0]
    operator = next(child.type for child in node.children[1:] if child.type in ("&&", "||"))
    right = [child for child in node.children[1:] if child.is_named and child.type not in IGNORED]
    if left.is_named:
        shell.tested += 1
        shell.statement(left)
        shell.tested -= 1
    if shell.state.flow or not right:
        return
    status, causes = shell.state.status, shell.causes
    runs = status if operator == "&&" else (None if status is None else not status)
    if runs:
        shell.block(right)
    elif runs is None:
        before = shell.state.copy()
        shell.under(causes, lambda: shell.block(right))
        after_status = shell.state.status
        shell.state = merge(before, shell.state, causes, shell.changed)
        decisive = operator == "||"
        shell.set_status(True if decisive and after_status else None, causes)
        if not decisive and after_status is False:
            shell.set_status(False)


def follow_negation(shell: Shell, node: "Node") -> None:
    """Simulate `! COMMAND`."""
    shell.tested += 1
    shell.block([child for child in node.children if child.type != "!"])
    shell.tested -= 1
    status = shell.state.status
    shell.set_status(None if status is None else not status, shell.causes)


def follow_if(shell: Shell, node: "Node") -> None:
    """Simulate if, elif and else."""
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
    _branches(shell, [(condition, body), *parts], otherwise)


def _branches(shell: Shell, parts: list[tuple[list["Node"], list["Node"]]], otherwise: list["Node"]) -> None:
    if not parts:
        shell.set_status(True)
        shell.block(otherwise)
        return
    (condition, body), rest = parts[0], parts[1:]
    holds, causes = shell.condition(condition)
    if shell.state.flow:
        return
    if holds:
        shell.block(body)
    elif holds is False:
        _branches(shell, rest, otherwise)
    else:
        shell.fork(causes, lambda: shell.block(body), lambda: _branches(shell, rest, otherwise))


def follow_case(shell: Shell, node: "Node") -> None:
    """Simulate case, matching its patterns in order."""
    value_node = node.child_by_field_name("value")
    runs = shell.expansion.value(value_node) if value_node is not None else ()
    items = [child for child in node.children if child.type == "case_item"]
    _items(shell, runs, items)


def _items(shell: Shell, runs: Runs, items: list["Node"]) -> None:
    if not items:
        shell.set_status(True)
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
            if matches(runs, shell.expansion.value(pattern)):
                found = True
                break
        except Undecided as error:
            found = None
            causes += error.unknowns
    if falls and found is not False:
        found, causes = None, causes or list(unknowns_of(runs))
    if found:
        shell.block(body)
    elif found is False:
        _items(shell, runs, rest)
    else:
        known = without_duplicates(causes)
        shell.fork(known, lambda: shell.block(body), lambda: _items(shell, runs, rest))
