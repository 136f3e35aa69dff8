"""Paths of a dataset's .bin/.idx pair, and the error for a missing file. indexed.py describes the format."""

import os
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display


def bin_path(prefix: str | os.PathLike) -> Path:
    """Return the path of the token file for a prefix (`<dir>/<key>_document`)."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike) -> Path:
    return Path(f"{os.fspath(prefix)}.idx")


MAKE_IT = " Make it with `nbtrain prepare RUN.yaml`."
"""End of a message about missing data. Code that knows the run replaces it with the command for that run."""


def missing(path: Path) -> DataError:
    """Return the error for a missing dataset file."""
    return DataError(f"{display(path)}: no such file.{MAKE_IT}")
