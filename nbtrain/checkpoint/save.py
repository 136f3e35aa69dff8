"""Saves checkpoints: DeepSpeed writes the state of the engine, and our manifest makes it valid.

    check of the disk space -> DeepSpeed's files, hashed while written -> manifest.json -> latest
        -> prune (files/manifest.py)

With checkpoint.async_save the state is copied to host memory; files and manifest follow in the background
(writer.py). With checkpoint.local_dir the files are written to the node's own disk first and are copied to
the run directory in the background, or stay on the node (local_save.py). In addition to the engine's state, a
checkpoint holds the data state and every rank's random state, so that a resumed run computes the same steps
bit for bit, and universal_checkpoint_info for DeepSpeed's converter.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, DiskFullError
from nbtrain.base.run_directory.checkpoint_files import files_sha256, newest_saved_step
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.files.local_disk import LocalDisk
from nbtrain.checkpoint.files.writer import SHARES, BackgroundSave, CheckpointWriter, Described
from nbtrain.checkpoint.live import describe
from nbtrain.checkpoint.live.live_run import LiveRun, TrainState
from nbtrain.checkpoint.local_save import LocalPart, NodeSaves
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.schema import RunConfig
from nbtrain.parallel.agreement import NOTHING, SAVE, broadcast_object, gather_objects
from nbtrain.parallel.startup import quiet

# Folder into which DeepSpeed copies the swap files of state offloaded to NVMe.
SWAPPED = "offloaded_tensors"
# Seconds of each wait in finish(), far below the shortest useful parallel.process_group_timeout_seconds.
SLICE_SECONDS = 5.0


@dataclass(frozen=True)
class Saved:
    """The result of a save: a complete checkpoint."""

    step: int
    bytes: int
    stall_seconds: float
    """Seconds that training paused for the save."""
    seconds: float
    """Seconds until the checkpoint was complete, including seconds in which training continued."""
    removed_steps: list[int]
    """Steps of the older checkpoints that were removed after this save."""
    files_sha256: str
    """SHA-256 of all files of the checkpoint together; still known after the checkpoint is removed."""
    next_batch_sha256: str | None
    """SHA-256 of the batch that follows the checkpoint; None if there is no further batch."""


class Saver:
    """Saves the checkpoints of one run, one after the other."""

    def __init__(self, live: LiveRun, disk: LocalDisk | None = None):
        self.live = live
        self.disk = disk
        """Checkpoints on this node's own disk; None without checkpoint.local_dir."""
        self.writer = CheckpointWriter(background=bool(live.config.checkpoint.async_save))
        """Writer to which DeepSpeed hands its files (train/engine/patches.py)."""
        self._in_flight: BackgroundSave | None = None
        self._saved: Saved | None = None
        self._announced: Saved | None = None
        self._parameters: dict[str, Any] | None = None
        self._local: NodeSaves | None = None if disk is None else NodeSaves(disk, live)

    def wish(self) -> int:
        """Return SAVE if this rank's part of a background save failed, otherwise NOTHING.

        If any rank votes SAVE, all ranks call save(), which raises the error on all of them.
        """
        return SAVE if self._in_flight is not None and self._in_flight.error else NOTHING

    def poll(self) -> Saved | None:
        """Return the checkpoint completed since the last call, or None. Rank 0 only; does not wait."""
        self._announce()
        announced, self._announced = self._announced, None
        return announced

    def save(self, state: TrainState) -> float:
        """Write the checkpoint of `state.step`, or start writing it in the background, and return the seconds
        that training paused.

        Nothing is written if the step already has a complete checkpoint. Raises CheckpointError, on all
        ranks, if the disk has too little space or the previous save has failed.
        """
        started = time.monotonic()
        self.finish()
        live, step = self.live, state.step
        folder = live.run.checkpoint(step)
        problem = make_room(live.run, live.config, folder) if live.world.rank == 0 else None
        if isinstance(agreed := broadcast_object(problem), CheckpointError):
            raise agreed
        if broadcast_object(manifests.size_problem(folder)) is None:
            return time.monotonic() - started
        part = None if self._local is None else self._local.begin(step, self.writer, folder)
        if part is None:
            write_state(live, state, folder, self._described())
        else:
            self._write_part(state, part)
        manifest = self._manifest(state, part)
        if part is None and not self.writer.background:
            shares = dict(enumerate(gather_objects(self.writer.described)))
            if live.world.rank == 0:
                self._saved = publish(live, step, manifest, shares, started, None)
                self._announce()
            return time.monotonic() - started
        self.writer.wait_for_copies()
        if part is not None:
            self._keep(part, manifest)
        stall = time.monotonic() - started

        def publish_shares(shares: dict[int, Described]) -> None:
            # This runs in the background thread, so `state` belongs to a later step by now. Only the main
            # thread writes events.
            self._saved = publish(live, step, manifest, shares, started, stall)
            if part is not None:
                # The checkpoint counts, whether or not local.json lists it.
                with contextlib.suppress(OSError):
                    part.note_copied()

        self._in_flight = BackgroundSave(
            self.writer,
            folder,
            live.world.rank,
            live.world.size,
            publish_shares,
            keep=part.keep if part is not None and self.writer.background else None,
            copy=part.copy if part is not None else None,
        )
        return stall

    def save_locally(self, state: TrainState) -> float:
        """Write the checkpoint of `state.step` only to the nodes' own disks, and return the seconds it took.

        If a disk is full, an event reports it and the run continues. Raises CheckpointError on other errors.
        """
        started = time.monotonic()
        assert self._local is not None
        self._confirm()
        if (part := self._local.begin(state.step, self.writer, None)) is not None:
            self._write_part(state, part)
            manifest = self._manifest(state, part)
            self.writer.wait_for_copies()
            self._keep(part, manifest)
            if self.writer.background:
                self._local.keep_in_background(self.writer, part)
        return time.monotonic() - started

    def complete(
        self, step: int, save_id: str, manifest: dict[str, Any], copy: Callable[[], Described]
    ) -> None:
        """Copy the remaining files of a checkpoint that was resumed from the nodes' disks, in the
        background.
        """
        assert self._local is not None
        local, live, started = self._local, self.live, time.monotonic()
        local.copying(step)

        def publish_rest(shares: dict[int, Described]) -> None:
            publish_manifest(live.run, step, manifest)
            self._saved = pruned(live, manifest, started, 0.0)
            with contextlib.suppress(OSError):
                local.note(step, save_id, copied=True)

        folder = live.run.checkpoint(step)
        self._in_flight = BackgroundSave(
            self.writer, folder, live.world.rank, live.world.size, publish_rest, copy=copy
        )

    def clear(self) -> None:
        """Remove all files of the finished run from the nodes' own disks."""
        if self.disk is not None and self.disk.is_lead:
            self.disk.clear()

    def _write_part(self, state: TrainState, part: LocalPart) -> None:
        with part.written_by(self.live.engine):
            write_state(self.live, state, part.target, self._described())

    def _keep(self, part: LocalPart, manifest: dict[str, Any]) -> None:
        """Write the part's record, at once or, with async_save, in the background."""
        part.describe(self.writer, manifest)
        if not self.writer.background:
            part.keep()
            self._confirm()

    def _confirm(self) -> None:
        """Wait until the writer is free, then confirm the newest checkpoint on the nodes' disks."""
        if self._local is not None:
            if self._in_flight is not None:
                self._in_flight.wait_kept()
            self._local.confirm()

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete; do nothing if no checkpoint is being
        written.

        If the checkpoint could not be written, its folder is removed and CheckpointError is raised on all
        ranks.
        """
        self._confirm()
        saving, self._in_flight = self._in_flight, None
        if saving is None:
            return
        is_first = self.live.world.rank == 0
        # The wait is split into slices: a node may finish copying an hour before another one, but no
        # collective may take that long.
        while not all(gather_objects(saving.is_written(SLICE_SECONDS))):
            pass
        errors = [error for error in gather_objects(saving.error) if error]
        if errors:
            saving.cancel()
        elif error := broadcast_object(saving.wait_published() if is_first else None):
            errors.append(error)
        if errors:
            if is_first and manifests.size_problem(saving.folder) is not None:
                shutil.rmtree(saving.folder, ignore_errors=True)
            before = newest_saved_step(self.live.run)
            raise CheckpointError(
                f"{saving.folder}: the checkpoint could not be written: {errors[0]}. "
                + (
                    "The previous checkpoint is still valid."
                    if before
                    else "It would have been the first checkpoint."
                )
            )
        self._announce()

    def _manifest(self, state: TrainState, part: LocalPart | None) -> dict[str, Any]:
        """Return the manifest without its list of files; {} on ranks that do not write it."""
        writes = self.live.world.rank == 0 or (part is not None and part.is_copy)
        return describe.manifest_of(self.live, state, self._described()) if writes else {}

    def _described(self) -> dict[str, Any]:
        """Return the description of all parameters, which the first call creates.

        All ranks must make the first call together.
        """
        if self._parameters is None:
            self._parameters = describe.described_parameters(self.live)
        return self._parameters

    def _announce(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            self._announced = saved
            words = f"checkpoint of step {saved.step} saved"
            self.live.tell("checkpoint", words, attempt=self.live.attempt, **vars(saved))


def make_room(run: RunDir, config: RunConfig, folder: Path) -> CheckpointError | None:
    """Remove an incomplete `folder` of an earlier save, and check that the disk has room for a checkpoint.

    Returns the error to raise on all ranks; None if there is room. Only rank 0 calls it.
    """
    run.model.mkdir(parents=True, exist_ok=True)
    if manifests.size_problem(folder) is None:
        return None
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        return CheckpointError(
            f"{folder}: the files of an earlier save cannot be removed: {error.strerror or error}."
        )
    needed, free = checkpoint_room_bytes(config), shutil.disk_usage(run.model).free
    if free >= needed:
        return None
    return DiskFullError(
        f"{run.model}: a checkpoint needs {needed / 1e9:,.2f} GB, but only {free / 1e9:,.2f} GB is free. "
        "Free up space, or lower checkpoint.keep_last; then resume the run."
    )


def write_state(live: LiveRun, state: TrainState, folder: Path, parameters: dict[str, Any]) -> None:
    """Write DeepSpeed's files to `folder`, or copy their contents to memory for a background save.

    `parameters` is the result of describe.described_parameters(). All ranks call it together. Raises
    CheckpointError.
    """
    client_state = {
        "nbtrain": {
            "state": {**vars(state), "data": state.data.to_dict()},
            "random": gather_objects(live.random_state()),
            "optimizer_names": describe.optimizer_names(live),
        },
        "universal_checkpoint_info": describe.universal_checkpoint_info(live.config, parameters),
    }
    try:
        with quiet():
            live.engine.save_checkpoint(
                str(folder.parent),
                tag=folder.name,
                client_state=client_state,
                save_latest=False,
                # Frozen weights are omitted, because they are the same as in init_from and every checkpoint
                # would repeat them.
                exclude_frozen_parameters=live.config.lora is not None,
            )
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: the checkpoint could not be written: {error}") from error


def publish(
    live: LiveRun,
    step: int,
    manifest: dict[str, Any],
    shares: dict[int, Described],
    started: float,
    stall_seconds: float | None,
) -> Saved:
    """Write the manifest, which makes the checkpoint valid, and remove older checkpoints. Rank 0 only.

    `shares` are the files that each rank has written. If stall_seconds is None, training has paused since
    `started`.
    """
    folder = live.run.checkpoint(step)
    coordinate = live.config.topology.coordinate
    described = {
        name: {**entry, "rank": list(coordinate(rank))}
        for rank, share in sorted(shares.items())
        for name, entry in share.items()
    }
    swapped = [name for name in manifests.payload(folder) if name.parts[0] == SWAPPED]
    for name, entry in manifests.describe(folder, swapped).items():
        described[name] = {**entry, "rank": None}
    manifest = {**manifest, "files": dict(sorted(described.items()))}
    publish_manifest(live.run, step, manifest)
    return pruned(live, manifest, started, stall_seconds)


def publish_manifest(run: RunDir, step: int, manifest: dict[str, Any]) -> None:
    """Write the manifest, which makes the checkpoint valid. Rank 0 only."""
    folder = run.checkpoint(step)
    files.write_json(folder / manifests.MANIFEST, manifest)
    files.write_text(run.latest, folder.name)
    shutil.rmtree(folder / SHARES, ignore_errors=True)


def pruned(live: LiveRun, manifest: dict[str, Any], started: float, stall_seconds: float | None) -> Saved:
    """Remove the older checkpoints that need not be kept, and return the Saved of the new checkpoint.

    `manifest` is the new checkpoint's. Only rank 0 calls it.
    """
    options, step, described = live.config.checkpoint, manifest["step"], manifest["files"]
    removed = manifests.prune(live.run, step, options.keep_last, options.keep_every_steps, options.keep_best)
    seconds = time.monotonic() - started
    size = sum(entry["bytes"] for entry in described.values())
    return Saved(
        step,
        size,
        seconds if stall_seconds is None else stall_seconds,
        seconds,
        removed,
        files_sha256(manifest),
        manifest["next_batch_sha256"],
    )


def add_validation(live: LiveRun, state: TrainState) -> None:
    """Add the loss of a validation after the save to the manifest, for keep_best and for a resume.

    Only rank 0 writes.
    """
    if live.world.rank != 0:
        return
    step, options, removed = state.step, live.config.checkpoint, []
    manifests.add_validation(live.run, step, state.validation_loss)
    if options.keep_best:
        removed = manifests.prune(live.run, step, options.keep_last, options.keep_every_steps, True)
    message = f"the validation loss was added to the checkpoint of step {step}"
    live.tell("checkpoint", message, step=step, removed_steps=removed)
