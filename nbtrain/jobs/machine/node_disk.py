"""The disk that checkpoint.local_dir names on a node: check before launch that it holds the checkpoints."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from nbtrain.base.files import is_read_only, nearest_existing
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.checkpoint_files import local_folder, local_run_folder
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import size
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig
from nbtrain.planner.budget.disk import local_bytes


@dataclass(frozen=True)
class NodeDisk:
    """State of the disk on which a node's checkpoints are to be."""

    folder: str
    """checkpoint.local_dir, or its nearest parent that exists."""
    is_writable: bool
    free_bytes: int
    own_bytes: int
    """Bytes of the run's own checkpoints there, which new ones replace."""


def node_disk(local_dir: str, node: int, host: str, run: RunDir) -> NodeDisk:
    """Look at this machine's disk for checkpoint.local_dir. A file in the folder's place is not writable."""
    there = nearest_existing(local_folder(local_dir, node, host))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or is_read_only(there):
        return NodeDisk(str(there), False, 0, 0)
    # The pattern "gpt-*" would match checkpoints of gpt-large, too.
    own = local_run_folder(local_dir, node, host, run)
    taken = sum(path.stat().st_size for path in own.glob("*/*") if path.is_file())
    return NodeDisk(str(there), True, shutil.disk_usage(there).free, taken)


def unfit_disk(config: RunConfig, disk: NodeDisk, host: str, needed_bytes: int) -> Iterator[Finding]:
    """Yield a finding if a node cannot write to checkpoint.local_dir, or has too little room there."""
    key = "checkpoint.local_dir"
    where = f"{key} = {config.checkpoint.local_dir}"
    if not disk.is_writable:
        yield mistake(
            config,
            key,
            f"{where}: {host} may not write to {disk.folder}.",
            "Create the folder on a local disk there and make it writable, or name another one.",
        )
    elif (room := disk.free_bytes + disk.own_bytes) < needed_bytes:
        held = _most_kept(config, room)
        fewer = f"set checkpoint.local_keep_last: {held}, " if held else ""
        yield shortage(
            config,
            key,
            f"{where}: {host} has {size(disk.free_bytes)} free on {disk.folder}, but its checkpoints need "
            f"{size(needed_bytes)}.",
            f"Free space there, {fewer}or name a folder on a larger disk.",
        )


def _most_kept(config: RunConfig, room: int) -> int:
    """Return the largest checkpoint.local_keep_last for which `room` bytes suffice; 0 if there is none."""
    one, two = (local_bytes(with_values(config, {"checkpoint.local_keep_last": most})) for most in (1, 2))
    return max(1 + (room - one) // (two - one), 0)
