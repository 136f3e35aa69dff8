"""Maps the types of statements to the functions that simulate them, and contains the short functions."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.assignments import follow_assignment, follow_declaration
from nbtrain.foreign.bash.branches import follow_case, follow_if, follow_list, follow_negation
from nbtrain.foreign.bash.builtins import follow_unset
from nbtrain.foreign.bash.conditions import arithmetic, follow_arithmetic, follow_test
from nbtrain.foreign.bash.loops import follow_c_for, follow_for, follow_while
from nbtrain.foreign.bash.pipelines import follow_pipeline, follow_redirected
from nbtrain.foreign.bash.shell import Shell
from nbtrain.foreign.bash.simple_commands import follow_command, follow_word
from nbtrain.foreign.bash.variables import (
    Function,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def follow_function(shell: Shell, node: "Node") -> None:
    """Record the body of a function, which is simulated at each call."""
    name_node = node.child_by_field_name("name")
    body = node.child_by_field_name("body")
    if name_node is not None and body is not None:
        shell.state.functions[shell.source.of(name_node)] = Function(shell.source, body)
    shell.set_status(True)


def follow_subshell(shell: Shell, node: "Node") -> None:
    """Simulate ( ... ), whose assignments are lost."""
    inner = [child for child in node.children if child.is_named]
    if shell.source.of(node).startswith("((") and [child.type for child in inner] == ["subshell"]:
        # The parser reads `! ((...))` as two subshells.
        place = shell.source.place_of(node)
        shell.set_status(arithmetic(shell, node, node.start_byte + 2, node.end_byte - 2, place))
        return
    state = shell.state
    shell.state = state.copy()
    shell.block(node.children)
    status, flow = shell.state.status, shell.state.flow
    shell.state = state
    if flow != "exit" or status is not None:
        shell.state.status = status


def follow_compound(shell: Shell, node: "Node") -> None:
    """Simulate { ... } and (( ... ))."""
    if node.children and node.children[0].type == "((":
        follow_arithmetic(shell, node)
    else:
        shell.block(node.children)


STATEMENTS: dict[str, Callable[[Shell, "Node"], None]] = {
    "command": follow_command,
    **dict.fromkeys(("word", "concatenation", "string", "simple_expansion", "expansion"), follow_word),
    "variable_assignment": follow_assignment,
    "declaration_command": follow_declaration,
    "unset_command": follow_unset,
    "test_command": follow_test,
    "list": follow_list,
    "negated_command": follow_negation,
    "if_statement": follow_if,
    "case_statement": follow_case,
    "for_statement": follow_for,
    "c_style_for_statement": follow_c_for,
    "while_statement": follow_while,
    "function_definition": follow_function,
    "subshell": follow_subshell,
    "pipeline": follow_pipeline,
    "compound_statement": follow_compound,
    "redirected_statement": follow_redirected,
}
