"""Rules that decide which checkpoint folders are complete, and which of them is the newest.

The notebook side and the GPU side share these rules.

The module also reads and writes model/local.json, the list of checkpoints on the nodes' local disks
(checkpoint.local_dir). Such a checkpoint counts once it has been copied to the run directory, or when a
resume has found all of its parts.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, Record, Rollback, TrainingProgress
from nbtrain.base.run_directory.rundir import MANIFEST, RunDir
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display

# File that replaces the manifest once the trainer has read the contents and rejected them.
REJECTED = "rejected.json"

SCHEMA_VERSION = 2

# Placeholders in checkpoint.local_dir for the node's number and its name.
PLACEHOLDERS = ("{node}", "{host}")
# Maximum number of saves in the list. Every node has deleted older saves long before.
LISTED_LOCAL_SAVES = 50


@dataclass
class LocalSave(Record):
    """Entry in model/local.json: a checkpoint whose parts all ranks have written to their nodes' disks."""

    step: int
    save_id: str
    """Id that all parts of this save have, so that parts of two saves of the same step are never mixed."""
    hosts: list[str]
    job_id: str
    attempt: int
    time: float
    copied: bool = False
    """Whether the save has also been copied to model/ completely."""

    def before(self, rollback: Rollback) -> bool:
        """Return whether the save is older than a rollback.

        A rollback chose the checkpoint to continue from, so an older save no longer counts.
        """
        return (self.job_id, self.attempt) <= (rollback.job_id, rollback.attempt)


@dataclass
class LocalSaves(Record):
    """Contents of model/local.json: the newest checkpoints that were written to the nodes' local disks."""

    saves: list[LocalSave] = field(default_factory=list)
    """Saves, oldest first."""
    job_id: str = ""
    """Job of the newest attempt that has begun to train. Parts written by earlier attempts count only if they
    are listed in `saves`.
    """
    attempt: int = 0

    @classmethod
    def of(cls, run: RunDir) -> "LocalSaves":
        """Return the run's list of local saves; empty if there is none."""
        return cls.read(run.local_json) or cls()

    def keep(self, run: RunDir) -> None:
        """Write the newest LISTED_LOCAL_SAVES saves of this list to the run's model/local.json."""
        self.saves = self.saves[-LISTED_LOCAL_SAVES:]
        run.model.mkdir(parents=True, exist_ok=True)
        self.write(run.local_json)


@dataclass(frozen=True)
class ResumeStart:
    """Point from which a resume starts: a checkpoint or step 0.

    If `torn` is not empty, the resume is refused.
    """

    step: int | None
    """Step of the checkpoint, provided that every node still has its part. None if no checkpoint is
    complete.
    """
    torn: tuple[tuple[int, str], ...]
    """(step, reason) of each checkpoint, newest first, if the run has checkpoints but none of them is
    complete; empty otherwise.
    """

    @property
    def torn_names(self) -> str:
        """Names of the torn checkpoints' folders, e.g. "global_step200, global_step100"."""
        return ", ".join(f"global_step{step}" for step, _ in self.torn)


@dataclass(frozen=True)
class SavedCheckpoints:
    """Checkpoints of a run, judged by the names and sizes of their files."""

    complete_step: int | None
    """Step of the newest complete checkpoint in the run directory. None if there is none."""
    incomplete: tuple[tuple[int, str], ...]
    """(step, reason) of newer checkpoints that are not complete, newest first."""
    on_nodes: LocalSave | None
    """Newest checkpoint that is only on the nodes' disks. None if there is none, if model/ has a checkpoint
    of the same step or later, or if a rollback followed it.
    """

    @property
    def saved_step(self) -> int | None:
        """Step that a resume continues from. None if nothing was saved.

        It is assumed that every node still has its part of a checkpoint on the nodes' disks.
        """
        return self.complete_step if self.on_nodes is None else self.on_nodes.step

    def resume_start(self, mode: str, on_nodes: bool = True) -> ResumeStart:
        """Return where a resume in `mode` continues.

        If the run has checkpoints but none of them is complete, they may be the last copy of the training, so
        the resume is refused. mode: perf saves nothing and starts anyway. With `on_nodes` False, checkpoints
        that are only on the nodes' disks do not count.
        """
        step = self.saved_step if on_nodes else self.complete_step
        return ResumeStart(step, () if step is not None or mode == "perf" else self.incomplete)


