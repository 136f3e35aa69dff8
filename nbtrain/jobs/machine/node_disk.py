"""Check before launch that a node's disk for checkpoint.local_dir has room for the checkpoints."""

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
    """State of the disk for a node's local checkpoints."""

    folder: str
    """Path of checkpoint.local_dir, or of its nearest existing parent."""
    is_writable: bool
    free_bytes: int
    own_bytes: int
    """Bytes of the run's own checkpoints on the disk, which new checkpoints replace."""


def node_disk(local_dir: str, node: int, host: str, run: RunDir) -> NodeDisk:
    """Return the state of this machine's disk for checkpoint.local_dir.

    If there is a file instead of the folder, the disk counts as not writable.
    """
    there = nearest_existing(local_folder(local_dir, node, host))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or is_read_only(there):
        return NodeDisk(str(there), False, 0, 0)
    # A pattern such as "gpt-*" would also match the checkpoints of the run gpt-large.
    own = local_run_folder(local_dir, node, host, run)
    taken = sum(path.stat().st_size for path in own.glob("*/*") if path.is_file())
    return NodeDisk(str(there), True, shutil.disk_usage(there).free, taken)


def unfit_disk(config: RunConfig, disk: NodeDisk, host: str, needed_bytes: int) -> Iterator[Finding]:
    """Yield a finding if a node cannot write to checkpoint.local_dir or has too little space there."""
    key = "checkpoint.local_dir"
    where = f"{key} = {config.checkpoint.local_dir}"
    if not disk.is_writable:
        yield mistake(
            config,
            key,
            f"{where}: {host} has no permission to write to {disk.folder}.",
            "Create the folder on a local disk there and make it writable, or choose another folder.",
        )
    elif (room := disk.free_bytes + disk.own_bytes) < needed_bytes:
        held = _most_kept(config, room)
        fewer = f"set checkpoint.local_keep_last: {held}, " if held else ""
        yield shortage(
            config,
            key,
            f"{where}: {host} has {size(disk.free_bytes)} free on {disk.folder}, but the run's checkpoints "
            f"there need {size(needed_bytes)}.",
            f"Free up space there, {fewer}or choose a folder on a larger disk.",
        )


def _most_kept(config: RunConfig, room: int) -> int:
    """Return the largest checkpoint.local_keep_last that fits into `room` bytes; 0 if none fits."""
    one, two = (local_bytes(with_values(config, {"checkpoint.local_keep_last": most})) for most in (1, 2))
    return max(1 + (room - one) // (two - one), 0)
