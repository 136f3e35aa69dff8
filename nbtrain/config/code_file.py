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
# Environment variable that holds the file in the files of a dry run; Linux takes 131,072 bytes for one.
RUN_CODE = "NBTRAIN_RUN_CODE"
MOST_BYTES = 90_000
# Values of `tried` in own_code.json (jobs/request/own_code.py) with which no rank tries the file.
PASSED = "passed"
OMITTED = "not tried: --no-try"


@dataclass(frozen=True)
class Hook:
    """A function of the file that nbtrain calls."""

    name: str
    parameters: tuple[str, ...]
    """Names of the parameters, in order."""
    optional: tuple[str, ...] = ()
    """Names that the function may have after `parameters`."""
    returns: str = "None"

    @property
    def signature(self) -> str:
        """The signature for messages, e.g. "loss(logits, labels, mask, batch[, vocabulary])"."""
        more = "".join(f"[, {name}]" for name in self.optional)
        return f"{self.name}({', '.join(self.parameters)}{more})"

    def accepts(self, names: tuple[str, ...]) -> bool:
        """Return whether a function with these parameters can be called."""
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


# Functions that users of Megatron pass to it, and those that users look for here.
OTHER_NAMES = {
    "loss_func": "Megatron's loss_func is loss() here.",
    "train_valid_test_datasets_provider": "Megatron's datasets come from dataset() here.",
    "datasets_provider": "Megatron's datasets come from dataset() here.",
    "forward_step": "There is no forward_step here: loss() gets the logits of a micro batch.",
    "model_provider": "There is no model_provider here: the section `model` of the YAML sets the layers, and "
    "layer() returns a block of your own.",
}


@dataclass(frozen=True)
class CodeFile:
    """The file as it is on disk."""

    path: Path
    content: bytes
    lines: tuple[tuple[str, int], ...] = ()
    """(name, line of its def) of each of HOOKS that the file defines."""
    parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(name, names of its parameters) of the same functions."""
    problems: tuple[Finding, ...] = ()
    """The reasons why the file cannot be used."""

    @property
    def name(self) -> str:
        return self.path.name

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of HOOKS that the file defines, in its order."""
        return tuple(name for name, _ in self.lines)


def copy_of(run: RunDir, name: str) -> Path:
    """Return the path of the file's copy in the run directory, which is what the ranks import."""
    return run.own_code / name


def code_file(config: RunConfig) -> CodeFile | None:
    """Return the file that `code` names; None if the run has none.

    A job that a dry run's file starts gets the file from there. If the file is gone, for example on another
    machine, it is the copy in the run directory. A file that cannot be read or used has `problems`.
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
            fix = "The path is relative to the YAML's folder or to the workspace. Correct it, or write the "
            fix += f"file: `nbtrain code {config.name} --start loss`."
            return CodeFile(path, b"", problems=(_error(place, f"code = {config.code}: no such file.", fix),))
        path = copy
    return read_code(path)


def read_code(path: Path) -> CodeFile:
    """Read a file. One that cannot be read has this as its problem."""
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
    """Return the file as an environment variable for a dry run; {} for a run without `code`.

    Raises ConfigError if the file cannot be used.
    """
    code = code_file(config)
    if code is None:
        return {}
    refuse(code.problems, ConfigError)
    return {RUN_CODE: base64.b64encode(zlib.compress(code.content)).decode()}


def code_sha256(config: RunConfig) -> str | None:
    """Return the SHA-256 of the file; None if the run has no `code`."""
    code = code_file(config)
    return None if code is None else code.sha256


def defines(config: RunConfig, function: str) -> bool:
    """Return whether the run's code defines this one of HOOKS."""
    code = code_file(config)
    return code is not None and function in code.functions


def submitted_functions(run: RunDir) -> tuple[str, ...]:
    """Return the functions of the file that a run was submitted with; () if it has none."""
    record = files.read_json(run.own_code_json)
    return tuple(record["functions"]) if record is not None else ()


def own_loss(config: RunConfig) -> str:
    """Return "shard" if the file's loss() takes `vocabulary` and so gets the logits of this rank's shard,
    "whole" if it gets all logits, and "" if the file has no loss().
    """
    code = code_file(config)
    if code is None or "loss" not in code.functions:
        return ""
    return "shard" if "vocabulary" in dict(code.parameters)["loss"] else "whole"


@functools.lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int, size: int) -> CodeFile:
    """Read a file. Its time and size are a part of the cache's key, so that a changed file is read again.

    Raises OSError, which is not cached.
    """
    where = display(path)
    if not FILE_NAME.fullmatch(path.name):
        fix = "Rename it, for example to my_code.py."
        return CodeFile(path, b"", problems=(_error(where, "the name is not one of a Python module.", fix),))
    if size > MOST_BYTES:
        said = f"has {size:,} bytes; a code file may have {MOST_BYTES:,}."
        fix = "Move what is large into an installed package, and import it."
        return CodeFile(path, b"", problems=(_error(where, said, fix),))
    return _parse(path, path.read_bytes())


def _parse(path: Path, content: bytes) -> CodeFile:
    where = display(path)
    try:
        # Some editors begin a UTF-8 file with a byte order mark, which Python skips too.
        tree = ast.parse(content.decode("utf-8-sig"), path.name)
        # Finds what the syntax tree allows, such as a return outside of a function.
        compile(tree, path.name, "exec", dont_inherit=True)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        said = f"is not UTF-8: byte {error.object[error.start]:#x}."
        return CodeFile(path, content, problems=(_error(f"{where}:{line}", said, "Save it as UTF-8."),))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        said = f"{getattr(error, 'msg', None) or str(error) or 'is nested too deeply'}."
        return CodeFile(path, content, problems=(_error(f"{where}:{line}", said, "Correct the syntax."),))
    found = list(_functions(tree))
    known = [node for node in found if isinstance(node, ast.FunctionDef) and node.name in HOOKS]
    problems = tuple(_problems(tree, found, where))
    if not known and not problems:
        said = f"defines no function that nbtrain calls: {', '.join(HOOKS)}."
        problems = (_error(where, said, "Add one, or remove `code`."),)
    return CodeFile(
        path,
        content,
        tuple((node.name, node.lineno) for node in known),
        tuple((node.name, _names(node)) for node in known),
        problems,
    )


_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _functions(tree: ast.Module) -> Iterator[_Defined]:
    """Yield the functions and classes of the file's top level, also those inside `if` and `try`."""
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
                f"{node.name} is not known: nbtrain calls {known}.",
                f"{here} If it is a helper, name it _{node.name}.".strip(),
            )
            continue
        hook = HOOKS[node.name]
        if not isinstance(node, ast.FunctionDef):
            kind = "a class" if isinstance(node, ast.ClassDef) else "an async function"
            yield _error(place, f"{node.name} is {kind}.", f"Write `def {hook.signature}:`.")
        elif node.name in first:
            said = f"{node.name} is defined again; its first definition is in line {first[node.name]}."
            yield _error(place, said, "Keep one of them.")
        elif not hook.accepts(_names(node)) or node.args.vararg or node.args.kwonlyargs or node.args.kwarg:
            yield _error(
                place,
                f"{node.name}({ast.unparse(node.args)}): nbtrain calls {hook.signature}.",
                "Use these names, in this order.",
            )
        first.setdefault(node.name, node.lineno)
    for name, line in _other_bindings(tree):
        said = f"{name} is imported or assigned, and not a function of this file."
        yield _error(f"{where}:{line}", said, f"Write `def {HOOKS[name].signature}:` and call the other one.")


def _other_bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of HOOKS that the file imports or assigns, which would not be found by their def."""
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