def read_checkpoints(run: RunDir) -> SavedCheckpoints:
    """Return the checkpoints of a run. Whether the nodes and their disks still exist is not checked."""
    # The list is read before model/, so that a save that is copied meanwhile is found in model/.
    newest = next(reversed(LocalSaves.of(run).saves), None)
    step, incomplete = newest_whole(run)
    if newest is not None:
        rollbacks = Rollback.read_all(run.rollbacks_json)
        if newest.copied or newest.step <= (step or 0) or any(map(newest.before, rollbacks)):
            newest = None
    return SavedCheckpoints(step, tuple(incomplete), newest)


def only_on_nodes(run: RunDir) -> LocalSave | None:
    """Return the newest checkpoint that is only on the nodes' disks; see SavedCheckpoints.on_nodes."""
    return read_checkpoints(run).on_nodes


def kept_on_nodes(run: RunDir, keep_last: int) -> list[LocalSave]:
    """Return the saves that should be on the nodes' disks, oldest first.

    Saves from before a rollback are omitted. `keep_last` is checkpoint.local_keep_last. Whether the files
    exist is not checked.
    """
    newest, rollbacks = LocalSaves.of(run).saves[-keep_last:], Rollback.read_all(run.rollbacks_json)
    return [save for save in newest if not any(save.before(rollback) for rollback in rollbacks)]


def newest_saved_step(run: RunDir) -> int | None:
    """Return the step that a resume continues from; see SavedCheckpoints.saved_step."""
    return read_checkpoints(run).saved_step


def saved_progress(run: RunDir, reached: TrainingProgress) -> TrainingProgress:
    """Return `reached` with the tokens, samples and losses of its newest checkpoint.

    These values, at the step `reached.checkpoint_step`, come from the checkpoint's manifest and the
    heartbeats. A loss that is not recorded there is None.
    """
    assert reached.checkpoint_step is not None
    known: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        known = files.read_json(run.checkpoint_manifest(reached.checkpoint_step)) or {}
    beats = (Heartbeat.read(run.job(job_id).heartbeat(0)) for job_id in reversed(run.job_ids()))
    at_step = (beat.progress for beat in beats if beat and beat.step == reached.checkpoint_step)
    newest = next((progress for progress in at_step if progress), None)
    return replace(
        reached,
        consumed_tokens=known.get("consumed_tokens", reached.consumed_tokens),
        consumed_samples=known.get("consumed_samples", reached.consumed_samples),
        loss=newest.loss if newest else None,
        validation_loss=known.get("validation_loss"),
    )


def measured_save_seconds(run: RunDir) -> float:
    """Return the duration of the longest save in any of the run's jobs, in seconds. 0 if it is unknown.

    The durations come from rank 0's heartbeats.
    """
    beats = (Heartbeat.read(run.job(job_id).heartbeat(0)) for job_id in run.job_ids())
    return max((beat.progress.save_seconds or 0.0 for beat in beats if beat and beat.progress), default=0.0)


def on_nodes_words(run: RunDir) -> str:
    """Return a sentence about the newest checkpoint if it is only on the nodes' disks; otherwise "".

    The message about the end of a job includes the sentence.
    """
    if (save := only_on_nodes(run)) is None:
        return ""
    return (
        f"the checkpoint of step {save.step} is only on the local disks of {', '.join(save.hosts)} "
        f"(checkpoint.local_dir): to continue from it, resume on the same nodes"
    )


def local_folder(local_dir: str, node: int, host: str) -> Path:
    """Return checkpoint.local_dir with the node's number and host name filled in."""
    return Path(local_dir.replace("{node}", str(node)).replace("{host}", host))


def local_run_folder(local_dir: str, node: int, host: str, run: RunDir) -> Path:
    """Return the run's own folder in checkpoint.local_dir.

    The folder's name contains the run's id, which distinguishes runs of the same name.
    """
    return local_folder(local_dir, node, host) / f"{run.name}-{run.run_id or ''}"


def checkpoint_problem(folder: Path) -> str | None:
    """Return why a checkpoint is not complete. None if it is complete.

    Only file names and sizes are compared, which is cheap.
    """
    if not folder.is_dir():
        return "there is no such checkpoint"
    try:
        manifest = files.read_json(folder / MANIFEST)
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if manifest is None:
        return _why_rejected(folder) or f"{MANIFEST} is missing: the save was interrupted"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} must be a JSON object, not {type(manifest).__name__}"
    if (version := manifest.get("schema_version")) != SCHEMA_VERSION:
        return f"{MANIFEST} has schema_version {version}, but this nbtrain reads {SCHEMA_VERSION}"
    described = manifest.get("files")
    if not isinstance(described, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for entry in described.values()
    ):
        return f"{MANIFEST} does not list the size and SHA-256 of each file"
    for name, expected in described.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {counted(size, 'byte')}, but {MANIFEST} lists {expected['bytes']:,}"
    return None


