"""The Python file that a run's `code` names: its functions are read without running them.

    code: my_code.py            loss(logits, labels, mask, batch)      HOOKS lists all functions

The notebook side reads the file's syntax tree; only the GPU side (train/code/) imports the file. A function
or class whose name has no leading underscore must be one of HOOKS, so that a misspelled name is refused
instead of ignored.
"""

import ast
import base64
import functools
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.nearest import nearest
from nbtrain.base.workspace import display, resolve
from nbtrain.config.schema import RunConfig

# The copy in the run directory has this name too.
FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\.py")
# Environment variable that carries the code file in the files of a dry run. Linux allows 131,072 bytes for a
# variable.
RUN_CODE = "NBTRAIN_RUN_CODE"
MOST_BYTES = 90_000
# Values of `tried` in own_code.json (jobs/request/own_code.py). With either of them, the ranks do not run the
# trial of the file (one step of a two-layer model).
PASSED = "passed"
OMITTED = "not tried: --no-try"


@dataclass(frozen=True)
class Hook:
    """A function that nbtrain calls if the code file defines it."""

    name: str
    parameters: tuple[str, ...]
    """Names of the parameters, in order."""
    optional: tuple[str, ...] = ()
    """Names of further parameters that the function may have, after `parameters`."""
    returns: str = "None"

    @property
    def signature(self) -> str:
        """The signature for messages, e.g. "loss(logits, labels, mask, batch[, vocabulary])"."""
        more = "".join(f"[, {name}]" for name in self.optional)
        return f"{self.name}({', '.join(self.parameters)}{more})"

    def accepts(self, names: tuple[str, ...]) -> bool:
        """Return whether nbtrain can call a function with these parameters."""
        required = len(self.parameters)
        return (
            names[:required] == self.parameters and names[required:] == self.optional[: len(names) - required]
        )


HOOKS = {
    hook.name: hook
    for hook in (
        Hook(
            "loss",
            ("logits", "labels", "mask", "batch"),
            ("vocabulary",),
            "(sum of losses, number of tokens, scalars)",
        ),
        Hook("scalars", ("step",), (), "{name: number}"),
        Hook("layer", ("config", "index", "parts"), (), "a torch.nn.Module: block `index` of the model"),
        Hook("dataset", ("split",), (), "an object with __len__() and samples(index), or None"),
        Hook("on_step", ("step", "model")),
        Hook("on_checkpoint", ("step", "folder")),
    )
}


# Functions that users pass to Megatron or look for here, and what to use instead.
OTHER_NAMES = {
    "loss_func": "Define loss() instead of Megatron's loss_func.",
    "train_valid_test_datasets_provider": "Define dataset() instead of Megatron's provider.",
    "datasets_provider": "Define dataset() instead of Megatron's provider.",
    "forward_step": "nbtrain does not call forward_step(): define loss(), which gets a micro-batch's logits.",
    "model_provider": "nbtrain does not call model_provider(): the section `model` of the YAML sets the "
    "layers, and layer() can return a block of your own.",
}


@dataclass(frozen=True)
class CodeFile:
    """A code file as it is on disk."""

    path: Path
    content: bytes
    lines: tuple[tuple[str, int], ...] = ()
    """(name, line of its definition) for each of HOOKS that the file defines."""
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(name, names of its parameters) for each of HOOKS that the file defines."""
    problems: tuple[Finding, ...] = ()
    """Reasons why the file cannot be used; empty if it can."""

    @property
    def name(self) -> str:
        return self.path.name

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the HOOKS that the file defines, in the file's order."""
        return tuple(name for name, _ in self.lines)


def copy_of(run: RunDir, name: str) -> Path:
    """Return the path of the file's copy in the run directory, which is what the ranks import."""
    return run.own_code / name


def code_file(config: RunConfig) -> CodeFile | None:
    """Return the file that `code` names; None if the run sets no `code`.

    A job that was started from the files of a dry run gets the code file from an environment variable. If the
    file is gone, for example on another machine, the copy in the run directory is used. A file that cannot be
    read or used has `problems`.
    """
    if config.code is None:
        return None
    path = resolve(config.code)
    if carried := os.environ.get(RUN_CODE):
        return _parse(path, zlib.decompress(base64.b64decode(carried)))
    if not _is_there(path):
        copy = copy_of(RunDir.named(config.name), path.name)
        if not _is_there(copy):
            place = config.where("code")
            fix = "The path is relative to the YAML's folder or to the workspace. Correct the path, or run "
            fix += f"`nbtrain code {config.name} --start loss` to create the file."
            return CodeFile(path, b"", problems=(_error(place, f"code = {config.code}: no such file.", fix),))
        path = copy
    return read_code(path)


def read_code(path: Path) -> CodeFile:
    """Read a code file. If it cannot be read, the result has a problem that says why."""
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        said, fix = f"cannot be read: {error.strerror}.", "Correct the path or its permissions."
        return CodeFile(path, b"", problems=(_error(display(path), said, fix),))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A folder without permission, or a name that is too long: read_code() reports it.
        return True


def carried(config: RunConfig) -> dict[str, str]:
    """Return the code file as an environment variable for a dry run. {} for a run without `code`.

    Raises ConfigError if the file cannot be used.
    """
    code = code_file(config)
    if code is None:
        return {}
    refuse(code.problems, ConfigError)
    return {RUN_CODE: base64.b64encode(zlib.compress(code.content)).decode()}


