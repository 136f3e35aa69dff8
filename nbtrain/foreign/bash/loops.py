"""Simulates loops (for, select, while, until) round by round, as long as each round can be decided."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbtrain.base.text.terminal import shortened
from nbtrain.foreign.bash.conditions import arithmetic
from nbtrain.foreign.bash.shell import IGNORED, MOST_ROUNDS, Shell
from nbtrain.foreign.bash.syntax_tree import (
    adjacent,
)
from nbtrain.foreign.bash.variables import (
    UNNAMED,
    Run,
    Runs,
    State,
    Variable,
    text_of,
    text_variable,
    unknown_run,
    unknowns_of,
    without_duplicates,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node


def follow_for(shell: Shell, node: "Node") -> None:
    """Simulate `for NAME in WORDS`, `for NAME` over the arguments, and `select`."""
    name_node = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    if name_node is None or body is None:
        return
    name = shell.source.of(name_node)
    place = shell.source.place_of(node)
    keyword = node.children[0].type
    listed = any(child.type == "in" for child in node.children)
    values: list[Runs] = []
    if listed:
        at = next(number for number, child in enumerate(node.children) if child.type == "in")
        for child, *more in adjacent(shell.source, node.children[at + 1 :]):
            if child == body:
                break
            if child.type not in IGNORED:
                values += shell.expansion.words(child, *more)
        unknown = tuple(part for runs in values for part in unknowns_of(runs))
        known = not any(_is_list(runs) for runs in values)
    else:
        arguments = shell.state.arguments
        values, known = list(arguments or ()), arguments is not None
        unknown = () if known else (Unknown("$@", "@", place, "it holds the script's arguments"),)
    if keyword == "select" or not known or len(values) > MOST_ROUNDS:
        lost = shell.lost(name, place, "a loop sets it", ())
        causes = without_duplicates(unknown)
        _open_loop(shell, causes, lambda: shell.assign(name, lost), [body], place)
        return
    doubts, departures = shell.state.doubts, shell.departures
    for runs in values:
        shell.step_on(1, place)
        shell.assign(name, text_variable(runs or (Run("", place),)))
        if _is_last_round(shell, [body]):
            break
    shell.set_status(True)
    _loop_ended(shell, doubts, departures)


def follow_c_for(shell: Shell, node: "Node") -> None:
    """Simulate `for ((start; condition; step))`."""
    opening = next(at for at, child in enumerate(node.children) if child.type == "((")
    closing = next(at for at, child in enumerate(node.children) if child.type == "))")
    body = node.child_by_field_name("body") or node.children[-1]
    place = shell.source.place_of(node)
    semicolons = [child for child in node.children[opening:closing] if child.type == ";"]
    if len(semicolons) < 2:
        return
    spans = [
        (node.children[opening].end_byte, semicolons[0].start_byte),
        (semicolons[0].end_byte, semicolons[1].start_byte),
        (semicolons[1].end_byte, node.children[closing].start_byte),
    ]
    arithmetic(shell, node, *spans[0], place)
    empty = not shell.source.slice(*spans[1]).strip()
    doubts, departures = shell.state.doubts, shell.departures
    for _ in range(1 if empty else MOST_ROUNDS):
        holds = True if empty else arithmetic(shell, node, *spans[1], place)
        if holds is False:
            _loop_ended(shell, doubts, departures)
            return
        if holds is None:
            break
        if _is_last_round(shell, [body]):
            _loop_ended(shell, doubts, departures)
            return
        if shell.state.doubts != doubts:
            break
        arithmetic(shell, node, *spans[2], place)
    causes = shell.causes
    _open_loop(shell, causes, lambda: None, [body], place, lambda: _step(shell, node, spans[2], place))


def _step(shell: Shell, node: "Node", span: tuple[int, int], place: str) -> None:
    arithmetic(shell, node, *span, place)


def follow_while(shell: Shell, node: "Node") -> None:
    """Simulate while and until."""
    body = node.child_by_field_name("body") or node.children[-1]
    until = node.children[0].type == "until"
    place = shell.source.place_of(node)
    condition = [child for child in node.children[1:] if child.type != "do_group"]
    doubts, departures = shell.state.doubts, shell.departures
    endless = " ".join(shell.source.of(child) for child in condition).strip(" ;") in (":", "true", "1")
    for _ in range(1 if endless else MOST_ROUNDS):
        holds, causes = shell.condition(condition)
        if until and holds is not None:
            holds = not holds
        if shell.state.flow:
            return
        if holds is False:
            shell.set_status(True)
            _loop_ended(shell, doubts, departures)
            return
        if holds is None:
            _open_loop(shell, causes, lambda: None, [body], place)
            return
        if _is_last_round(shell, [body]):
            _loop_ended(shell, doubts, departures)
            return
        if shell.state.doubts != doubts:
            break
    _open_loop(shell, shell.state.doubts, lambda: None, [body], place)


def _is_last_round(shell: Shell, body: Sequence["Node"]) -> bool:
    """Simulate one round of a loop, and return whether it was the last."""
    shell.block(body)
    flow = shell.state.flow
    if flow not in ("break", "continue"):
        return bool(flow)
    if shell.state.levels > 1:
        shell.state.levels -= 1
        return True
    shell.state.flow, shell.state.levels = "", 0
    return flow == "break"


def _loop_ended(shell: Shell, doubts: tuple[Unknown, ...], departures: int) -> None:
    """Reset State.doubts, the conditions that decide whether commands still run, to its value before a loop.

    It is not reset if a statement in the loop may also have left the function or an outer loop.
    """
    if shell.departures == departures:
        shell.state.doubts = doubts


def _open_loop(
    shell: Shell,
    causes: tuple[Unknown, ...],
    begin: Callable[[], None],
    body: Sequence["Node"],
    place: str,
    step: Callable[[], None] | None = None,
) -> None:
    """Simulate a loop whose number of rounds only the running shell knows.

    Every variable that the loop changes becomes unknown. `causes` are the unknown values that decide the
    number of rounds. `begin` and `step` set the loop's variable before the first round and after each round.
    """
    before = shell.state.copy()
    outer, departures = shell.state.doubts, shell.departures
    sink, stdin = shell.sink, shell.stdin
    shell.sink = None if sink is None else []
    shell.silent += 1
    begin()
    shell.block(body)
    if step:
        step()
    shell.silent -= 1
    shell.sink = sink
    if shell.stdin is not stdin:
        shell.stdin = (unknown_run(Unknown("the input", "", place, "a loop reads it", causes)),)
    changed = _differences(before, shell.state)
    shell.state = before.copy()
    for name, at in changed.items():
        shell.state.variables[name] = _lost_in_loop(shell, name, at or place, causes, before)
    begin()

    def follow() -> None:
        shell.block(body)

    shell.under(causes, follow)
    documents = _differences(before, shell.state)
    for name, at in (changed | documents).items():
        old = shell.state.variables.get(name)
        lost = _lost_in_loop(shell, name, changed.get(name) or at or place, causes, before)
        shell.state.variables[name] = Variable(lost.elements, lost.kind, bool(old and old.exported), False)
    if shell.departures != departures:
        outer = (*outer, *(causes or (UNNAMED,)))
    shell.state.flow, shell.state.levels, shell.state.doubts = "", 0, outer
    shell.set_status(True)


def _lost_in_loop(
    shell: Shell, name: str, place: str, causes: tuple[Unknown, ...], before: State
) -> Variable:
    """Return the value of a variable that is set in a loop with an unknown number of rounds.

    It is the user's value if one was given. Otherwise it is unknown and has no causes, so the import asks the
    user for this variable, not for the values that decide the number of rounds.
    """
    arguments = [cause for cause in causes if cause.name in ("@", "*", "#") or cause.name.isdigit()]
    reason = "it depends on the script's arguments" if arguments else "a loop sets it"
    old = before.variables.get(name)
    runs = old.elements.get("0", ()) if old is not None and old.kind == "text" else ()
    if arguments and runs and not unknowns_of(runs):
        reason += f"; without arguments, it is {shortened(text_of(runs)) or 'empty'}"
    return shell.lost(name, place, reason, ())


def _differences(before: State, after: State) -> dict[str, str]:
    """Return {variable: place where it was set} for the variables whose values differ between two states."""
    found = {}
    for name, variable in after.variables.items():
        old = before.variables.get(name)
        if old is variable or (old is not None and variable.same(old)):
            continue
        runs = [run for value in variable.elements.values() for run in value]
        # The loop wrote the last part, so the search starts there.
        place = next((run.place for run in reversed(runs) if run.place), "")
        unknown = variable.unknown
        found[name] = unknown.place if unknown is not None and unknown.place else place
    return found


def _is_list(runs: Runs) -> bool:
    """Return whether a word may become several words or none, because an unquoted part is unknown."""
    return any(run.unknown is not None and not run.quoted for run in runs) and all(
        run.unknown is not None or not run.text for run in runs
    )
