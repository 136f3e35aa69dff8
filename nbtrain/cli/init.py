"""`nbtrain init DIR`: the notebooks and example YAMLs, copied out of the installed package."""

import shutil
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import bundled

PARTS = ("notebooks", "examples/megatron-gpt")


def copy_workspace(folder: Path) -> list[Path]:
    """Copy notebooks/ and examples/megatron-gpt/ to `folder`; the paths written.

    Raises ConfigError if one of them exists: files of the user are never overwritten.
    """
    for part in PARTS:
        if (folder / part).exists():
            raise ConfigError(f"{folder / part} already exists; choose another folder, or move it away.")
    written = []
    for part in PARTS:
        shutil.copytree(
            bundled(part), folder / part, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*")
        )
        written.append(folder / part)
    return written
