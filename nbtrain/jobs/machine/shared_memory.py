"""Check before launch that /dev/shm, through which data workers pass batches, is large enough for a run.

A container has only 64 MiB of shared memory unless it is started with more, regardless of its memory.
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
    """Return the bytes of shared memory that can be allocated; 0 if the folder is missing or not writable."""
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return 0
    stat = os.statvfs(path)
    return 0 if stat.f_flag & os.ST_RDONLY else stat.f_bavail * stat.f_frsize


def too_little_here(config: RunConfig, host: str) -> Iterator[Finding]:
    """Yield a finding if this machine's /dev/shm is too small for the batches of the data workers."""
    yield from too_little(config, free_shared_memory(), host)


def too_little(config: RunConfig, free_bytes: int, host: str) -> Iterator[Finding]:
    """Yield a finding if the run's data workers need more shared memory than is free on a machine."""
    needed, ranks = worker_shared_memory_bytes(config), config.ranks_per_node
    if free_bytes < needed:
        gib = needed // 2**30 + 1  # the next whole number, because other programs use some of it
        yield shortage(
            config,
            "data.num_workers",
            f"data.num_workers = {config.data.num_workers} with {counted(ranks, 'rank')} per machine needs "
            f"at least {size(needed)} of shared memory, but {SHARED_MEMORY} on {host} has only "
            f"{size(free_bytes)} free.",
            "Set data.num_workers=0, which needs no shared memory, or give the machine more: run "
            f"`mount -o remount,size={gib}G {SHARED_MEMORY}`, or start the container with `docker run "
            f"--shm-size={gib}g`.",
            needed - free_bytes,
        )
