"""Simulates assignments and declarations: NAME=value, lists, associative arrays, export, local, declare."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.arithmetic import NotArithmetic
from nbtrain.foreign.bash.patterns import Undecided
from nbtrain.foreign.bash.shell import IGNORED, Shell
from nbtrain.foreign.bash.syntax_tree import (
    Source,
    adjacent,
)
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    Variable,
    text_of,
    text_variable,
    unknowns_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def follow_assignment(shell: Shell, node: "Node") -> None:
    """Simulate NAME=value, an assignment that is not followed by a command."""
    shell.state.status = True
    name, variable = assignment(shell, node)
    shell.set_status(shell.state.status, shell.causes if shell.state.status is None else ())
    if name:
        shell.assign(name, variable)


def assignment(
    shell: Shell, node: "Node", kind: str = "", following: Sequence["Node"] = (), is_new: bool = False
) -> tuple[str, Variable]:
    """Return the name and the new value of NAME=value, NAME+=value, NAME=(...) or NAME[key]=value.

    `following` holds nodes that belong to the value although the parser separates them. `is_new` says that
    the variable has no earlier value.
    """
    place = shell.source.place_of(node)
    target = node.child_by_field_name("name")
    value_node = node.child_by_field_name("value")
    name = _name_of(shell.source, node)
    adds = any(child.type == "+=" for child in node.children)
    old = None if is_new else shell.state.variables.get(name)
    if old is not None and old.kind == "unset":
        old = None
    if old is None and not is_new and name in shell.around.given and adds:
        old = shell.variable(name, place)
    kind = kind or (old.kind if old is not None and old.kind in ("table", "list") else "")
    if value_node is not None and value_node.type == "array":
        return name, _list_value(shell, name, value_node, old if adds else None, kind, place)
    runs = shell.expansion.value(*([value_node] if value_node is not None else []), *following)
    if not runs:
        runs = (Run("", place),)
    if target is not None and target.type == "subscript":
        shown = shell.source.of(target)
        key = shell.expansion.key(
            old if old is not None else Variable({}, kind or "list"),
            shown.partition("[")[2].rpartition("]")[0],
            place,
        )
        if key is None or (old is not None and old.unknown is not None):
            return name, shell.lost(name, place, f"{shown} is set, and its index or key is not known")
        elements = dict(old.elements) if old is not None else {}
        if adds:
            runs = (*elements.get(key, ()), *runs)
        return name, Variable(_ordered(elements | {key: runs}, kind), "table" if kind == "table" else "list")
    if adds and old is None and not shell.state.doubts:
        # No file sets the variable. Bash appends to the environment's value, which most variables do not
        # have.
        return name, text_variable(runs)
    if adds and old is not None:
        if old.integer:
            return name, _added_number(shell, name, old, runs, place)
        elements = dict(old.elements)
        elements["0"] = (*elements.get("0", ()), *runs)
        return name, Variable(_ordered(elements, old.kind), old.kind, old.exported)
    if kind in ("list", "table") and old is not None:
        return name, Variable(_ordered(old.elements | {"0": runs}, kind), kind)
    return name, text_variable(runs)


def _added_number(shell: Shell, name: str, old: Variable, runs: Runs, place: str) -> Variable:
    try:
        if unknowns_of(runs) or old.unknown:
            raise Undecided()
        first = shell.expansion.number(text_of(old.elements.get("0", ())), place)
        return text_variable((Run(str(first + shell.expansion.number(text_of(runs), place)), place),))
    except (Undecided, NotArithmetic):
        return shell.lost(
            name, place, "it is an integer variable, and the number that is added to it is not known"
        )


def _list_value(
    shell: Shell, name: str, node: "Node", old: Variable | None, kind: str, place: str
) -> Variable:
    """Return the list or associative array that NAME=(...) assigns.

    `old` is the variable that NAME+=(...) extends, otherwise None. `kind` is "table" for an associative
    array, otherwise "list" or "". The value is unknown if an index or key is unknown.
    """
    elements = dict(old.elements) if old is not None else {}
    index = max((int(key) for key in elements if key.isdigit()), default=-1) + 1
    if old is not None and old.kind == "text" and not text_of(elements.get("0", ())):
        index = max(index, 1)
    for child, *more in adjacent(shell.source, node.children):
        if child.type == "comment":
            continue
        text = shell.source.of(child)
        match = re.match(r"\[([^\]]*)\](\+?)=", text)
        if match:
            key = shell.expansion.key(Variable({}, kind or "list"), match.group(1), place)
            if key is None:
                return shell.lost(name, place, "it is set to a list in which an index or key is not known")
            start = child.start_byte + len(match.group(0).encode())
            stop = (more[-1] if more else child).end_byte
            runs = shell.expansion.operand(start, stop, place, False)
            elements[key] = (*elements.get(key, ()), *runs) if match.group(2) else runs
            index = int(key) + 1 if key.isdigit() else index
            continue
        words = shell.expansion.words(child, *more)
        shell.step_on(len(words), place)
        for word in words:
            if kind == "table":
                return shell.lost(name, place, "it is an associative array that is set without keys")
            elements[str(index)] = word
            index += 1
    return Variable(_ordered(elements, kind), "table" if kind == "table" else "list")


def follow_declaration(shell: Shell, node: "Node") -> None:
    """Simulate export, declare, local, readonly and typeset.

    All words are expanded before the first variable is set.
    """
    keyword = shell.source.of(node.children[0])
    options = ""
    declared: list[tuple[str, Variable | None]] = []
    for child in node.children[1:]:
        if not child.is_named or child.type in IGNORED:
            continue
        if child.type == "variable_assignment":
            kind = "table" if "A" in options else "list" if "a" in options else ""
            is_new = _is_new_local(shell, keyword, options, _name_of(shell.source, child))
            declared.append(assignment(shell, child, kind, is_new=is_new))
            continue
        for runs in (
            [shell.expansion.value(child)]
            if child.type == "variable_name"
            else (shell.expansion.words(child))
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
        _prepare(shell, keyword, options, name)
        _declared(shell, keyword, options, name, variable)
    shell.set_status(True)


def _is_new_local(shell: Shell, keyword: str, options: str, name: str) -> bool:
    """Return whether a declaration creates a local variable that the function has not declared before."""
    is_local = keyword in ("local", "declare", "typeset") and "g" not in options
    return bool(shell.frames) and is_local and name not in shell.frames[-1]


def _prepare(shell: Shell, keyword: str, options: str, name: str) -> None:
    """Apply what a declaration changes before the value is set: a local scope, or the integer type (-i)."""
    if _is_new_local(shell, keyword, options, name):
        shell.frames[-1][name] = shell.state.variables.get(name)
        shell.state.variables[name] = Variable({}, "unset")
    if "i" in options:
        old = shell.state.variables.get(name)
        elements, kind = (old.elements, old.kind) if old else ({}, "unset")
        shell.state.variables[name] = Variable(elements, kind, bool(old and old.exported), True)


def _declared(shell: Shell, keyword: str, options: str, name: str, variable: Variable | None) -> None:
    exports = (keyword == "export" and "n" not in options) or "x" in options
    if "n" in options and keyword != "export":
        place = next((run.place for run in variable.elements.get("0", ())), "") if variable else ""
        target = text_of(variable.elements.get("0", ())) if variable else ""
        if re.fullmatch(r"[A-Za-z_]\w*", target) and target != name:
            shell.names[name] = target
            shell.assign(target, shell.lost(target, place, f"{name} is a reference to it (declare -n)"))
        shell.assign(name, shell.lost(name, place, "it is a reference to another variable (declare -n)"))
        return
    if variable is not None:
        shell.assign(name, Variable(variable.elements, variable.kind, exports, variable.integer))
        return
    old = shell.state.variables.get(name)
    if old is None and exports and name in shell.around.given:
        old = shell.variable(name, "")
    if old is not None and exports:
        shell.state.variables[name] = Variable(old.elements, old.kind, True, old.integer)
    elif (old is None and ("a" in options or "A" in options)) or (
        old is not None and old.kind == "unset" and ("a" in options or "A" in options)
    ):
        shell.state.variables[name] = Variable({}, "table" if "A" in options else "list")


def _name_of(source: Source, node: "Node") -> str:
    target = node.child_by_field_name("name")
    return source.of(target).partition("[")[0] if target is not None else ""


def _ordered(elements: dict[str, Runs], kind: str) -> dict[str, Runs]:
    """Return the elements sorted by index for a list, and unchanged for an associative array."""
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
