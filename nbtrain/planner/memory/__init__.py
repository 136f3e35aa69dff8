"""Peak memory of one rank, by part: on its device, in host memory, on NVMe."""

from nbtrain.planner.memory.buffers import AVERAGE_FRAGMENTATION, SPARE_FRACTION, fragmented_bytes
from nbtrain.planner.memory.estimate import (
    HOST_PARTS,
    PARTS,
    MemoryEstimate,
    estimate,
    estimate_if_fits,
    estimate_memory,
    fit_rating,
    stage_parts,
    states_exceed_gpu,
)

__all__ = [
    "AVERAGE_FRAGMENTATION",
    "HOST_PARTS",
    "PARTS",
    "SPARE_FRACTION",
    "MemoryEstimate",
    "estimate",
    "estimate_if_fits",
    "estimate_memory",
    "fit_rating",
    "fragmented_bytes",
    "stage_parts",
    "states_exceed_gpu",
]
