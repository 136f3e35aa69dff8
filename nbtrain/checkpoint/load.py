"""Loads a checkpoint into a live engine.

All ranks call two functions, one after the other:

    choose   returns the newest complete checkpoint; incomplete ones are skipped, with an event
    load     checks that the checkpoint fits the run
             -> same layout: DeepSpeed's own load, bit for bit; another layout: reshape.py
             -> random state -> resume report (live/resume_report.py)
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import newest_whole
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import NOT_USED, RunDir
from nbtrain.checkpoint import reshape
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.live import resume_report
from nbtrain.checkpoint.live.describe import architecture, layout
from nbtrain.checkpoint.live.live_run import LiveRun, TrainState
from nbtrain.checkpoint.rollbacks import pass_bad_samples
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.rules.resume import misfits
from nbtrain.dataset.samples.state import DataState
from nbtrain.parallel.agreement import broadcast_object, gather_objects
from nbtrain.parallel.startup import World, quiet

logger = logging.getLogger(__name__)


def choose(run: RunDir, world: World, events: EventWriter | None) -> dict[str, Any] | None:
    """Return the manifest of the newest complete checkpoint; None if there is no checkpoint at all.

    All ranks call it together; each reads a share of the files. An incomplete checkpoint is skipped, with an
    event and a log line. A checkpoint that contains code, or whose contents differ from its manifest, is
    rejected permanently. Raises CheckpointError if there are checkpoints but none is complete.
    """
    steps = broadcast_object(run.checkpoint_steps())
    assert isinstance(steps, list)

    def problem(folder: Path) -> str | None:
        """Return the reason why a checkpoint is not valid, the same on all ranks; None if it is valid."""
        reason = broadcast_object(manifests.size_problem(folder) if world.rank == 0 else None)
        if reason is None:
            shares = gather_objects(manifests.content_problem(folder, world.rank, world.size))
            reason = next((share for share in shares if share), None)
            if reason is not None and world.rank == 0:
                manifests.reject(folder, str(reason))
        return None if reason is None else str(reason)

    newest, torn = newest_whole(run, problem, steps)
    for step, reason in torn:
        message = (
            f"checkpoint {run.checkpoint(step).name} {NOT_USED}: {reason}; trying the previous checkpoint"
        )
        if events is not None:
            logger.warning("%s", message)
            events.write("warning", message, step=step)
    if newest is not None:
        return manifests.read(run.checkpoint(newest))
    if torn:
        reasons = "; ".join(f"{run.checkpoint(step).name}: {reason}" for step, reason in torn)
        raise CheckpointError(
            f"{run.model}: no checkpoint is complete: {reasons}. Remove the folder to train from the start, "
            "or restore a valid copy there."
        )
    return None


def load(
    live: LiveRun, manifest: dict[str, Any], data: DataState, folder: Path | None = None, source: str = ""
) -> TrainState:
    """Load the checkpoint with this manifest, and write the resume report. All ranks call it together.

    `data` is the data state of a new run on the current dataset. `folder` contains this rank's files; None
    means the checkpoint's folder in model/. `source` says why the checkpoint was chosen. Raises
    CheckpointError if the checkpoint does not fit the run.
    """
    step, config = manifest["step"], live.config
    folder = folder or live.run.checkpoint(step)
    check_fits(live, folder, manifest, data)
    changes = layout_changes(live, manifest)
    saved = _load_reshaped(live, folder) if changes else _load_native(live, folder)
    state = _train_state(saved["state"], manifest)
    message = f"resumed from the checkpoint of step {step}"
    if changes:
        live.reseed(step)
        message += f", which was saved with another layout ({', '.join(changes)})"
        if live.events is not None:
            logger.info("%s", message)
    else:
        live.restore_random(saved["random"][live.world.rank])
    live.tell("checkpoint", message, step=step, saved_layout=manifest["layout"], layout=layout(config))
    if live.world.rank == 0:
        _certify(live, manifest, state, bool(changes), source)
    return state


def check_fits(live: LiveRun, folder: Path, manifest: dict[str, Any], data: DataState) -> None:
    """Raise CheckpointError if a setting has changed that must not change in a resume.

    The message lists all such settings (config/rules/resume.py).
    """
    config = live.config
    found = misfits(
        manifest,
        {
            "architecture": architecture(config),
            "optimizer": config.optimizer.type,
            "vocab_size": config.tokenizer.vocab_size,
            "tokenizer_sha256": live.tokenizer_sha256,
            "code_sha256": live.code_sha256,
            "data_state": data.to_dict(),
        },
    )
    if found:
        raise CheckpointError(
            # All in one line, because the first line of a rank's error is shown as the reason why its job
            # ended.
            f"{folder}: does not fit this run: {'; '.join(found)}. "
            "Restore the checkpoint's settings, or train a new run with the changed settings."
        )


def layout_changes(live: LiveRun, manifest: dict[str, Any]) -> list[str]:
    """Return the differences between the layouts of the checkpoint and the run; [] if there are none, so that
    DeepSpeed itself can load the checkpoint.
    """
    words = resume_report.layout_words(manifest["layout"], layout(live.config))
    before, now = manifest["padded_vocab_size"], live.config.padded_vocab_size
    return words + ([f"padded vocabulary: {before:,} -> {now:,}"] if before != now else [])


def _train_state(saved: dict[str, Any], manifest: dict[str, Any]) -> TrainState:
    known = {field.name for field in dataclasses.fields(TrainState)}
    values = {key: value for key, value in saved.items() if key in known}
    state = TrainState(**{**values, "data": DataState.from_dict(values["data"])})
    if manifest["evaluated_step"] == manifest["step"] != state.evaluated_step:
        # The validation was run after the checkpoint had been saved, so its loss is only in the manifest.
        state.validated(manifest["validation_loss"])
    return state


def _load_native(live: LiveRun, folder: Path) -> dict[str, Any]:
    """Load with DeepSpeed, then restore the configuration's values, which DeepSpeed overwrites."""
    optimizer = live.engine.optimizer
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "step")}
        for group in optimizer.param_groups
    ]
    clip_grad, scaler = getattr(optimizer, "clip_grad", None), getattr(optimizer, "loss_scaler", None)
    with quiet():
        _, client_state = live.engine.load_checkpoint(
            str(folder.parent),
            tag=folder.name,
            load_module_strict=live.config.lora is None,
            load_lr_scheduler_states=False,
        )
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group.update(own)
    if clip_grad is not None:
        optimizer.clip_grad = clip_grad
    saved = getattr(optimizer, "loss_scaler", None)
    if scaler is not None and saved is not None:
        reshape.keep_loss_scaler(optimizer, scaler, saved)
    return client_state["nbtrain"]


def _load_reshaped(live: LiveRun, folder: Path) -> dict[str, Any]:
    store, config = CheckpointStore(folder), live.config
    tensor = (config.topology.coordinate(live.world.rank)[2], config.parallel.tensor_parallel_size)
    reshape.load_into(live.engine, store, tensor, config.padded_vocab_size)
    return store.client_state


def _certify(live: LiveRun, manifest: dict[str, Any], state: TrainState, reseeded: bool, source: str) -> None:
    # If a rollback skips samples, the next batch changes.
    data = pass_bad_samples(live.run, state.data)
    made = resume_report.certify(
        manifest, live.config, layout(live.config), live.world.device, live.next_batch_sha256(data), reseeded
    )
    made.source, made.attempt = source, live.attempt
    logger.info("%s", made)
    live.tell(
        "certificate", str(made), step=made.step, resume=made.kind, reasons=made.reasons,
        next_batch_sha256=made.next_batch_sha256, source=source,
    )  # fmt: skip
    if (job := live.run.newest_job()) is not None:
        made.write(job.resume_json)
