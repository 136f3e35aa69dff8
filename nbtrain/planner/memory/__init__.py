"""Peak memory of one rank, by part: on its device, in host memory and on NVMe."""

from nbtrain.planner.memory.buffers import AVERAGE_FRAGMENTATION, SPARE_FRACTION, fragmented_bytes
from nbtrain.planner.memory.estimate import (
    HOST_PARTS,
    PARTS,
    MemoryEstimate,
    estimate,
    estimate_if_fits,
    estimate_memory,
    fit_rating,
    least_memory,
    stage_parts,
    states_exceed_gpu,
)
from nbtrain.planner.memory.saving import Saving, saving_here, saving_of

__all__ = [
    "AVERAGE_FRAGMENTATION",
    "HOST_PARTS",
    "PARTS",
    "SPARE_FRACTION",
    "MemoryEstimate",
    "Saving",
    "estimate",
    "estimate_if_fits",
    "estimate_memory",
    "fit_rating",
    "fragmented_bytes",
    "least_memory",
    "saving_here",
    "saving_of",
    "stage_parts",
    "states_exceed_gpu",
]
