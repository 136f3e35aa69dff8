"""Locations of files: the workspace, its output directory and its data directory.

    <workspace>/                 holds notebooks/ and examples/megatron-gpt/ (a clone, or `nbtrain init DIR`)
      output/<run>/              one folder per run: rundir.py     ($NBTRAIN_OUTPUT moves it)
      limits.yaml                limits of every run, optional (planner/budget/limits.py)
      data/                      shared by all runs: the data directory ($NBTRAIN_DATA moves it)
        tokenizer/<name>/
        dataset/<name>/<key>_document.{bin,idx}
        own-code/<hash>.json     parameter counts of a block from a run's layer() (config/own_blocks.py)

The workspace is $NBTRAIN_WORKSPACE, else the nearest folder at or above the current one that holds both
notebooks/ and examples/megatron-gpt/, else the current folder. Relative paths in a YAML or a notebook
parameter are relative to the workspace, so that they mean the same from notebooks/ (where JupyterLab starts
kernels), from the root (where papermill runs) and from any folder below. On the command line, a path that
exists relative to the current folder takes precedence.

The queue of this machine is outside all workspaces ($NBTRAIN_QUEUE moves it).
"""

import itertools
import os
import re
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.version import PACKAGE

# Environment variables that name the workspace, its output directory and its data directory.
FOLDER_VARIABLES = WORKSPACE, OUTPUT, DATA = "NBTRAIN_WORKSPACE", "NBTRAIN_OUTPUT", "NBTRAIN_DATA"
# Names are used for folders, in Kubernetes and in TensorBoard. This is the strictest of their three rules.
MOST_NAME_CHARS = 53
NAME_PATTERN = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{MOST_NAME_CHARS - 2}}}[a-z0-9])?")
NAME_RULE = f"must be 1 to {MOST_NAME_CHARS} lower case letters, digits and inner dashes, e.g. gpt-125m-2xdp"


def valid_name(name: str) -> bool:
    """Return whether a name follows NAME_RULE, so that it can be the name of a folder."""
    return NAME_PATTERN.fullmatch(name) is not None


def check_name(name: str, what: str) -> str:
    """Return `name` unchanged. Raises ConfigError if it cannot be used as a folder name."""
    if not valid_name(name):
        raise ConfigError(f"{what} = {name!r} {NAME_RULE}.")
    return name


def suffixed_name(name: str, suffix: str) -> str:
    """Return "NAME-SUFFIX". A long NAME is shortened so that the result is a valid name."""
    return f"{name[: MOST_NAME_CHARS - len(suffix) - 1].rstrip('-')}-{suffix}"


def free_name(name: str, word: str = "") -> str:
    """Return the first of NAME, NAME-2, NAME-3, ... that is not yet used in the output directory.

    With a word, it is the first of NAME-WORD, NAME-WORD-2, ...
    """
    first = suffixed_name(name, word) if word else name
    later = (suffixed_name(name, f"{word}-{number}".lstrip("-")) for number in itertools.count(2))
    root = output_root()
    # Other folders, and links whose target is gone, occupy a name too.
    return next(one for one in itertools.chain([first], later) if not os.path.lexists(root / one))


def is_workspace(folder: Path) -> bool:
    """Return whether a folder holds notebooks/ and examples/megatron-gpt/."""
    return (folder / "notebooks").is_dir() and (folder / "examples" / "megatron-gpt").is_dir()


def workspace() -> Path:
    """Return the workspace: the folder that relative paths are relative to."""
    if configured := os.environ.get(WORKSPACE):
        return typed_path(configured).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_workspace(folder):
            return folder
    return here


def the_workspace() -> str:
    """Return a sentence for errors about missing files: where the workspace is, and how it was chosen."""
    folder = workspace()
    if os.environ.get(WORKSPACE):
        return f"The workspace is {folder} ({WORKSPACE})."
    if is_workspace(folder):
        return f"The workspace is {folder}, found from the current folder."
    return (
        f"The workspace is {folder}, the current folder, because no folder at or above it holds notebooks/ "
        f"and examples/megatron-gpt/. Go to the workspace of the run, or set {WORKSPACE} to it."
    )


