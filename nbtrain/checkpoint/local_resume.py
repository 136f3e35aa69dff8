"""Resumes from a checkpoint on the nodes' own disks: chooses the step, and gives each rank its files.

    every node lists its parts -> the newest step that is complete across nodes -> SHA-256 of the files read
        same layout      files that a rank needs from another node are copied to model/; each rank reads a
                         folder of links, and the rest is copied in the background (Saver.complete)
        another layout   all files are copied to model/, where reshape.py reads them

A part counts on whichever node it is found, because nodes may have changed their numbers. If a part is
missing, the step is skipped with an event that names the part, and an older step or the newest complete one
in model/ is used.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import LocalSaves, newest_checkpoint_step, only_on_nodes
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.checkpoint.files.copier import copy_file, lower_priority
from nbtrain.checkpoint.files.local_disk import LocalDisk, Part, note_local, note_resumed
from nbtrain.checkpoint.files.writer import Described
from nbtrain.checkpoint.live import resume_report
from nbtrain.checkpoint.live.describe import layout
from nbtrain.checkpoint.load import choose
from nbtrain.checkpoint.save import make_room, publish_manifest
from nbtrain.checkpoint.weights.store import OPTIMIZER_FILE
from nbtrain.parallel.agreement import broadcast_object, gather_objects
from nbtrain.parallel.startup import World

logger = logging.getLogger(__name__)


@dataclass
class Start:
    """The point from which a run continues."""

    manifest: dict[str, Any] | None
    """Manifest of the checkpoint; None if the run starts from the beginning."""
    folder: Path | None = None
    """Folder from which this rank reads the checkpoint; None means the checkpoint's folder in model/."""
    source: str = ""
    """The chosen disk and the reason; "" without checkpoint.local_dir."""
    rest: "PendingCopies | None" = None
    """Files of the checkpoint that this rank must still copy to model/; None if all files are there."""


@dataclass
class PendingCopies:
    """The files that this rank must still copy to model/ after a resume from the nodes' own disks."""

    step: int
    save_id: str
    manifest: dict[str, Any]
    copy: Callable[[], Described]
    """Function that copies the files and returns their descriptions. Raises CheckpointError."""


@dataclass
class Candidate:
    """A save that a run may resume from: the parts of one checkpoint, collected from all nodes."""

    step: int
    save_id: str
    parts: dict[int, Part]
    """Parts of the checkpoint, by the rank that wrote them."""
    holders: dict[int, list[int]]
    """Holders of each part, by the rank that wrote it. A holder is a node that has the part now, given by its
    first rank; the writer's own node comes first.
    """

    def missing(self) -> str:
        """Describe the parts that no node has; "" if the checkpoint is complete."""
        if any(part.is_whole and self.holders[rank] for rank, part in self.parts.items()):
            return ""
        size = next(iter(self.parts.values())).world_size
        lost = [rank for rank in range(size) if not self.holders.get(rank)]
        if not lost:
            return ""
        named = ", ".join(map(str, lost[:8])) + (" and more" if len(lost) > 8 else "")
        return f"the files of {'rank' if len(lost) == 1 else 'ranks'} {named} are not on any node"

    def chosen(self) -> dict[int, Part]:
        """Return the parts that make up the checkpoint, by the rank that wrote them.

        If the part of one rank is a complete checkpoint, this part alone is returned, otherwise all parts.
        """
        for rank, part in sorted(self.parts.items()):
            if part.is_whole and self.holders[rank]:
                return {rank: part}
        return {rank: part for rank, part in sorted(self.parts.items()) if part.files or part.manifest}


def choose_start(
    run: RunDir,
    world: World,
    events: EventWriter | None,
    disk: LocalDisk | None,
    job_id: str,
    attempt: int,
    trains: bool = True,
) -> Start:
    """Choose the newest complete checkpoint in model/ or on the nodes' own disks. All ranks call it together.

    If `trains` is false (mode: eval), a checkpoint on the nodes is copied to model/ completely before it is
    read. Raises CheckpointError if there are checkpoints in model/ but none anywhere is complete.
    """
    # This must precede the choice, which may reject checkpoints that are still listed as complete now.
    wanted = only_on_nodes(run) if world.rank == 0 else None
    start = Start(choose(run, world, events)) if disk is None else _choose_start(run, world, events, disk)
    if world.rank == 0:
        step = start.manifest["step"] if start.manifest else 0
        if wanted is not None and step < wanted.step and events is not None:
            lost = amounts.counted(wanted.step - step, "step")
            goes_on = (
                f"the run continues from step {step} ({lost} lost)"
                if trains
                else f"step {step} is evaluated instead"
            )
            words = (
                f"step {wanted.step} was saved only on the disks of {', '.join(wanted.hosts)} and cannot be "
                f"used; {goes_on}"
            )
            logger.warning("%s", words)
            events.write("warning", words, step=step)
        if trains:
            # From now on, later checkpoints of other attempts do not count. An evaluation does not record
            # this, so that a resume may still use them.
            note_resumed(run, step, job_id, attempt)
    return start


