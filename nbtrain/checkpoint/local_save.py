"""Saves to the nodes' own disks first (checkpoint.local_dir), and copies from there to the run directory.

    begin    checks the free space on every node and chooses the folder for this rank's files
    keep     writes this rank's part record, which makes its part valid on its node
    confirm  checks that all ranks have their parts, writes model/local.json, then prunes
    copy     copies this rank's files to model/, in the background

A full disk never ends the run: the ranks of its node write their files directly to model/ or, if the save was
meant to stay on the nodes, the save is skipped. Either case is reported as an event.
"""

import contextlib
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.checkpoint.files.copier import copy_file, lower_priority
from nbtrain.checkpoint.files.local_disk import LocalDisk, Part, note_local
from nbtrain.checkpoint.files.writer import BackgroundSave, CheckpointWriter, Described
from nbtrain.checkpoint.live.live_run import LiveRun
from nbtrain.parallel.agreement import broadcast_object, gather_objects


class LocalPart:
    """This rank's part of one checkpoint, written to its node's disk first and then, with a `folder`, to
    model/.
    """

    def __init__(self, saves: "NodeSaves", step: int, save_id: str, folder: Path | None, refused: str):
        self._saves, self._disk = saves, saves.disk
        self.step, self.save_id, self.folder = step, save_id, folder
        self.refused = refused
        """Reason why the part is not on the node's disk; "" if the part is there or may still be written
        there.
        """
        self.target = folder if refused and folder is not None else self._disk.checkpoint(step)
        """Folder into which DeepSpeed writes this rank's files."""
        disk = self._disk
        replicated = disk.config.parallel.is_replicated
        self.is_copy = replicated and disk.is_lead and disk.rank != 0 and not refused
        """Whether this rank writes its node's copy of a replicated state, so that a resume needs no files of
        another node. False on the node of rank 0, where rank 0 writes the copy.
        """
        self._manifest: dict[str, Any] = {}

    @contextlib.contextmanager
    def written_by(self, engine: Any) -> Iterator[None]:
        """Let DeepSpeed's `engine` write files on this rank, inside the context, if `is_copy` is true."""
        if not self.is_copy:
            yield
            return
        before, engine.save_non_zero_checkpoint = engine.save_non_zero_checkpoint, True
        try:
            yield
        finally:
            engine.save_non_zero_checkpoint = before

    def describe(self, writer: CheckpointWriter, manifest: dict[str, Any]) -> None:
        """Store the writer's lists of files and the manifest; {} on ranks that do not write a manifest.

        Call it once DeepSpeed has started the save.
        """
        self._writer, self._manifest = writer, manifest
        # The background thread may still add to these lists. The next save uses new ones.
        self._files, self._direct = writer.described, writer.direct

    def keep(self) -> None:
        """Write the part's record if the files are on the node's disk."""
        self.refused = self.refused or self._writer.refused
        if self.refused:
            return
        disk, topology = self._disk, self._disk.config.topology
        is_whole = disk.config.parallel.is_replicated and bool(self._files)
        try:
            disk.write_part(
                Part(
                    rank=disk.rank,
                    world_size=self._saves.live.world.size,
                    step=self.step,
                    save_id=self.save_id,
                    job_id=disk.job_id,
                    attempt=disk.attempt,
                    coordinate=list(topology.coordinate(0 if is_whole else disk.rank)),
                    files=self._files,
                    is_whole=is_whole,
                    manifest=self._manifest,
                )
            )
        except OSError as error:
            self.refused = f"{disk.host}: {error}"

    def copy(self) -> Described:
        """Copy this rank's files that are missing in model/, and return the descriptions of all its files.

        Returns {} if the rank wrote its node's complete copy, which is not copied. Raises CheckpointError.
        """
        assert self.folder is not None
        if self.is_copy:
            return {}
        wanted = {} if self.target == self.folder else self._files
        source = self._disk.checkpoint(self.step)
        lower_priority()
        pace = self._disk.pace()
        for name, entry in wanted.items():
            if name not in self._direct:
                copy_file(source / name, self.folder / name, entry, pace)
        return self._files

    def note_copied(self) -> None:
        """Record that the checkpoint is complete in model/. Rank 0 only."""
        self._saves.note(self.step, self.save_id, copied=True)


