"""The user's file, imported by each rank from its copy in the run directory.

    code = load_user_code(run, config)   compares the copy's hash, imports it, returns a UserCode
    code.call("scalars", 7)              calls a function; its error becomes a CodeError with the file's line

After an error in the user's file, the job is not restarted, because the next attempt would fail in the same
way.
"""

import contextlib
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint

from nbtrain.base import files
from nbtrain.base.errors import CodeError, NbtrainError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.config.code_file import OMITTED, PASSED, CodeFile, copy_of, read_code
from nbtrain.config.schema import RunConfig

# Modules whose errors concern other ranks or the device, even if the user's file called them.
COLLECTIVES = ("torch/distributed/", "nbtrain/parallel/mappings.py")


class UserCode:
    """An imported user's file, whose functions can be called."""

    def __init__(self, code: CodeFile):
        """Import the file. Raises CodeError with the failing line if the import fails."""
        self.path, self.name, self._lines = code.path, code.name, dict(code.lines)
        self.parameters, self.sha256 = dict(code.parameters), code.sha256
        # The module gets a name that no installed package has, because the user's file may be named like a
        # package that is imported later.
        module = types.ModuleType(f"own_code_{code.path.stem}")
        module.__file__ = str(code.path)
        # Dataclasses in the user's file look up their module in sys.modules.
        sys.modules[module.__name__] = module
        with self.blamed("import"):
            exec(compile(code.content, str(code.path), "exec"), module.__dict__)
        self._functions: dict[str, Callable] = {}
        for name in code.functions:
            function = getattr(module, name, None)
            if not callable(function):
                problem = (
                    f"the file defines the function {name}, but {name} cannot be called after the import"
                )
                raise self.error(name, problem, "Do not assign another value to this name")
            self._functions[name] = function

    def defines(self, name: str) -> bool:
        """Return whether the file defines the function `name`, one of HOOKS."""
        return name in self._functions

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the file, and return its result. Raises CodeError if the function raises an
        error.
        """
        with self.blamed(name):
            return self._functions[name](*arguments)

    def error(self, name: str, problem: str, fix: str = "") -> CodeError:
        """Return a CodeError whose message begins with the line of the function's `def`."""
        place = f"{self.name}:{self._lines[name]}" if name in self._lines else self.name
        return CodeError(f"{place}: {problem}.{f' {fix}' if fix else ''}")

    @contextlib.contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Replace errors raised in the body by a CodeError that begins with the line of the user's file, if
        their traceback goes through the file.

        Errors of collectives are not replaced, because they mean that another rank has failed. Out-of-memory
        errors of a device are not replaced either.
        """
        try:
            yield
        except (NbtrainError, torch.OutOfMemoryError, dist.DistError):
            raise
        except (Exception, SystemExit) as error:
            if type(error).__module__ == torch.utils.checkpoint.__name__:
                # Activation recomputation stops its second forward pass with its own exception.
                raise
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == str(self.path)]
            if isinstance(error, SyntaxError) and error.filename == str(self.path):
                raise CodeError(f"{self.name}:{error.lineno}: {error.msg}.") from error
            if not own and name != "import":
                raise
            if frames and any(part in frames[-1].filename for part in COLLECTIVES):
                raise
            place = f"{self.name}:{own[-1].lineno}" if own else self.name
            what = f"{type(error).__name__}: {error}".rstrip(": ").partition("\n")[0].rstrip(".")
            shown = "".join(traceback.format_list(own)).rstrip()
            # The first line is shown as the reason why the job ended; the other lines appear in the log.
            raise CodeError(f"{place}, {name}: {what}.{_fix(error)}\n{shown}".rstrip()) from error


def shown(value: Any) -> str:
    """Return a value for messages: "a tensor of shape [2, 32], float32", "a tuple of 3", "str 'text'"."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__} {str(value)[:50]!r}"


def _fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return (
            " Only the user's file itself is copied to the ranks. Move the imported module's code into the "
            "file, or install the module as a package where the ranks run."
        )
    return ""


def load_user_code(run: RunDir, config: RunConfig) -> UserCode | None:
    """Import the user's file from the run directory; return None if the run has no `code`. Raises CodeError
    if the copy is not the file that was submitted.
    """
    if config.code is None:
        return None
    path = copy_of(run, Path(config.code).name)
    record = files.read_json(run.own_code_json)
    if record is None or not path.is_file():
        raise CodeError(
            f"{display(path)}: is missing. `nbtrain resume {run.name}` writes it again from {config.code}."
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != record["sha256"]:
        raise CodeError(
            f"{display(path)}: is not the file that was submitted (its SHA-256 differs). `nbtrain resume "
            f"{run.name}` writes it again from {config.code}."
        )
    return UserCode(checked(path))


def checked(path: Path) -> CodeFile:
    """Return a user's file, parsed but not imported. Raises CodeError with all problems that are found."""
    code = read_code(path)
    if code.problems:
        raise CodeError("\n".join(str(problem) for problem in code.problems))
    return code


def needs_trial(run: RunDir) -> bool:
    """Return whether the ranks must run the trial of the user's file before training.

    They need not if the file passed its trial at submission, or if the user turned the trial off.
    """
    record = files.read_json(run.own_code_json)
    return record is None or record["tried"] not in (PASSED, OMITTED)
