"""Computes command substitutions: what $( ... ) prints."""

import re
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.expansion import Expansion
from nbtrain.foreign.bash.redirections import redirect
from nbtrain.foreign.bash.shell import MOST_CALLS, Shell, named_causes
from nbtrain.foreign.bash.syntax_tree import (
    Source,
)
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    text_of,
    unknown_run,
    unknowns_of,
    without_duplicates,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node


def substitute(shell: Shell, source: Source, node: "Node") -> Runs:
    """Return what $( ... ) prints, without trailing line ends."""
    text = source.of(node).strip()
    for form in shell.script.unread.values():
        text = text.replace(f"${{{form.name}}}", form.text)
    place = source.place_of(node)
    shown = text if text.startswith("$(") else f"$({text[1:-1]})"
    outer_sink, outer_stdin, outer_state = shell.sink, shell.stdin, shell.state
    outer_silent, outer_source, outer_expansion = shell.silent, shell.source, shell.expansion
    outer_condition, causes, outer_certain = shell.in_condition, shell.causes, shell.certain
    shell.in_condition = False
    shell.certain = len(shell.conditions), len(shell.state.doubts)
    shell.sink, shell.stdin, shell.state = [], None, outer_state.copy()
    shell.state.options -= {"errexit"}
    shell.silent += 1
    shell.calls += 1
    if source is not shell.source:
        shell.source, shell.expansion = source, Expansion(shell, source)
    try:
        if shell.calls > MOST_CALLS:
            printed: Runs = (unknown_run(Unknown(shown, "", place, "it is nested too deeply")),)
        elif text.startswith("`") and "\\" in text:
            printed = (unknown_run(Unknown(shown, "", place, f"nbtrain does not run {shown}")),)
        else:
            counted = _counted(shell, node)
            if counted is not None:
                printed = counted
            else:
                redirected = [child for child in node.children if child.type == "file_redirect"]
                if redirected and not any(
                    child.is_named and child.type != "file_redirect" for child in node.children
                ):
                    redirect(shell, redirected[0], [], [])
                    printed = shell.stdin or (unknown_run(Unknown(shown, "", place)),)
                else:
                    shell.block(node.children)
                    printed = tuple(shell.sink or ())
    finally:
        status = shell.state.status
        shell.sink, shell.stdin, shell.state = outer_sink, outer_stdin, outer_state
        shell.silent, shell.source, shell.expansion = outer_silent, outer_source, outer_expansion
        shell.calls -= 1
        shell.certain = outer_certain
        shell.in_condition = outer_condition
        shell.causes = shell.causes if status is None else causes
    shell.state.status = status
    if not printed:
        return ()
    if unknowns := unknowns_of(printed):
        if shell.in_condition and status:
            # A condition may ask whether the command succeeds.
            shell.set_status(None, without_duplicates(unknowns))
        alone = [run for run in printed if run.text.strip()]
        if len(alone) == 1 and alone[0].unknown is not None and alone[0].unknown.name:
            return (alone[0],)
        nested = tuple(part for unknown in unknowns for part in named_causes(unknown))
        return (unknown_run(Unknown(shown, "", place, f"nbtrain does not run {shown}", nested)),)
    result = text_of(printed).rstrip("\n")
    return (Run(result, place),) if result else ()


def _counted(shell: Shell, node: "Node") -> Runs | None:
    """Return the number of nodes or GPUs that a pipeline counts with `wc -l`.

    Returns None for any other pipeline, and if the scheduler does not set the number.
    """
    text = " ".join(shell.source.of(node).split())
    place = shell.source.place_of(node)
    if re.search(r"scontrol show hostnames?\b.*\| *wc -l", text):
        names = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    elif re.search(r"(nvidia-smi (-L|--list-gpus|--query-gpu=\w+ .*)|rocm-smi .*) *\| *wc -l", text):
        names = ("SLURM_GPUS_ON_NODE", "NBTRAIN_GPUS_ON_NODE")
    else:
        return None
    for name in names:
        variable = shell.state.variables.get(name)
        if variable is not None and variable.kind == "text" and not variable.unknown:
            return (Run(text_of(variable.elements["0"]), place),)
    return None
