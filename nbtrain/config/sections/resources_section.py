"""The section `resources` of a run YAML: machines and devices."""

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
    """Type of device that each rank computes on."""
    gpu_type: Word | None = None
    """Name of the GPU in the device table, e.g. A100-40GB. The plan takes the GPU's memory and peak FLOP/s
    from this table. null names no GPU.
    """
    nodes: Annotated[PositiveSmallCount, SbatchOption(("--nodes", "-N"))] = 1
    """Number of machines."""
    gpus_per_node: SmallCount = 1
    """Number of GPUs on each machine. Each GPU gets one rank. Not used with device: cpu, where ranks are
    distributed evenly across the machines.
    """
    network: Word | None = None
    """Name of the network between machines in the network table, e.g. efa-400, ib-8x400 or ethernet-25. The
    plan takes its bandwidth from the table. null assumes the network of a typical machine with this type of
    GPU.
    """
    network_bytes_per_second: PositiveBytes | None = None
    """Bandwidth of the network between machines, in bytes per second: one way, and for all devices of a
    machine together. Set it for a network that is not in the table, and leave `network` null. null uses
    `network`.
    """
    network_reached_fraction: PositiveFraction | None = None
    """Fraction of the network's bandwidth that collectives reach. null uses the value in the network table:
    0.80, or 0.85 for EFA.
    """
    capacity: Literal["on-demand", "spot"] = "on-demand"
    """Kind of machines whose price the plan uses: on-demand machines, or spot machines, which the provider
    may take away at any time. This field does not order any machines.
    """
    interruptions_per_day: PositiveRate | None = None
    """Number of interruptions per day, of any cause, that the plan expects for the run. null assumes the
    failure rate of a published run, scaled by GPU hours.
    """
    spot_wait_minutes: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    """Minutes until new spot machines are available after a preemption. These minutes are not charged."""
    cpus_per_node: Annotated[PositiveSmallCount | None, SbatchOption(("--cpus-per-task", "-c"))] = None
    """Number of CPU cores to request on each machine. null leaves it to the backend."""
    memory_per_node_bytes: Annotated[PositiveBytes | None, SbatchOption(("--mem",))] = None
    """Host memory to request on each machine, in bytes. null leaves it to the backend."""
    image: PathText | None = None
    """Container image, for backends that start containers. backend.kubernetes.image takes precedence over it.
    null names no image.
    """
