"""The machines and devices of a run."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    ConfigModel,
    PathText,
    PositiveBytes,
    PositiveFraction,
    PositiveRate,
    PositiveSmallCount,
    SmallCount,
    Word,
)
from nbtrain.config.sections.markers import SbatchOption


class ResourcesConfig(ConfigModel):
    """Machines and devices of a run."""

    device: Literal["cpu", "gpu"] = "gpu"
    """Kind of device that each rank computes on."""
    gpu_type: Word | None = None
    """Name of the GPU in the device table, e.g. A100-40GB, from which the plan takes its memory and peak
    FLOP/s.
    """
    nodes: Annotated[PositiveSmallCount, SbatchOption(("--nodes", "-N"))] = 1
    """Number of machines."""
    gpus_per_node: SmallCount = 1
    """Number of GPUs on each machine; each GPU gets one rank. Not read on device: cpu, where ranks are
    distributed evenly.
    """
    network: Word | None = None
    """Name of the network between machines in the network table, e.g. efa-400, ib-8x400 or ethernet-25, from
    which the plan takes its bandwidth. null assumes the network of a usual machine with this type of GPU.
    """
    network_bytes_per_second: PositiveBytes | None = None
    """Bandwidth of the network between machines: bytes per second, one way, of all devices of a machine
    together. Use it for a network that is not in the table; `network` must then be null.
    """
    network_reached_fraction: PositiveFraction | None = None
    """Fraction of the network's bandwidth that collectives reach; null takes the network table's value:
    0.80, or 0.85 for EFA.
    """
    capacity: Literal["on-demand", "spot"] = "on-demand"
    """Kind of machines that the plan prices: on demand, or spot machines, which the provider may take away at
    any time. It orders nothing.
    """
    interruptions_per_day: PositiveRate | None = None
    """Interruptions of the run that the plan expects in a day, of any cause. null assumes the failures of a
    published run, by GPU hours.
    """
    spot_wait_minutes: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    """Minutes until new spot machines are available after a preemption. These minutes cost nothing."""
    cpus_per_node: Annotated[PositiveSmallCount | None, SbatchOption(("--cpus-per-task", "-c"))] = None
    """Number of CPU cores requested on each machine; null leaves it to the backend."""
    memory_per_node_bytes: Annotated[PositiveBytes | None, SbatchOption(("--mem",))] = None
    """Bytes of host memory requested on each machine; null leaves it to the backend."""
    image: PathText | None = None
    """Container image, for backends that start containers."""
