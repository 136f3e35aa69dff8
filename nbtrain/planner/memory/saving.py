"""How a run writes its checkpoints: in the background, from a copy in host memory, or while training waits.

saving_of(config) -> Saving       the plan
saving_here(config) -> Saving     the record of an attempt that starts (jobs/supervisor/journal.py)
"""

from dataclasses import dataclass

from nbtrain.base.hardware.cgroup import usable_memory_bytes
from nbtrain.base.text import amounts
from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory.estimate import (
    COPY_ROOM_FRACTION,
    PAGE_LOCKED_FACTOR,
    MemoryEstimate,
    estimate_memory,
    lack_for_copy,
)
from nbtrain.planner.setup.setup import setup_of

BACKGROUND = "checkpoints are written in the background"
WAITS = "training waits while checkpoints are written"


@dataclass(frozen=True, slots=True)
class Saving:
    """Whether a run writes its checkpoints in the background, and why."""

    in_background: bool
    words: str
    """A sentence without its full stop; "" for a run that writes no checkpoint."""


def saving_of(config: RunConfig, memory: MemoryEstimate | None = None) -> Saving:
    """Return how a run writes its checkpoints. `memory` is its estimate, if there is one already."""
    if config.mode != "full":
        return Saving(False, "")
    memory = memory or estimate_memory(config)
    is_asked, in_background = config.checkpoint.async_save, memory.saves_in_background
    way = BACKGROUND if in_background else WAITS
    if is_asked is not None:
        return Saving(in_background, f"{way}: checkpoint.async_save is {str(is_asked).lower()}")
    return Saving(in_background, f"{way}: {_reason(config, memory)}")


def saving_here(config: RunConfig) -> Saving:
    """Return how ranks that start now write checkpoints. On backend local, the copy must fit this machine,
    whatever memory the run says that its machine has.
    """
    said, here = config.resources.memory_per_node_bytes, usable_memory_bytes()
    if config.backend.kind == "local" and (said is None or said > here):
        config = with_values(config, {"resources.memory_per_node_bytes": here})
    return saving_of(config)


def _reason(config: RunConfig, memory: MemoryEstimate) -> str:
    lack = lack_for_copy(setup_of(config))
    if lack == "nvme":
        return "state on NVMe is never in host memory as a whole to be copied"
    if lack == "unknown memory":
        return "the host memory of a machine is not known; set resources.memory_per_node_bytes"
    on_gpu = config.resources.device == "gpu"
    share = (memory.host_bytes if on_gpu else memory.device_bytes) or 0
    ranks = memory.ranks_per_node
    copy, room = amounts.size(ranks * memory.copy_bytes), amounts.size(ranks * share)
    if lack is None:
        return f"the copy of {copy} fits into {room} of host memory"
    # The words of a refusal name everything that counts: the rounding, what is kept free, and the rest.
    locked = f", page-locked in up to {amounts.size(PAGE_LOCKED_FACTOR * ranks * memory.copy_bytes)},"
    used = memory.total_host_bytes if on_gpu else memory.total_bytes
    beside = f" next to {amounts.size(ranks * used)} that the run needs there" if used else ""
    return (
        f"the copy of {copy}{locked * on_gpu} does not fit into {COPY_ROOM_FRACTION:.0%} of {room} of host "
        f"memory{beside}"
    )
