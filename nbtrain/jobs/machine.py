"""Resources of this machine: cores, memory and GPUs, within the limits of its control groups."""

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbtrain.base.cgroup import memory_groups, text_of, usable_cores


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver shows it."""

    name: str
    memory_bytes: int | None
    uuid: str = ""
    """The driver's id of this GPU, such as GPU-3f...; "" if unknown."""


@dataclass(frozen=True)
class Machine:
    """This machine, limited to what a job may use."""

    host: str
    cores: int
    """Cores that this process may use, within its container's limit."""
    cpu: str
    cpu_flags: frozenset[str]
    memory_bytes: int
    """Host memory, within the container's limit."""
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]
    """GPUs that CUDA_VISIBLE_DEVICES leaves visible."""


def this_machine() -> Machine:
    """Read the machine's resources. Costs milliseconds, or one call of nvidia-smi if there is a GPU."""
    cpu, flags = _cpu()
    memory = psutil.virtual_memory()
    groups = memory_groups()
    total = min([memory.total, *(group.limit_bytes for group in groups)])
    left = [max(0, group.limit_bytes - (group.in_use_bytes or 0)) for group in groups]
    available = min([memory.available, *left])
    return Machine(socket.gethostname(), usable_cores(), cpu, flags, total, available, visible_gpus())


def lacking_cores(seconds: float = 0.5) -> float:
    """Return how many of this process's cores other processes keep busy, observed for some time."""
    allowed = os.sched_getaffinity(0)
    before = psutil.cpu_times(percpu=True)
    time.sleep(seconds)
    idle = 0.0
    for core, (first, last) in enumerate(zip(before, psutil.cpu_times(percpu=True), strict=True)):
        # User time includes guests already.
        kinds = [name for name in last._fields if not name.startswith("guest")]
        spent = {name: getattr(last, name) - getattr(first, name) for name in kinds}
        if core in allowed:
            idle += (spent["idle"] + spent.get("iowait", 0.0)) / max(sum(spent.values()), 1e-9)
    # A quota may leave this process fewer cores than the machine has.
    return max(0.0, usable_cores() - idle)


def visible_gpus(chosen: str | None = None) -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs that `chosen`, by default CUDA_VISIBLE_DEVICES, leaves visible."""
    gpus = driver_gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if chosen is None else chosen
    if chosen is None or not gpus:
        return gpus
    visible = []
    for entry in (part.strip() for part in chosen.split(",")):
        gpu = named_gpu(entry, gpus)
        if gpu is None:
            break  # CUDA's own rule: what follows an invalid entry is hidden
        visible.append(gpu)
    return tuple(visible)


def named_gpu(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID."""
    if not entry or entry == "-1":
        return None
    if entry.isdigit():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith("GPU-") and all(gpu.uuid for gpu in gpus):
        return next((gpu for gpu in gpus if gpu.uuid.startswith(entry)), None)
    return Gpu(entry, None, entry)  # a part of a GPU (MIG), chosen by the user who set the variable


def driver_gpus() -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs of this machine, in the driver's order."""
    folder = Path("/proc/driver/nvidia/gpus")
    present = len(list(folder.iterdir())) if folder.is_dir() else 0
    present = present or len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not present:
        return ()
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
            rows = [[part.strip() for part in line.rsplit(",", 2)] for line in answer.stdout.splitlines()]
            if answer.returncode == 0 and all(len(row) == 3 for row in rows):
                return tuple(
                    Gpu(name, int(mib) * 2**20 if mib.isdigit() else None, uuid) for name, mib, uuid in rows
                )
    return tuple(Gpu("NVIDIA GPU", None) for _ in range(present))


def _cpu() -> tuple[str, frozenset[str]]:
    text = text_of(Path("/proc/cpuinfo"))
    name = re.search(r"^model name\s*:\s*(.*)$", text, flags=re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.M)
    return name[1] if name else platform.machine(), frozenset(flags[1].split() if flags else ())


def memory_in_use_of_group() -> int | None:
    """Return bytes in use of the group with the lowest limit, without idle file pages; None without one."""
    least = next(iter(memory_groups()), None)
    if least is None or least.limit_bytes >= psutil.virtual_memory().total:
        return None
    return least.in_use_bytes