def code_sha256(config: RunConfig) -> str | None:
    """Return the SHA-256 of the code file. None if the run has no `code`."""
    code = code_file(config)
    return None if code is None else code.sha256


def defines(config: RunConfig, function: str) -> bool:
    """Return whether the run's code defines `function`, which is one of HOOKS."""
    code = code_file(config)
    return code is not None and function in code.functions


def submitted_functions(run: RunDir) -> tuple[str, ...]:
    """Return the functions in the code file that a run was submitted with. () if there is no code file."""
    record = files.read_json(run.own_code_json)
    return tuple(record["functions"]) if record is not None else ()


def own_loss(config: RunConfig) -> str:
    """Return which logits the run's own loss() gets: "shard" or "whole"; "" if the code has no loss().

    "shard" means the logits of this rank's shard of the vocabulary, which a loss() with the parameter
    `vocabulary` gets. "whole" means the logits of the complete vocabulary.
    """
    code = code_file(config)
    if code is None or "loss" not in code.functions:
        return ""
    return "shard" if "vocabulary" in dict(code.parameters)["loss"] else "whole"


@functools.lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int, size: int) -> CodeFile:
    """Read a code file.

    The modification time and the size are part of the cache key, so that a changed file is read again. Raises
    OSError, which is not cached.
    """
    where = display(path)
    if not FILE_NAME.fullmatch(path.name):
        fix = "Rename the file, for example to my_code.py."
        return CodeFile(
            path, b"", problems=(_error(where, "the file name is not a valid Python module name.", fix),)
        )
    if size > MOST_BYTES:
        said = f"has {size:,} bytes; a code file may have at most {MOST_BYTES:,}."
        fix = "Move large parts into an installed package, and import them."
        return CodeFile(path, b"", problems=(_error(where, said, fix),))
    return _parse(path, path.read_bytes())


def _parse(path: Path, content: bytes) -> CodeFile:
    where = display(path)
    try:
        # Some editors begin a UTF-8 file with a byte order mark, which Python skips too.
        tree = ast.parse(content.decode("utf-8-sig"), path.name)
        # Finds errors that the syntax tree allows, such as a return outside of a function.
        compile(tree, path.name, "exec", dont_inherit=True)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        said = f"is not UTF-8: it contains the byte {error.object[error.start]:#x}."
        return CodeFile(path, content, problems=(_error(f"{where}:{line}", said, "Save the file as UTF-8."),))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        said = f"{getattr(error, 'msg', None) or str(error) or 'is nested too deeply'}."
        return CodeFile(path, content, problems=(_error(f"{where}:{line}", said, "Correct the syntax."),))
    found = list(_functions(tree))
    known = [node for node in found if isinstance(node, ast.FunctionDef) and node.name in HOOKS]
    problems = tuple(_problems(tree, found, where))
    if not known and not problems:
        said = f"defines none of the functions that nbtrain calls: {', '.join(HOOKS)}."
        problems = (_error(where, said, "Define one of them, or remove `code` from the YAML."),)
    return CodeFile(
        path,
        content,
        tuple((node.name, node.lineno) for node in known),
        tuple((node.name, _names(node)) for node in known),
        problems,
    )


_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _functions(tree: ast.Module) -> Iterator[_Defined]:
    """Yield the file's functions and classes at the top level, and HOOKS inside `if`, `try` and `with`."""
    for node in tree.body:
        if isinstance(node, _Defined):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for inner in ast.walk(node):
                if isinstance(inner, _Defined) and inner.name in HOOKS:
                    yield inner


def _names(node: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))


def _problems(tree: ast.Module, found: list[_Defined], where: str) -> Iterator[Finding]:
    known = ", ".join(HOOKS)
    first: dict[str, int] = {}
    for node in found:
        place = f"{where}:{node.lineno}"
        if node.name.startswith("_"):
            continue
        if node.name not in HOOKS:
            here = OTHER_NAMES.get(node.name) or nearest(node.name, HOOKS).strip()
            yield _error(
                place,
                f"{node.name} is not one of the functions that nbtrain calls: {known}.",
                f"{here} If {node.name} is a helper, rename it to _{node.name}.".strip(),
            )
            continue
        hook = HOOKS[node.name]
        if not isinstance(node, ast.FunctionDef):
            kind = "a class" if isinstance(node, ast.ClassDef) else "an async function"
            yield _error(place, f"{node.name} is {kind}, not a function.", f"Write `def {hook.signature}:`.")
        elif node.name in first:
            said = f"{node.name} is defined twice; the first definition is in line {first[node.name]}."
            yield _error(place, said, "Remove one of the definitions.")
        elif not hook.accepts(_names(node)) or node.args.vararg or node.args.kwonlyargs or node.args.kwarg:
            yield _error(
                place,
                f"{node.name}({ast.unparse(node.args)}) must have the parameters with which nbtrain calls "
                f"it: {hook.signature}.",
                "Use these parameter names, in this order.",
            )
        first.setdefault(node.name, node.lineno)
    for name, line in _other_bindings(tree):
        said = f"{name} is imported or assigned, but must be a function defined in this file."
        fix = f"Write `def {HOOKS[name].signature}:`, and call the other function in it."
        yield _error(f"{where}:{line}", said, fix)


def _other_bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of HOOKS that the file imports or assigns instead of defining them."""
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from ((name, node.lineno) for name in names if name in HOOKS)


def _error(place: str, message: str, fix: str) -> Finding:
    return Finding("error", "code", "code", place, message, fix, FATAL)
