"""This machine's resources: cores, memory and GPUs, within the limits of its control groups."""

import os
import socket
import time
from dataclasses import dataclass

import psutil

from nbtrain.base.hardware.cgroup import (
    available_memory_bytes,
    memory_groups,
    usable_cores,
    usable_memory_bytes,
)
from nbtrain.base.hardware.cpu import cpu_model
from nbtrain.base.hardware.nvml import CUDA_DEVICES, Gpu, visible_gpus


@dataclass(frozen=True)
class Machine:
    """This machine, with only the resources that a job may use."""

    host: str
    cores: int
    """Number of cores that this process may use, within its container's limit."""
    cpu: str
    cpu_flags: frozenset[str]
    memory_bytes: int
    """Host memory in bytes, within the container's limit."""
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]
    """GPUs that CUDA_VISIBLE_DEVICES leaves visible; machine_of_run() keeps those that the run may use."""
    withheld_gpus: int = 0
    """Number of visible GPUs that devices.json withholds from the run."""


def this_machine() -> Machine:
    """Return this machine's resources; takes a few milliseconds."""
    cpu, flags = cpu_model()
    total, available = usable_memory_bytes(), available_memory_bytes()
    gpus = visible_gpus(os.environ.get(CUDA_DEVICES))
    return Machine(socket.gethostname(), usable_cores(), cpu, flags, total, available, gpus)


def lacking_cores(seconds: float = 0.5) -> float:
    """Return how many of this process's cores other processes keep busy, measured over `seconds`."""
    allowed = os.sched_getaffinity(0)
    before = psutil.cpu_times(percpu=True)
    time.sleep(seconds)
    idle = 0.0
    for core, (first, last) in enumerate(zip(before, psutil.cpu_times(percpu=True), strict=True)):
        # User time already includes guest time.
        kinds = [name for name in last._fields if not name.startswith("guest")]
        spent = {name: getattr(last, name) - getattr(first, name) for name in kinds}
        if core in allowed:
            idle += (spent["idle"] + spent.get("iowait", 0.0)) / max(sum(spent.values()), 1e-9)
    # A CPU quota may allow this process fewer cores than the machine has.
    return max(0.0, usable_cores() - idle)


def memory_in_use_of_group() -> int | None:
    """Return the memory in use in the cgroup with the lowest limit, in bytes; None if there is no limit.

    Idle file pages do not count.
    """
    least = next(iter(memory_groups()), None)
    if least is None or least.limit_bytes >= psutil.virtual_memory().total:
        return None
    return least.in_use_bytes
