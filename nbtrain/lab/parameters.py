"""The parameters that a notebook was given: whether they are its own, and a source of data as overrides.

papermill only warns about a parameter that the notebook does not have, so a typo would train the default
run. `check_parameters()` in a notebook makes it an error, however the notebook was started.
"""

import ast
import difflib
import shlex

from nbtrain.base.addresses import text_without_secrets
from nbtrain.base.errors import ConfigError

INJECTED_MARK = "# Parameters"
TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (with papermill: -r name value)",
}


def check_parameters() -> None:
    """Raise ConfigError where an injected parameter is none of the notebook's own.

    Reads the cells run so far: the first assigns the parameters; papermill's, marked "# Parameters",
    assigns over them.
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
    types = annotated_types(own[0])
    for name in assigned_names(injected[-1]):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Nearest: {near[0]}." if near else ""
            raise ConfigError(f"parameter {name}: this notebook has {', '.join(known)}.{hint}")
        if name not in types or name not in shell.user_ns:
            continue
        value, wanted = shell.user_ns[name], types[name]
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ConfigError(f"parameter {name} = {value!r}: must be {TYPE_WORDS[wanted]}.")


def annotated_types(source: str) -> dict[str, type]:
    """The types of a cell's annotated names, as far as they are plain ones."""
    plain = {kind.__name__: kind for kind in TYPE_WORDS}
    return {
        node.target.id: plain[node.annotation.id]
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id in plain
    }


def assigned_names(source: str) -> list[str]:
    """Names assigned at the top level of a cell, in order."""
    names = []
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def with_source(overrides: str, source: str, dataset: str) -> list[str]:
    """Overrides that also set data.sources to one entry, and the name of the dataset and its tokenizer.

    Raises ConfigError for a source without a name: the run's own dataset would be asked for with other text.
    """
    words = shlex.split(overrides)
    if source and not dataset:
        raise ConfigError(
            f'source = {text_without_secrets(source)!r} needs a name of its own for its tokenizer and dataset: set dataset, e.g. "my-text".'
        )
    if source:
        words.append(f"data.sources=[{source}]")
    if dataset:
        words += [f"data.name={dataset}", f"tokenizer.name={dataset}"]
    return words
