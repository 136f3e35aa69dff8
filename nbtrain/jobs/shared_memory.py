"""/dev/shm, through which data workers pass batches: the space that a run needs there, checked before launch.

A container has 64 MiB of it unless it is started with more, whatever its memory and disks.
"""

import os
from pathlib import Path

from nbtrain.base.amounts import counted, size
from nbtrain.config.arithmetic.shared_memory import worker_shared_memory_bytes
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine import Machine
from nbtrain.jobs.obstacle import Obstacles, shortage
from nbtrain.planner.findings import Cost, Finding, finding_of

SHARED_MEMORY = Path("/dev/shm")
FIX = (
    "Set data.num_workers=0, which needs none, or give the machine more: "
    "`mount -o remount,size=1G /dev/shm`, `docker run --shm-size=1g`."
)


def free_shared_memory(path: Path = SHARED_MEMORY) -> int:
    """Return the bytes that can be allocated; 0 if the folder is absent or may not be written."""
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return 0
    stat = os.statvfs(path)
    return 0 if stat.f_flag & os.ST_RDONLY else stat.f_bavail * stat.f_frsize


def too_little(config: RunConfig, free_bytes: int, host: str) -> str:
    """Describe what the run's data workers lack on a machine; "" if they have enough."""
    needed, ranks = worker_shared_memory_bytes(config), config.ranks_per_node
    if free_bytes >= needed:
        return ""
    return (
        f"data.num_workers = {config.data.num_workers} for each of {counted(ranks, 'rank')} of a machine "
        f"needs at least {size(needed)} of shared memory, and {SHARED_MEMORY} of {host} has "
        f"{size(free_bytes)} free."
    )


def shared_memory_suffices(config: RunConfig, machine: Machine) -> Obstacles:
    """Yield an obstacle if this machine's /dev/shm does not hold the batches of the data workers."""
    if said := too_little(config, free_shared_memory(), machine.host):
        yield shortage(f"{config.where('data.num_workers')}: {said}", FIX)


def shared_memory_findings(config: RunConfig, host: str) -> list[Finding]:
    """Return the same problem for `nbtrain check`, if the run uses this machine."""
    free = free_shared_memory()
    if config.backend.kind != "local" or not (said := too_little(config, free, host)):
        return []
    cost = Cost(fatal=True, num_bytes=worker_shared_memory_bytes(config) - free)
    return [finding_of(config, "shared_memory_suffices", "data.num_workers", said, FIX, cost)]
