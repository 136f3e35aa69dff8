"""/dev/shm, through which data workers pass batches: check before launch that it is large enough for a run.

A container has 64 MiB of it unless it is started with more, whatever its memory and disks.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.findings import Finding
from nbtrain.base.text.amounts import counted, size
from nbtrain.config.arithmetic.shared_memory import worker_shared_memory_bytes
from nbtrain.config.findings import shortage
from nbtrain.config.schema import RunConfig

SHARED_MEMORY = Path("/dev/shm")


def free_shared_memory(path: Path = SHARED_MEMORY) -> int:
    """Return the bytes that can be allocated; 0 if the folder is absent or may not be written."""
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return 0
    stat = os.statvfs(path)
    return 0 if stat.f_flag & os.ST_RDONLY else stat.f_bavail * stat.f_frsize


def too_little_here(config: RunConfig, host: str) -> Iterator[Finding]:
    """Yield a finding if this machine's /dev/shm does not hold the batches of the data workers."""
    yield from too_little(config, free_shared_memory(), host)


def too_little(config: RunConfig, free_bytes: int, host: str) -> Iterator[Finding]:
    """Yield a finding if the run's data workers need more shared memory than a machine has free."""
    needed, ranks = worker_shared_memory_bytes(config), config.ranks_per_node
    if free_bytes < needed:
        gib = needed // 2**30 + 1  # the next whole number, because other programs use some of it
        yield shortage(
            config,
            "data.num_workers",
            f"data.num_workers = {config.data.num_workers} for each of {counted(ranks, 'rank')} of a machine "
            f"needs at least {size(needed)} of shared memory, and {SHARED_MEMORY} of {host} has "
            f"{size(free_bytes)} free.",
            "Set data.num_workers=0, which needs none, or give the machine more: "
            f"`mount -o remount,size={gib}G {SHARED_MEMORY}`, `docker run --shm-size={gib}g`.",
            needed - free_bytes,
        )