class NodeSaves:
    """Saves the checkpoints of a run to the nodes' disks; every rank has one such object."""

    def __init__(self, disk: LocalDisk, live: LiveRun):
        self.disk, self.live = disk, live
        self._pending: LocalPart | None = None
        self._keeping: BackgroundSave | None = None
        self._confirmed: list[int] = []
        self._copying: int | None = None
        self._is_refused = False
        self._listing = threading.Lock()

    def copying(self, step: int) -> None:
        """Do not remove the checkpoint of `step` from the nodes' disks until it has been copied to model/."""
        self._copying = step

    def begin(self, step: int, writer: CheckpointWriter, folder: Path | None) -> LocalPart | None:
        """Return the part of the checkpoint of `step` that this rank is to write. If `folder` is None, the
        checkpoint stays on the nodes.

        Returns None if the checkpoint should stay on the nodes but a node has no room for it. All ranks call
        it together.
        """
        save_id = str(broadcast_object(secrets.token_hex(8)))
        refusals = gather_objects(self.disk.make_room(step) if self.disk.is_lead else "")
        refused = next(filter(None, refusals), "")
        if refused:
            self._tell_refused(step, refused, folder)
        if folder is None and refused:
            return None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.copying(step)
        mine = refusals[self.disk.lead_of[self.disk.rank]]
        self._pending = part = LocalPart(self, step, save_id, folder, mine)
        writer.aim(is_local=not mine, instead=None if part.is_copy else folder)
        return part

    def keep_in_background(self, writer: CheckpointWriter, part: LocalPart) -> None:
        """Write the writer's in-memory copies to the node's disk while training continues."""
        self._keeping = BackgroundSave(
            writer, part.target, self.disk.rank, self.live.world.size, None, keep=part.keep
        )

    def confirm(self) -> None:
        """Check that all ranks have their parts of the newest checkpoint, then remove older ones.

        All ranks call it together, once the files are written or are being written by keep_in_background().
        """
        part, self._pending = self._pending, None
        keeping, self._keeping = self._keeping, None
        if part is None:
            return
        if keeping is not None:
            part.refused = part.refused or keeping.wait_kept() or ""
        disk, step = self.disk, part.step
        refused = next(filter(None, gather_objects(part.refused)), "")
        if refused:
            self._tell_refused(step, refused, part.folder)
        else:
            self._is_refused = False
            self._confirmed.append(step)
            if disk.rank == 0:
                # On a full disk, the list remains incomplete; the next resume looks at the nodes' disks
                # themselves.
                with contextlib.suppress(OSError):
                    self.note(step, part.save_id, copied=False)
                where = f"saved on the disks of {amounts.counted(disk.nodes, 'node')}"
                then = "" if part.folder is None else ", from where it is copied to the run directory"
                self.live.tell(
                    "checkpoint", f"checkpoint of step {step} {where}{then}", step=step, local=True
                )
        if disk.is_lead:
            disk.prune(self._kept())

    def note(self, step: int, save_id: str, copied: bool) -> None:
        """List a checkpoint in model/local.json, from the main or the copying thread. Rank 0 only."""
        with self._listing:
            note_local(self.disk, step, save_id, copied)

    def _kept(self) -> set[int]:
        kept = set(self._confirmed[-self.disk.config.checkpoint.local_keep_last :])
        if self._copying is not None and not self.disk.run.checkpoint_manifest(self._copying).exists():
            kept.add(self._copying)
        return kept

    def _tell_refused(self, step: int, refused: str, folder: Path | None) -> None:
        """Write an event if a node's disk refuses the checkpoint of `step`. Repeated refusals of checkpoints
        that stay on the nodes are reported only once.
        """
        if folder is None and self._is_refused:
            return
        self._is_refused = True
        instead = (
            "the checkpoint is not saved"
            if folder is None
            else "the files of this node's ranks are written to the run directory instead"
        )
        message = f"checkpoint of step {step}: {refused}; {instead}"
        self.live.tell("warning", message, step=step)