def output_root() -> Path:
    """Return the folder that holds every run directory: $NBTRAIN_OUTPUT, else <workspace>/output."""
    return _from_environment(OUTPUT, "output")


def data_home() -> Path:
    """Return the folder that holds tokenizers and datasets: $NBTRAIN_DATA, else <workspace>/data."""
    return _from_environment(DATA, "data")


def folder_variables() -> dict[str, str]:
    """Return the environment variables with which another process finds the same folders.

    They work from any current folder.
    """
    folders = {WORKSPACE: workspace(), OUTPUT: output_root(), DATA: data_home()}
    return {variable: str(folder) for variable, folder in folders.items()}


def queue_folder() -> Path:
    """Return this machine's queue folder: $NBTRAIN_QUEUE, else $XDG_STATE_HOME/nbtrain/queue/<host>."""
    if configured := os.environ.get("NBTRAIN_QUEUE"):
        return resolve(configured)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # By the specification of XDG_STATE_HOME, a relative path must be ignored.
    base = state if state.is_absolute() else Path("~/.local/state").expanduser()
    return base / "nbtrain" / "queue" / os.uname().nodename


def tokenizer_dir(name: str) -> Path:
    """Return data/tokenizer/<name>/: vocab.json, merges.txt, tokenizer.json, manifest.json."""
    return data_home() / "tokenizer" / check_name(name, "tokenizer.name")


def dataset_dir(name: str) -> Path:
    """Return data/dataset/<name>/: <key>_document.bin, .idx, manifest.json, index-cache/."""
    return data_home() / "dataset" / check_name(name, "data.name")


def typed_path(path: str | os.PathLike) -> Path:
    """Return a path as typed by a user, with ~ expanded to the home folder.

    Raises ConfigError if this machine does not know that home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = Path(path).parts[0]
        raise ConfigError(
            f"{path}: there is no home folder {home} on this machine. Write the full path."
        ) from None


def resolve(path: str | os.PathLike) -> Path:
    """Return an absolute path: unchanged if absolute, else relative to the workspace."""
    path = typed_path(path)
    return path if path.is_absolute() else workspace() / path


def resolved_program(program: str) -> str:
    """Return the path of a program.

    A relative path is relative to the workspace. A bare name is returned as it is, to be searched on PATH.
    """
    return str(resolve(program)) if "/" in program else program


def bundled(part: str) -> Path:
    """Return the path of a part that comes with nbtrain: notebooks, examples/megatron-gpt, docs or README.md.

    The part is in the installed wheel or in the clone. Raises ConfigError if it is in neither.
    """
    for candidate in (PACKAGE / "_bundled" / part, PACKAGE.parent / part):
        if candidate.exists():
            return candidate
    raise ConfigError(f"this installation of nbtrain has no {part}. Install the wheel, or use a clone.")


def example_folders() -> list[Path]:
    """Return the folders of example run YAMLs: the workspace's folders first, then the shipped ones."""
    roots = (workspace() / "examples" / "megatron-gpt", bundled("examples/megatron-gpt"))
    return [root / kind for kind in ("training", "finetuning") for root in roots]


def example_names() -> list[str]:
    """Return the names of the example runs."""
    return sorted({path.stem for folder in example_folders() for path in folder.glob("*.yaml")})


def display(path: str | os.PathLike) -> str:
    """Return a path for display: relative to the workspace if it is inside, else unchanged."""
    try:
        return str(Path(path).relative_to(workspace()))
    except ValueError:
        return str(path)


def _from_environment(variable: str, default: str) -> Path:
    configured = os.environ.get(variable)
    return resolve(configured) if configured else workspace() / default
