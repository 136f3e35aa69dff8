"""Measurements of several machines or networks in one JSON file of the data directory.

    {"schema_version": 1, "<section>": {"<key>": entry, ...}}

Several processes may add entries at the same time: add_entry is the only writer of such a file.
"""

import logging
import os
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.workspace import display

logger = logging.getLogger(__name__)


def add_entry(path: Path, schema_version: int, section: str, key: str, entry: dict[str, Any]) -> None:
    """Add an entry to a section of the file, or replace it; all others stay as they are.

    Holds the lock of the data directory from reading to writing. A file that is damaged or of another version
    is kept under another name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(path.parent, blocking=True)
    assert descriptor is not None, "a blocking lock is always acquired"
    try:
        entries = _entries(path, schema_version, section)
        files.write_json(path, {"schema_version": schema_version, section: {**entries, key: entry}})
    finally:
        os.close(descriptor)


def _entries(path: Path, schema_version: int, section: str) -> dict[str, Any]:
    """Return the entries that the file has; {} without a file, or if it has to be kept under another name."""
    try:
        content = files.read_json(path)
    except RecordError:
        content = False
    if content is None:
        return {}
    if isinstance(content, dict) and content.get("schema_version") == schema_version:
        entries = content.get(section, {})
        if isinstance(entries, dict):
            return entries
    kept = path.with_name(f"{path.name}.old")
    path.replace(kept)
    logger.warning(
        "%s is damaged or of another version than %d: a new one is written, and the old one is kept as %s.",
        *(display(path), schema_version, display(kept)),
    )
    return {}
