"""What makes a checkpoint whole: manifest.json, written last, names every file with its size and SHA-256.

    model/global_step<N>/
      mp_rank_00_model_states.pt, *_optim_states.pt, ...    DeepSpeed's
      manifest.json                                         ours, by rename, when all of them are on disk

A folder without a manifest, or whose files are not what the manifest says, does not count: it is skipped, with
the reason, and the next older one is used.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbtrain import files
from nbtrain.rundir import RunDir

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


def payload(folder: Path) -> list[Path]:
    """Every file of a checkpoint but its manifest, sorted, relative to the folder."""
    return sorted(
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST
    )


def describe(folder: Path, names: list[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of some files, each flushed to the disk first."""
    described = {}
    for name in names:
        path = folder / name
        with path.open("rb") as stream:
            files.fsync_file(stream)
        described[str(name)] = {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
    return described


def size_problem(folder: Path) -> str | None:
    """Why the checkpoint is not whole, as far as names and sizes tell; None where they are right. Cheap."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    try:
        manifest = files.read_json(folder / MANIFEST)
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if manifest is None:
        return f"it has no {MANIFEST}: its writing was cut off"
    if manifest.get("schema_version") != SCHEMA_VERSION:
        return f"{MANIFEST} has schema_version {manifest.get('schema_version')}; this nbtrain reads {SCHEMA_VERSION}"
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {size:,} bytes; its manifest says {expected['bytes']:,}"
    return None


def content_problem(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """The first file whose SHA-256 is not the manifest's, among the part-th of `parts` shares of the files."""
    manifest = files.read_json(folder / MANIFEST)
    assert manifest is not None
    for name in sorted(manifest["files"])[part::parts]:
        if files.sha256_of(folder / name) != manifest["files"][name]["sha256"]:
            return f"{name} does not have the SHA-256 that its manifest says"
    return None


def problem(folder: Path) -> str | None:
    """Why the checkpoint in `folder` is not whole, or None. Reads all of it."""
    return size_problem(folder) or content_problem(folder)


def newest_whole(
    run: RunDir, check: Callable[[Path], str | None] = problem
) -> tuple[int | None, list[tuple[int, str]]]:
    """(step of the newest whole checkpoint or None, [(step, reason) of newer ones that are not])."""
    skipped: list[tuple[int, str]] = []
    for step in reversed(run.checkpoint_steps()):
        reason = check(run.checkpoint(step))
        if reason is None:
            return step, skipped
        skipped.append((step, reason))
    return None, skipped


def prune(run: RunDir, newest: int, keep_last: int, keep_every_steps: int | None) -> list[int]:
    """Remove what need not stay: the removed steps. Torn folders behind the newest checkpoint go too."""
    whole = [step for step in run.checkpoint_steps() if run.checkpoint_manifest(step).exists()]
    keep = set(whole[-keep_last:]) | {newest}
    if keep_every_steps:
        keep |= {step for step in whole if step % keep_every_steps == 0}
    removed = [step for step in run.checkpoint_steps() if step not in keep and step < newest]
    for step in removed:
        remove(run, step)
    return removed


def remove(run: RunDir, step: int) -> None:
    """Remove a checkpoint, its manifest first, so that a half removed one does not count."""
    run.checkpoint_manifest(step).unlink(missing_ok=True)
    shutil.rmtree(run.checkpoint(step))