def _choose_start(run: RunDir, world: World, events: EventWriter | None, disk: LocalDisk) -> Start:
    passed_over: list[str] = []

    def local(newer_than: int) -> Start | None:
        return _newest_local(disk, events, newer_than, passed_over)

    shared = broadcast_object((newest_checkpoint_step(run) or 0) if world.rank == 0 else 0)
    assert isinstance(shared, int)
    if start := local(shared):
        return start
    try:
        manifest = choose(run, world, events)
    except CheckpointError:
        # The checkpoints in model/ are incomplete; the nodes may have complete ones.
        if start := local(0):
            return start
        raise
    step = manifest["step"] if manifest else 0
    if step < shared and (start := local(step)):
        return start
    source = f"the run directory{''.join(f'; {words}' for words in dict.fromkeys(passed_over))}"
    return Start(manifest, source=source)


def _newest_local(
    disk: LocalDisk, events: EventWriter | None, newer_than: int, passed_over: list[str]
) -> Start | None:
    """Return the newest complete checkpoint on the nodes' disks if its step is after `newer_than`, otherwise
    None. Each checkpoint that cannot be used is reported in an event and added to `passed_over`.
    """
    found = _candidates(disk)
    if disk.rank == 0 and not found and (save := only_on_nodes(disk.run)) and save.step > newer_than:
        hosts, now = ", ".join(save.hosts), ", ".join(disk.hosts)
        words = f"it was saved on the disks of {hosts}, and the disks of {now} have no part of it"
        _pass_over(save.step, words, events, passed_over)
    for candidate in found:
        if candidate.step <= newer_than:
            continue
        void = broadcast_object(_why_void(disk.run, candidate) if disk.rank == 0 else "")
        reason = str(void) or candidate.missing() or _check_contents(disk, candidate)
        if not reason:
            _make_room(disk, candidate.step)
            try:
                start = _fetch(disk, candidate, newer_than)
            except CheckpointError as error:
                reason = str(error)
                if disk.rank == 0:
                    shutil.rmtree(disk.run.checkpoint(candidate.step), ignore_errors=True)
            else:
                if events is not None:
                    logger.info("continues from %s", start.source)
                    events.write("checkpoint", f"continues from {start.source}", step=candidate.step)
                return start
        _pass_over(candidate.step, reason, events, passed_over)
    return None


def _make_room(disk: LocalDisk, step: int) -> None:
    """Remove an incomplete folder of `step` from model/, and check that a checkpoint has room there.

    Raises CheckpointError on all ranks if there is no room.
    """
    problem = None
    if disk.rank == 0:
        problem = make_room(disk.run, disk.config, disk.run.checkpoint(step))
    if isinstance(agreed := broadcast_object(problem), CheckpointError):
        raise agreed


def _pass_over(step: int, reason: str, events: EventWriter | None, passed_over: list[str]) -> None:
    words = f"step {step} of the nodes' own disks is not used: {reason}"
    if words not in passed_over and events is not None:
        logger.warning("%s", words)
        events.write("warning", words, step=step)
    passed_over.append(words)


def _candidates(disk: LocalDisk) -> list[Candidate]:
    """Return every save that has a part on some node, newest step first. The result is equal on all ranks."""
    listed = gather_objects([asdict(part) for part in disk.parts()] if disk.is_lead else [])
    found: dict[tuple[int, str], Candidate] = {}
    for lead, parts in enumerate(listed):
        for part in (Part(**fields) for fields in parts):
            key = part.step, part.save_id
            candidate = found.setdefault(key, Candidate(*key, {}, {}))
            candidate.parts.setdefault(part.rank, part)
            candidate.holders.setdefault(part.rank, []).append(lead)
    for candidate in found.values():
        for rank, leads in candidate.holders.items():
            own = disk.lead_of[rank] if rank < len(disk.lead_of) else -1
            leads.sort(key=lambda lead: (lead != own, lead))
    return [found[key] for key in sorted(found, reverse=True)]


def _why_void(run: RunDir, candidate: Candidate) -> str:
    """Return why a save must not be used even if it is complete; "" if it may be used. Rank 0 only."""
    known = LocalSaves.of(run)
    listed = next((save for save in known.saves if save.save_id == candidate.save_id), None)
    part = next(iter(candidate.parts.values()))
    made = part.job_id, part.attempt
    if any(made <= (one.job_id, one.attempt) for one in Rollback.read_all(run.rollbacks_json)):
        return "the run was rolled back after this save"
    if listed is None and made < (known.job_id, known.attempt):
        return "the run has since continued from another checkpoint"
    if listed is not None and listed.copied and not run.checkpoint(candidate.step).exists():
        return f"its copy {run.checkpoint(candidate.step).name} was removed from the run directory"
    return ""


