"""The machines and devices of a run."""

from typing import Literal

from nbtrain.config.fields import ConfigModel, PathText, PositiveBytes, PositiveSmallCount, SmallCount, Word


class ResourcesConfig(ConfigModel):
    """The machines and devices that a run takes."""

    device: Literal["cpu", "gpu"] = "gpu"
    """Kind of device that each rank computes on."""
    gpu_type: Word | None = None
    """Name in the device table, e.g. A100-40GB: gives the plan the GPU's memory and peak FLOP/s."""
    nodes: PositiveSmallCount = 1
    """Number of machines."""
    gpus_per_node: SmallCount = 1
    """GPUs on each machine, one rank each. Not read on device: cpu, whose ranks are spread evenly."""
    cpus_per_node: PositiveSmallCount | None = None
    """CPU cores asked for on each machine."""
    memory_per_node_bytes: PositiveBytes | None = None
    """Host memory asked for on each machine."""
    image: PathText | None = None
    """Container image, for backends that start containers."""