def files_sha256(manifest: Mapping[str, Any]) -> str:
    """Return one SHA-256 in hex for all files of a checkpoint, from its manifest."""
    # Imported here because nearly every command loads this file, and few of them hash anything.
    from nbtrain.base.code_hashes import joint_sha256

    return joint_sha256({name: entry["sha256"] for name, entry in manifest["files"].items()})


def in_work(run: RunDir, step: int, now: float) -> str | None:
    """Return what the run's job is doing with a checkpoint that has no manifest: saving or removing it.

    None if the job is not working on the checkpoint. A save writes the manifest last, and the removal of an
    older checkpoint removes it first. A folder that was not modified since the attempt began was left by an
    interrupted save of an earlier attempt.
    """
    folder, job = run.checkpoint(step), run.newest_job()
    record = JobRecord.read(job.job_json) if job is not None else None
    if job is None or record is None or not record.attempts or read_state(job, now)[0] not in ACTIVE:
        return None
    try:
        if (folder / MANIFEST).exists() or (folder / REJECTED).exists():
            return None
        if folder.stat().st_mtime < record.attempts[-1].started_at:
            return None
    except FileNotFoundError:
        return "was removed by the running job"
    newest = newest_checkpoint_step(run)
    return f"is being {'saved' if newest is None or step > newest else 'removed'} by the running job"


def newest_whole(
    run: RunDir,
    check: Callable[[Path], str | None] = checkpoint_problem,
    steps: Sequence[int] | None = None,
) -> tuple[int | None, list[tuple[int, str]]]:
    """Return (step of the newest complete checkpoint or None, [(step, reason) of newer checkpoints]).

    The newer checkpoints are listed newest first. `check` returns the reason why a folder is not complete, or
    None. The default compares names and sizes; readers of checkpoints pass a check that reads the contents.
    `steps` are the run's steps, if another rank has already listed them.
    """
    skipped: list[tuple[int, str]] = []
    for step in reversed(run.checkpoint_steps() if steps is None else steps):
        reason = check(run.checkpoint(step))
        if reason is None:
            return step, skipped
        skipped.append((step, reason))
    return None, skipped


def newest_checkpoint_step(run: RunDir) -> int | None:
    """Return the newest step whose checkpoint is complete, judged by names and sizes.

    None if there is none.
    """
    return newest_whole(run)[0]


def step_to_export(run: RunDir, has_start: bool, now: float) -> int:
    """Return the step that an export writes by default: the newest step with a complete checkpoint.

    A checkpoint that the run's job is still saving is ignored. Without any checkpoint, the result is 0 if the
    run starts from other weights (`has_start`). Raises CheckpointError if the run has no weights to export,
    or if the newest checkpoint is torn.
    """
    found, passed_over = newest_whole(run)
    doing = {step: in_work(run, step, now) for step, _ in passed_over}
    # A save may have ended since the checkpoints were listed.
    torn = [
        (step, reason)
        for step, reason in passed_over
        if doing[step] is None and checkpoint_problem(run.checkpoint(step)) is not None
    ]
    if torn and found is not None:
        reasons = "; ".join(f"global_step{step}: {reason}" for step, reason in torn)
        raise CheckpointError(
            f"{display(run.model)}: the newest checkpoint is not complete ({reasons}). Pass `--step "
            f"{found}` to export the newest complete checkpoint."
        )
    if found is not None:
        return found
    if has_start and not torn:
        return 0
    if not passed_over:
        raise CheckpointError(f"{display(run.model)} contains no checkpoint. Train the run first.")
    reasons = "".join(f"\n  global_step{step}: {doing[step] or reason}" for step, reason in passed_over)
    raise CheckpointError(
        f"{display(run.model)}: contains no complete checkpoint. Train the run first.{reasons}"
    )


def best_step(run: RunDir, steps: list[int]) -> int | None:
    """Return the step with the lowest validation loss; None if no checkpoint was validated at its step."""
    losses = {}
    for step in steps:
        manifest = files.read_json(run.checkpoint_manifest(step)) or {}
        loss = manifest.get("validation_loss")
        # NaN is unequal to itself.
        if loss is not None and loss == loss and manifest.get("evaluated_step") == step:
            losses[step] = loss
    return min(losses, key=lambda step: (losses[step], -step), default=None)


def _why_rejected(folder: Path) -> str | None:
    """Return why the trainer rejected the contents of a checkpoint. None if it did not reject them."""
    try:
        rejected = files.read_json(folder / REJECTED)
    except ValueError:
        return f"{REJECTED} is not JSON"
    return str(rejected["reason"]) if isinstance(rejected, dict) and "reason" in rejected else None
