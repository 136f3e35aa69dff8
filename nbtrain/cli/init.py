"""`nbtrain init DIR`: the notebooks and example YAMLs, copied out of the installed package."""

import shutil
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import bundled


def copy_workspace(folder: Path) -> list[Path]:
    """Copy notebooks/ and examples/megatron-gpt/ to `folder`; the paths written.

    Raises ConfigError if one of them exists: files of the user are never overwritten.
    """
    copies = {part: folder / part for part in ("notebooks", "examples/megatron-gpt")}
    if existing := next((copy for copy in copies.values() if copy.exists()), None):
        raise ConfigError(f"{existing} already exists; choose another folder, or move it away.")
    for part, copy in copies.items():
        shutil.copytree(bundled(part), copy, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*"))
    return list(copies.values())