def _check_contents(disk: LocalDisk, candidate: Candidate) -> str:
    """Verify the files on all nodes, with all ranks sharing the work, and remove the holders of damaged files
    from `candidate`.

    Returns the reason, the same on all ranks, if the checkpoint is no longer complete; otherwise "".
    """
    damaged: list[tuple[int, int, str]] = []
    lead, folder = disk.lead_of[disk.rank], disk.checkpoint(candidate.step)
    here = [
        (rank, name, part.files[name]["sha256"])
        for rank, part in sorted(candidate.parts.items())
        if lead in candidate.holders[rank]
        for name in sorted(part.files)
    ]
    own = disk.ranks_here.index(disk.rank)
    for rank, name, expected in here[own :: len(disk.ranks_here)]:
        try:
            sound = files.sha256_of(folder / name) == expected
        except OSError:
            sound = False
        if not sound:
            damaged.append(
                (rank, lead, f"{disk.host}: {folder / name} does not have the SHA-256 in its record")
            )
    words = ""
    for rank, holder, said in (one for share in gather_objects(damaged) for one in share):
        words = words or said
        if holder in candidate.holders[rank]:
            candidate.holders[rank].remove(holder)
    return words if words and candidate.missing() else ""


def _fetch(disk: LocalDisk, candidate: Candidate, shared: int) -> Start:
    """Give every rank access to the files that it needs. Raises CheckpointError on all ranks if this fails on
    any rank.
    """
    config, run, step = disk.config, disk.run, candidate.step
    chosen = candidate.chosen()
    body = next(part.manifest for part in chosen.values() if part.manifest)
    described = {
        name: {**entry, "rank": part.coordinate}
        for part in chosen.values()
        for name, entry in part.files.items()
    }
    manifest = {**body, "files": dict(sorted(described.items()))}
    trains = config.mode == "full"
    same = (
        trains
        and not resume_report.layout_words(manifest["layout"], layout(config))
        and manifest["padded_vocab_size"] == config.padded_vocab_size
    )
    folder = run.checkpoint(step)
    folder.mkdir(parents=True, exist_ok=True)
    first, later = _shares(disk, candidate, chosen, same)
    _agree(lambda: _copy(disk, step, first, folder))
    nodes = amounts.counted(disk.nodes, "node")
    newer = (
        f"newer than step {shared} in the run directory" if shared else "the run directory has no checkpoint"
    )
    source = f"step {step} on the disks of {nodes} ({', '.join(disk.hosts)}), {newer}"
    if not same:
        if disk.rank == 0:
            publish_manifest(run, step, manifest)
            note_local(disk, step, candidate.save_id, copied=True)
        broadcast_object(None)
        why = "because the layout has changed" if trains else "for the evaluation"
        return Start(manifest, source=f"{source}; copied to the run directory {why}")
    lead = disk.lead_of[disk.rank]
    sound = {name for name in manifest["files"] if _has(candidate, lead, name)}
    _agree(lambda: disk.view(step, manifest["files"], sound) if disk.is_lead else None)

    def copy_rest() -> Described:
        lower_priority()
        _copy(disk, step, later, folder)
        return {}

    return Start(
        manifest, disk.view_of(step), source, PendingCopies(step, candidate.save_id, manifest, copy_rest)
    )


def _shares(
    disk: LocalDisk, candidate: Candidate, chosen: dict[int, Part], same: bool
) -> tuple[Described, Described]:
    """Return (files that this rank must copy before anything is read, files that it can copy later).

    `same` says whether the run resumes training with the checkpoint's layout.
    """
    first: Described = {}
    later: Described = {}
    leads = sorted(set(disk.lead_of))
    for rank, part in chosen.items():
        holder = candidate.holders[rank][0]
        copiers = [one for one, lead in enumerate(disk.lead_of) if lead == holder]
        if copiers[rank % len(copiers)] != disk.rank:
            continue
        for name, entry in part.files.items():
            # A file with optimizer state is read only by the rank that wrote it, all other files also by
            # other ranks.
            own = OPTIMIZER_FILE.search(name) is not None
            readers = [disk.lead_of[rank]] if own and same else leads
            at_hand = [one for one in leads if _has(candidate, one, name)]
            wave = later if same and set(readers) <= set(at_hand) else first
            wave[name] = entry
    return first, later


def _has(candidate: Candidate, lead: int, name: str) -> bool:
    """Return whether the node whose first rank is `lead` has a file of this name, whichever rank wrote it."""
    return any(
        lead in candidate.holders[rank] and name in part.files for rank, part in candidate.parts.items()
    )


def _copy(disk: LocalDisk, step: int, wanted: Described, folder: Path) -> None:
    pace = disk.pace()
    for name, entry in wanted.items():
        copy_file(disk.checkpoint(step) / name, folder / name, entry, pace)


def _agree(work: Callable[[], object]) -> None:
    """Call `work` on every rank. If it raises CheckpointError or OSError on any rank, raise CheckpointError
    on all ranks.
    """
    said = ""
    try:
        work()
    except (CheckpointError, OSError) as error:
        said = str(error)
    if errors := [one for one in gather_objects(said) if one]:
        raise CheckpointError(errors[0])
