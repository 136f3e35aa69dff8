"""`nbtrain init DIR`: the notebooks and example YAMLs, copied out of the installed package."""

import shutil
from pathlib import Path

from nbtrain.errors import ConfigError

PARTS = ("notebooks", "examples/megatron-gpt")


def copy_workspace(folder: Path) -> list[Path]:
    """Copy notebooks/ and examples/megatron-gpt/ to `folder`; the paths written.

    Raises ConfigError where one of them is there already: nothing of the user's is written over.
    """
    for part in PARTS:
        if (folder / part).exists():
            raise ConfigError(f"{folder / part} is there already; choose another folder, or move it away.")
    written = []
    for part in PARTS:
        shutil.copytree(
            bundled(part), folder / part, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*")
        )
        written.append(folder / part)
    return written


def bundled(part: str) -> Path:
    """A part of the workspace as shipped: inside the wheel, or beside the package in a clone."""
    package = Path(__file__).parent
    for candidate in (package / "_bundled" / part, package.parent / part):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"this installation of nbtrain carries no {part}; install the wheel or use a clone.")
