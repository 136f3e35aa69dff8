"""Finds a run's name by its run id, because a clone's run.json has only the id of its parent."""

import json
import time
from pathlib import Path

from nbtrain.base.run_directory.rundir import run_folders

# Seconds before a missing run is searched for again. A search reads the run.json of every run.
AGAIN_SECONDS = 60.0

# {(output directory, run id): (name or None, time of the search)}
_known: dict[tuple[Path, str], tuple[str | None, float]] = {}


def name_of(run_id: str, root: Path) -> str | None:
    """Return the name of the run below `root` with this id; None if it no longer exists."""
    name, at = _known.get((root, run_id), (None, 0.0))
    if name is not None and _is(root / name / "run.json", run_id):
        return name
    now = time.monotonic()
    if name is None and at and now - at < AGAIN_SECONDS:
        return None
    found = next((folder for folder in run_folders(root) if _is(folder / "run.json", run_id)), None)
    name = found.name if found else None
    _known[root, run_id] = (name, now)
    return name


def _is(path: Path, run_id: str) -> bool:
    try:
        # Most files belong to other runs, and searching the text is faster than parsing JSON.
        text = path.read_text(encoding="utf-8", errors="replace")
        return run_id in text and json.loads(text).get("run_id") == run_id
    except (OSError, ValueError, AttributeError):
        return False
