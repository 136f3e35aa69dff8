"""Recognizes files of other programs and reads their text. read.py interprets them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.git_lfs import pointer_problem
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import typed_path, workspace
from nbtrain.config.load.other_files import SCRIPTS, begins_array, is_run
from nbtrain.config.names.other_programs import is_accelerate, program_of_file
from nbtrain.foreign.syntax.yaml_tree import read_documents

FILES = "a manifest, a shell script or a DeepSpeed JSON"
MOST_BYTES = 10_000_000
JSON, YAML = (".json", ".jsonc"), (".yaml", ".yml")
# Files of a Helm chart.
OF_A_CHART = re.compile(r"Chart\.ya?ml|values[\w.-]*\.ya?ml")


def is_foreign(path: str | Path) -> bool:
    """Return whether a file belongs to another program.

    Such files are scripts, JSON files, Kubernetes manifests and the configurations of known programs.
    """
    file = path_of(path)
    if not file.is_file():
        return False
    if file.suffix == ".json" and begins_array(file):
        return False  # text records
    if file.suffix in (*SCRIPTS, *JSON, ".toml", ".py", ".ipynb"):
        return True
    if file.suffix not in YAML:
        return False
    text = text_of(file)
    job = re.search(r"^kind:\s*(ConfigMap|\w*Job)\b", text, re.MULTILINE | re.IGNORECASE)
    if job or (re.search(r"(?m)^apiVersion:", text) and re.search(r"(?m)^kind:", text)):
        return True
    value = _top(text)
    if is_accelerate(value):
        return True
    return not is_run(value) and bool(program_of_file(value) or OF_A_CHART.fullmatch(file.name))


def _top(text: str) -> Mapping[str, Any]:
    """Return the mapping in a YAML file's first document, or {} if it is not a mapping."""
    try:
        trees = read_documents(text, "")
    except ConfigError:
        return {}
    return trees[0].value if trees and isinstance(trees[0].value, dict) else {}


def path_of(file: str | Path) -> Path:
    """Return the path of a file: as typed if it exists there, otherwise below the workspace."""
    if not isinstance(file, str | Path):
        raise ConfigError(f"{file!r}: this must be the path of {FILES}.")
    typed = typed_path(file)
    return typed if typed.is_absolute() or typed.exists() else workspace() / typed


def text_of(path: Path) -> str:
    """Return the text of a file.

    Raises ConfigError if the file is too large, is not UTF-8, is a Git LFS pointer, or cannot be read.
    """
    try:
        if not path.is_file() and path.exists():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise ConfigError(f"{path}: this is {kind}; give {FILES}.")
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(
                f"{path}: the file has {path.stat().st_size:,} bytes, but a job's file may have at most "
                f"{MOST_BYTES:,}. Give the file that starts the training."
            )
        text = path.read_text(encoding="utf-8")
        if problem := pointer_problem(text.encode()):
            raise ConfigError(f"{path}: {problem}.")
        # A byte order mark stays in a JSON, which DeepSpeed would reject, so that it is reported.
        return text if path.suffix in (".json", ".jsonc") else text.removeprefix("\ufeff")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give {FILES}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start + 1} is not UTF-8. Save the file as UTF-8 text: "
            f"iconv -f utf-16 -t utf-8 {path.name} if Windows wrote it."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"{printable(str(path))}: the file cannot be read: {error}") from None
