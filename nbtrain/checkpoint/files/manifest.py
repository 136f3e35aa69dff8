"""Complete checkpoints: manifest.json, written last, lists every file; prune() chooses the checkpoints to
keep.

    model/global_step<N>/
        mp_rank_00_model_states.pt, *_optim_states.pt, ...    files that DeepSpeed writes
        manifest.json                                         size and SHA-256 of each file; nbtrain writes it
                                                              last, by rename

A folder without a manifest, or whose files differ from the manifest, does not count: it is skipped with the
reason, and the next older one is used. If the trainer rejects the contents, the manifest is moved to
rejected.json, so that readers that compare only sizes do not use the checkpoint.

Fields that are needed to load into another layout:

    files         {name: {bytes, sha256, rank: [pipeline, data, tensor]}}; rank is the coordinate of the rank
                  that wrote the file
    parameters    {canonical name: {shape, partition_dim, group, stage}}; shapes are whole, vocabulary padding
                  included
    layout        the sizes of every kind of parallelism, and other settings that decide how files are split
    settings      every field of the configuration
    next_batch_sha256, vocab_size, padded_vocab_size, evaluated_step, device
"""

import shutil
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import MANIFEST, REJECTED, best_step, newest_whole
from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem as size_problem
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint.files.torch_files import SUFFIX, code_problem


def read(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest. Raises CheckpointError if the manifest or a file is missing, or a
    file's size is wrong.
    """
    if reason := size_problem(folder):
        raise CheckpointError(f"{folder}: {reason}.")
    manifest = files.read_json(folder / MANIFEST)
    assert manifest is not None
    return manifest


def payload(folder: Path) -> list[Path]:
    """Return every file of a checkpoint except its manifest, sorted, relative to the folder."""
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (MANIFEST, REJECTED)
    )


def describe(folder: Path, names: list[Path]) -> dict[str, dict[str, Any]]:
    """Return {name: {bytes, sha256}} of files, after flushing each to the disk."""
    described = {}
    for name in names:
        path = folder / name
        with path.open("rb") as stream:
            files.fsync_file(stream)
        described[str(name)] = {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
    return described


def content_problem(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return the first problem found in the contents of a checkpoint's files; None if there is none.

    Only every `parts`-th file is read, starting with file number `part`, so that several readers can divide
    the work. A file is invalid if its SHA-256 differs from the manifest. It is also invalid if it contains
    code, whatever its SHA-256, because the author of the code could have written the manifest too.
    """
    manifest = files.read_json(folder / MANIFEST)
    assert manifest is not None
    for name in sorted(manifest["files"])[part::parts]:
        if files.sha256_of(folder / name) != manifest["files"][name]["sha256"]:
            return f"{name} does not have the SHA-256 in its manifest"
        if name.endswith(SUFFIX) and (refused := code_problem(folder / name)):
            return f"{name} {refused}"
    return None


def add_validation(run: RunDir, step: int, loss: float | None) -> None:
    """Add the validation loss after `step` to the manifest of the step's checkpoint."""
    path = run.checkpoint_manifest(step)
    manifest = files.read_json(path)
    assert manifest is not None
    files.write_json(path, {**manifest, "validation_loss": loss, "evaluated_step": step})


def reject(folder: Path, reason: str) -> None:
    """Invalidate a checkpoint by moving its manifest to rejected.json; its other files stay."""
    manifest = files.read_json(folder / MANIFEST)
    files.write_json(folder / REJECTED, {"reason": reason, "manifest": manifest})
    (folder / MANIFEST).unlink()


def problem(folder: Path) -> str | None:
    """Return why the checkpoint in `folder` is not valid; None if it is valid. Reads all of the checkpoint's
    files.
    """
    return size_problem(folder) or content_problem(folder)


def whole_step(run: RunDir, step: int | None = None) -> tuple[int, list[tuple[int, str]]]:
    """Return (the step of a complete checkpoint, [(newer step, why its checkpoint is incomplete), ...]).

    The first element is the given `step` or, if `step` is None, the step of the newest complete checkpoint.
    Reads all files of the checkpoint. Raises CheckpointError if the checkpoint is not complete, or if there
    is no checkpoint.
    """
    if step is None:
        step, torn = newest_whole(run, problem)
        if step is None:
            reasons = "".join(f"\n  global_step{number}: {reason}" for number, reason in torn)
            raise CheckpointError(
                f"{run.model}: contains no complete checkpoint. Train the run first.{reasons}"
            )
        return step, torn
    if reason := problem(run.checkpoint(step)):
        known = ", ".join(str(known) for known in run.checkpoint_steps()) or "none"
        raise CheckpointError(f"{display(run.checkpoint(step))}: {reason}. Checkpoints of this run: {known}.")
    return step, []


def prune(
    run: RunDir, newest: int, keep_last: int, keep_every_steps: int | None, keep_best: bool = False
) -> list[int]:
    """Remove checkpoints and incomplete folders that are older than step `newest`; return the removed steps.

    These checkpoints are kept: the newest `keep_last`, every step that is a multiple of `keep_every_steps`
    and, with `keep_best`, the checkpoint with the lowest validation loss.
    """
    whole = [step for step in run.checkpoint_steps() if size_problem(run.checkpoint(step)) is None]
    keep = set(whole[-keep_last:]) | {newest}
    if keep_every_steps:
        keep |= {step for step in whole if step % keep_every_steps == 0}
    if keep_best and (best := best_step(run, whole)) is not None:
        keep.add(best)
    removed = [step for step in run.checkpoint_steps() if step not in keep and step < newest]
    for step in removed:
        # Remove the manifest first, so that a partly removed checkpoint does not count. On NFS a folder
        # remains as long as a process reads one of its files; the next save removes it.
        run.checkpoint_manifest(step).unlink(missing_ok=True)
        shutil.rmtree(run.checkpoint(step), ignore_errors=True)
    return removed
