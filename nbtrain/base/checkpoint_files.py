"""What makes a checkpoint folder whole, and which whole one is the newest: the one answer of both wings."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.rundir import MANIFEST, RunDir

# In place of the manifest, once the trainer has read the contents and refused them.
REJECTED = "rejected.json"

MANIFEST_VERSIONS = (1, 2)


def checkpoint_problem(folder: Path) -> str | None:
    """Why a checkpoint is not whole, as far as names and sizes show; None if they are right. Cheap."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    try:
        manifest = files.read_json(folder / MANIFEST)
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if manifest is None:
        return _why_rejected(folder) or f"it has no {MANIFEST}: its writing was cut off"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} holds a {type(manifest).__name__} instead of fields"
    if (version := manifest.get("schema_version")) not in MANIFEST_VERSIONS:
        known = " and ".join(str(number) for number in MANIFEST_VERSIONS)
        return f"{MANIFEST} has schema_version {version}; this nbtrain reads {known}"
    described = manifest.get("files")
    if not isinstance(described, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for entry in described.values()
    ):
        return f"{MANIFEST} does not give size and SHA-256 of its files"
    for name, expected in described.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {size:,} bytes; its manifest says {expected['bytes']:,}"
    return None


def newest_whole(
    run: RunDir,
    check: Callable[[Path], str | None] = checkpoint_problem,
    steps: Sequence[int] | None = None,
) -> tuple[int | None, list[tuple[int, str]]]:
    """(step of the newest whole checkpoint or None, [(step, reason) of each newer one, newest first]).

    `check` says why a folder is not whole, or None. The default compares names and sizes; readers of
    checkpoints pass one that reads the contents. `steps`: the run's, if another rank has listed them already.
    """
    skipped: list[tuple[int, str]] = []
    for step in reversed(run.checkpoint_steps() if steps is None else steps):
        reason = check(run.checkpoint(step))
        if reason is None:
            return step, skipped
        skipped.append((step, reason))
    return None, skipped


def newest_checkpoint_step(run: RunDir) -> int | None:
    """The newest step whose checkpoint is whole by names and sizes; None if the run has none."""
    return newest_whole(run)[0]


def _why_rejected(folder: Path) -> str | None:
    """Why the trainer refused the contents of a checkpoint that had a manifest; None if it did not."""
    try:
        rejected = files.read_json(folder / REJECTED)
    except ValueError:
        return f"{REJECTED} is not JSON"
    return str(rejected["reason"]) if isinstance(rejected, dict) and "reason" in rejected else None
