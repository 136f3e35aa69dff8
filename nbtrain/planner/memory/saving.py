"""How a run writes its checkpoints: in the background, from a copy in host memory, or while training waits.

saving_of(config) -> Saving       for a plan
saving_here(config) -> Saving     for the record of an attempt that starts on this machine
                                  (jobs/supervisor/journal.py)
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
    """The way of saving and its reason, as a sentence without its full stop; "" if no checkpoint is saved."""


def saving_of(config: RunConfig, memory: MemoryEstimate | None = None) -> Saving:
    """Return how a run writes its checkpoints, and why.

    `memory` is the run's memory estimate. Without it, the memory is estimated here.
    """
    if config.mode != "full":
        return Saving(False, "")
    memory = memory or estimate_memory(config)
    is_asked, in_background = config.checkpoint.async_save, memory.saves_in_background
    way = BACKGROUND if in_background else WAITS
    if is_asked is not None:
        return Saving(in_background, f"{way}: checkpoint.async_save is {str(is_asked).lower()}")
    return Saving(in_background, f"{way}: {_reason(config, memory)}")


def saving_here(config: RunConfig) -> Saving:
    """Return how ranks that start now on this machine write checkpoints, and why.

    With backend local, the copy of the states must fit the memory of this machine, even if the run's
    resources.memory_per_node_bytes is larger.
    """
    said, here = config.resources.memory_per_node_bytes, usable_memory_bytes()
    if config.backend.kind == "local" and (said is None or said > here):
        config = with_values(config, {"resources.memory_per_node_bytes": here})
    return saving_of(config)


def _reason(config: RunConfig, memory: MemoryEstimate) -> str:
    lack = lack_for_copy(setup_of(config))
    if lack == "nvme":
        return "state on NVMe is never complete in host memory, so it cannot be copied"
    if lack == "unknown memory":
        return "the amount of host memory per machine is not known; set resources.memory_per_node_bytes"
    on_gpu = config.resources.device == "gpu"
    share = (memory.host_bytes if on_gpu else memory.device_bytes) or 0
    ranks = memory.ranks_per_node
    copy, room = amounts.size(ranks * memory.copy_bytes), amounts.size(ranks * share)
    if lack is None:
        return f"the {copy} copy fits into {room} of host memory"
    # The message names every number in the comparison: torch's rounding, the memory that must stay free, and
    # what else the run needs.
    most = amounts.size(PAGE_LOCKED_FACTOR * ranks * memory.copy_bytes)
    locked = f", which takes up to {most} when page-locked,"
    used = memory.total_host_bytes if on_gpu else memory.total_bytes
    beside = f", where the run also needs {amounts.size(ranks * used)}" if used else ""
    return (
        f"the {copy} copy{locked if on_gpu else ''} does not fit into {COPY_ROOM_FRACTION:.0%} of {room} of "
        f"host memory{beside}"
    )
