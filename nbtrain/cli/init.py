"""`nbtrain init DIR`: notebooks, example YAMLs and documentation, copied out of the installed package."""

import shutil
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import bundled


def copy_workspace(folder: Path) -> list[Path]:
    """Copy notebooks/, examples/megatron-gpt/ and docs/ to `folder`; the paths written.

    Raises ConfigError if notebooks/ or examples/megatron-gpt/ exists: files of the user are never
    overwritten. A folder docs/ that exists is the user's own, and left as it is.
    """
    copies = {part: folder / part for part in ("notebooks", "examples/megatron-gpt")}
    if existing := next((copy for copy in copies.values() if copy.exists()), None):
        raise ConfigError(f"{existing} already exists; choose another folder, or move it away.")
    if not (folder / "docs").exists():
        copies["docs"] = folder / "docs"  # which the examples' README, the notebooks and messages name
    for part, copy in copies.items():
        shutil.copytree(bundled(part), copy, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*"))
    return list(copies.values())
