"""A notebook's parameters: checks that the notebook has them, and turns a text source into overrides.

papermill only warns about a parameter that the notebook does not have, so a typo would train the default run.
`nb.check_parameters()` in a notebook makes it an error, however the notebook was started.
"""

import ast
import difflib
import shlex
from collections.abc import Iterator, Mapping

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.config.load import Overrides, flatten, override_layer

INJECTED_MARK = "# Parameters"
TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (with papermill: -r name value)",
    list: """a list, e.g. ["a", "b"] (with papermill: -y '{name: ["a", "b"]}')""",
    dict: """a mapping, e.g. {"a": "b"} (with papermill: -y '{name: {"a": "b"}}')""",
}


def check_parameters() -> None:
    """Raise ConfigError for an injected parameter that the notebook does not have, or of the wrong type.

    The notebook has the parameters that the first executed cell assigns. papermill injects a marked cell that
    assigns other values.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    cells = [cell for cell in shell.user_ns.get("In", []) if cell.strip()]
    injected = [cell for cell in cells if cell.lstrip().startswith(INJECTED_MARK)]
    own = [cell for cell in cells if cell not in injected]
    if not injected or not own:
        return
    known = assigned_names(own[0])
    types, problems = annotated_types(own[0]), []
    for name in assigned_names(injected[-1]):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Nearest: {near[0]}." if near else ""
            problems.append(
                f"parameter {name}: unknown; the parameters of this notebook are {', '.join(known)}.{hint}"
            )
        elif name not in types or name not in shell.user_ns:
            continue
        else:
            value, wanted = shell.user_ns[name], types[name]
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                problems.append(f"parameter {name} = {value!r}: must be {TYPE_WORDS[wanted]}.")
    refuse((Finding("error", "parameters", "", "", text, cost=FATAL) for text in problems), ConfigError)


def annotated_types(source: str) -> dict[str, type]:
    """Return {name: type} of the annotated assignments in a cell, for the types in TYPE_WORDS."""
    plain = {kind.__name__: kind for kind in TYPE_WORDS}
    return {
        node.target.id: plain[node.annotation.id]
        for node in _statements(source)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id in plain
    }


def assigned_names(source: str) -> list[str]:
    """Return the names that a cell assigns at its top level, in order."""
    names = []
    for node in _statements(source):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _statements(source: str) -> list[ast.stmt]:
    """Parse a cell, which may have `%magic` and `!command` lines. Raises ConfigError if it is not Python."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

    try:
        return ast.parse(TransformerManager().transform_cell(source)).body
    except SyntaxError as error:
        raise ConfigError(
            f"the parameters cell, line {error.lineno}, is not valid Python ({error.msg}): correct it."
        ) from None


def with_source(overrides: Overrides, source: str, dataset: str) -> Overrides:
    """Return `overrides` extended by the keys data.sources and data.name.

    data.sources becomes a list with the one entry `source`, unless `source` is "". data.name becomes
    `dataset`, unless that is "": the name of the dataset is then derived from the source
    (config/names/own_names.py). Raises ConfigError, as nb.load does, for overrides or a source that cannot be
    read.
    """
    added = {"data.sources": f"[{source}]"} if source else {}
    if dataset:
        added["data.name"] = dataset
    further = [f"{key}={value}" for key, value in added.items()]
    read = dict(flatten(override_layer(further).value))
    if isinstance(overrides, Iterator):
        overrides = list(overrides)
    override_layer(overrides)  # Called only for the errors that it raises.
    if isinstance(overrides, Mapping):
        return {**overrides, **read}
    return [*(shlex.split(overrides) if isinstance(overrides, str) else overrides or ()), *further]
