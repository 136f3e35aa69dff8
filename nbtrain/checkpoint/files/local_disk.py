"""Checkpoints on this node's own disk (checkpoint.local_dir): files of its ranks, part records, pruning.

    <local_dir>/<run>-<run id>/
        global_step<N>/
            mp_rank_00_model_states.pt, ...   files written by this node's ranks
            parts/<rank>.json                 record of that rank's part, written last, by rename
        view/global_step<N>/                  links to the files that a resume reads, here or in model/

A part without its record does not count. This module knows only the parts on its own node; local_resume.py
collects the parts of all nodes. An OSError of this disk never ends a run, because the state can still be
written to model/.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves, local_run_folder
from nbtrain.base.run_directory.records import Record
from nbtrain.base.run_directory.rundir import CHECKPOINT_PATTERN, RunDir
from nbtrain.base.text import amounts
from nbtrain.checkpoint.files.copier import Pace
from nbtrain.checkpoint.files.writer import Described
from nbtrain.config.arithmetic.checkpoint_bytes import SPARE_BYTES, node_checkpoint_bytes
from nbtrain.config.schema import RunConfig
from nbtrain.parallel.agreement import gather_objects
from nbtrain.parallel.startup import World

PARTS = "parts"
VIEW = "view"


@dataclass
class Part(Record):
    """The content of parts/<rank>.json: the files that one rank has written for one checkpoint."""

    rank: int
    world_size: int
    step: int
    save_id: str
    job_id: str
    attempt: int
    coordinate: list[int]
    """The rank's coordinates in the layout, [pipeline, data, tensor]; rank 0's coordinates if is_whole."""
    files: Described
    is_whole: bool = False
    """Whether this rank's files alone form a complete checkpoint. One rank of each node writes such a
    checkpoint if the state is replicated.
    """
    manifest: dict[str, Any] = field(default_factory=dict)
    """Manifest of the complete checkpoint without its list of files; {} in the parts of ranks that do not
    write a manifest.
    """


class LocalDisk:
    """A run's folder on this node's disk, and the ranks that share it."""

    def __init__(self, config: RunConfig, run: RunDir, world: World, job_id: str, attempt: int):
        """Determine the ranks of each node. All ranks call it together; no folder is created."""
        assert config.checkpoint.local_dir is not None
        self.config, self.run, self.rank = config, run, world.rank
        self.job_id, self.attempt = job_id, attempt
        self.host = os.uname().nodename
        # Set by the launcher; a rank that is started manually is on node 0.
        self.node = int(os.environ.get("GROUP_RANK", "0"))
        self.root = local_run_folder(config.checkpoint.local_dir, self.node, self.host, run)
        # Two nodes on one machine count as separate disks if their folders differ, for example because
        # checkpoint.local_dir contains {node}.
        places: list[tuple[str, str, int]] = gather_objects((self.host, str(self.root), self.node))
        here = (self.host, str(self.root), self.node)
        self.ranks_here = [rank for rank, place in enumerate(places) if place == here]
        self.nodes = len(set(places))
        self.lead_of = [places.index(place) for place in places]
        """First rank of each rank's node, which acts for the node; indexed by rank."""
        self.hosts = list(dict.fromkeys(host for host, _, _ in places))

    @property
    def is_lead(self) -> bool:
        return self.lead_of[self.rank] == self.rank

    def checkpoint(self, step: int) -> Path:
        return self.root / f"global_step{step}"

    def pace(self) -> Pace:
        """Return a Pace for this rank: checkpoint.local_copy_bytes_per_second divided by the node's ranks."""
        limit = self.config.checkpoint.local_copy_bytes_per_second
        return Pace(limit / len(self.ranks_here) if limit else None)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint folders on this disk, complete or not, ascending."""
        with contextlib.suppress(OSError):
            found = (CHECKPOINT_PATTERN.fullmatch(entry.name) for entry in self.root.iterdir())
            return sorted(int(match[1]) for match in found if match)
        return []

    def make_room(self, step: int) -> str:
        """Remove an earlier attempt's files of this step, and check that this disk has room for a checkpoint.

        Returns a message that says why the disk cannot be used (an error, or too little free space); "" if it
        can be used. Called by the node's first rank.
        """
        folder = self.checkpoint(step)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            self.root.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            return f"{self.host}: {self.root}: {error.strerror or error}"
        needed = node_checkpoint_bytes(self.config, self.nodes) + SPARE_BYTES
        if free >= needed:
            return ""
        return (
            f"{self.host}: {self.root}: a node's part of a checkpoint needs {amounts.size(needed)}, but "
            f"only {amounts.size(free)} is free"
        )

    def write_part(self, part: Part) -> None:
        """Write the record that makes this rank's part valid. Raises OSError."""
        folder = self.checkpoint(part.step) / PARTS
        folder.mkdir(parents=True, exist_ok=True)
        part.write(folder / f"{part.rank}.json")

    def parts(self) -> Iterator[Part]:
        """Yield every part on this disk whose files have the recorded sizes. Unreadable parts are skipped."""
        for step in self.steps():
            folder = self.checkpoint(step)
            for path in sorted((folder / PARTS).glob("*.json")):
                with contextlib.suppress(OSError, RecordError):
                    part = Part.read(path)
                    if part is not None and all(
                        (folder / name).stat().st_size == entry["bytes"] for name, entry in part.files.items()
                    ):
                        yield part

    def prune(self, keep: Collection[int]) -> None:
        """Remove all checkpoints except the steps in `keep`. Called by the node's first rank."""
        for step in self.steps():
            if step not in keep:
                # Remove the records first, so that a partly removed part does not count.
                shutil.rmtree(self.checkpoint(step) / PARTS, ignore_errors=True)
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def clear(self) -> None:
        """Remove all files of the finished run from this disk. Called by the node's first rank."""
        shutil.rmtree(self.root, ignore_errors=True)

    def view(self, step: int, names: Collection[str], sound: Collection[str]) -> Path:
        """Create a folder with a symlink to each of a checkpoint's files, and return its path.

        Files in `sound` (those that are intact on this disk) are linked to this disk, all others to model/.
        Called by the node's first rank. Raises OSError.
        """
        shutil.rmtree(self.root / VIEW, ignore_errors=True)
        view, here = self.view_of(step), self.checkpoint(step)
        view.mkdir(parents=True)
        for name in names:
            (view / name).symlink_to((here if name in sound else self.run.checkpoint(step)) / name)
        return view

    def view_of(self, step: int) -> Path:
        return self.root / VIEW / f"global_step{step}"


def note_local(disk: LocalDisk, step: int, save_id: str, copied: bool) -> None:
    """Add a checkpoint that is on all nodes' disks to model/local.json; with `copied`, note that it is now
    also complete in model/. Only rank 0 calls it.
    """
    listed = LocalSaves.of(disk.run)
    known = next((save for save in listed.saves if save.save_id == save_id), None)
    if known is None:
        # When a copy to model/ ends, newer local saves may be in the list and stay there. A new save,
        # however, removes later steps from the list: they were saved before the run resumed from an older
        # step.
        newer = [save for save in listed.saves if copied and save.step > step]
        older = [save for save in listed.saves if save.step < step]
        known = LocalSave(step, save_id, disk.hosts, disk.job_id, disk.attempt, time.time())
        listed.saves = [*older, known, *newer]
    known.copied = known.copied or copied
    listed.keep(disk.run)


def note_resumed(run: RunDir, step: int, job_id: str, attempt: int) -> None:
    """Record that this attempt continues from `step`, and remove the saves of later steps from the list.

    Only rank 0 calls it.
    """
    if run.local_json.exists():
        saves = [save for save in LocalSaves.of(run).saves if save.step <= step]
        LocalSaves(saves, job_id, attempt).keep(run)
