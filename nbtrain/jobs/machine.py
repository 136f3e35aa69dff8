"""What this machine has: cores, memory and GPUs, within the limits of its cgroup."""

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver shows it."""

    name: str
    memory_bytes: int | None
    uuid: str = ""
    """The driver's name of this one, such as GPU-3f...; "" if it does not say."""


@dataclass(frozen=True)
class Machine:
    """This machine, as far as a job may use it."""

    host: str
    cores: int
    """Cores this process may run on, a container's limit counted."""
    cpu: str
    cpu_flags: frozenset[str]
    memory_bytes: int
    """Host memory, a container's limit counted."""
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]
    """Those that CUDA_VISIBLE_DEVICES leaves visible."""


def this_machine() -> Machine:
    """Look at the machine now. Costs milliseconds, or one call of nvidia-smi if there is a GPU."""
    cpu, flags = _cpu()
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit = cgroup_bytes("memory.max", "memory.limit_in_bytes")
    if limit is not None and limit < total:
        used = cgroup_bytes("memory.current", "memory.usage_in_bytes") or 0
        total, available = limit, min(available, limit - used)
    return Machine(socket.gethostname(), usable_cores(), cpu, flags, total, available, visible_gpus())


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the CPU quota of its cgroup rounded up."""
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return max(1, min(cores, int(-(-quota // 1)))) if quota else cores


def visible_gpus(chosen: str | None = None) -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine that `chosen`, by default CUDA_VISIBLE_DEVICES, leaves visible."""
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
    """The GPU that an entry of CUDA_VISIBLE_DEVICES stands for: a number, or how a UUID begins."""
    if not entry or entry == "-1":
        return None
    if entry.isdigit():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith("GPU-") and all(gpu.uuid for gpu in gpus):
        return next((gpu for gpu in gpus if gpu.uuid.startswith(entry)), None)
    return Gpu(entry, None, entry)  # a part of a GPU (MIG), chosen by whoever set it


def driver_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine, in the driver's order."""
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
    text = _text(Path("/proc/cpuinfo"))
    name = re.search(r"^model name\s*:\s*(.*)$", text, flags=re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.M)
    return name[1] if name else platform.machine(), frozenset(flags[1].split() if flags else ())


def cgroup_file(controller: str, v2_name: str, v1_name: str) -> Path | None:
    """The file of this process's own cgroup that answers to v2_name (version 2) or v1_name (version 1)."""
    candidates = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            roots, name = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), v2_name
        elif controller in controllers.split(","):
            roots, name = (f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}"), v1_name
        else:
            continue
        # Inside a container the mount often shows the group itself at its root.
        candidates += [Path(root) / part / name for root in roots for part in (relative, "")]
    return next((path for path in candidates if path.is_file()), None)


def oom_kills() -> int | None:
    """Processes that the kernel's out-of-memory killer has ended in this cgroup, or None if unreadable."""
    return oom_kills_in(cgroup_file("memory", "memory.events", "memory.oom_control"))


def oom_kills_in(path: Path | None) -> int | None:
    """The counter `oom_kill` of a kernel's file, or None if unreadable."""
    counter = re.search(r"^oom_kill (\d+)$", _text(path), flags=re.M)
    return int(counter[1]) if counter else None


def cgroup_bytes(v2_name: str, v1_name: str) -> int | None:
    """The number in a file of this process's own memory cgroup; None if unreadable or without limit."""
    text = _text(cgroup_file("memory", v2_name, v1_name)).strip()
    # Version 1 of cgroups reports "no limit" as a number near 2**63.
    return int(text) if text.isdigit() and int(text) < 2**60 else None


def cgroup_cpu_seconds() -> float | None:
    """Seconds of CPU that this process's own cgroup has used; None without a limit of its own."""
    if not _cpu_quota():
        return None
    if found := re.search(r"^usage_usec (\d+)$", _text(cgroup_file("cpu", "cpu.stat", "")), flags=re.M):
        return int(found[1]) / 1e6
    text = _text(cgroup_file("cpuacct", "", "cpuacct.usage")).strip()
    return int(text) / 1e9 if text.isdigit() else None


def cgroup_memory_in_use() -> int | None:
    """Bytes of this process's own cgroup, without idle pages of files; None without a limit of its own."""
    limit = cgroup_bytes("memory.max", "memory.limit_in_bytes")
    held = cgroup_bytes("memory.current", "memory.usage_in_bytes")
    if held is None or limit is None or limit >= psutil.virtual_memory().total:
        return None
    text = _text(cgroup_file("memory", "memory.stat", "memory.stat"))
    # Version 1 counts the group alone in the first of the two lines, and with the groups below it in total_.
    idle = re.findall(r"^(?:total_)?inactive_file (\d+)$", text, flags=re.M)
    return max(0, held - int(idle[-1])) if idle else held


def _cpu_quota() -> float | None:
    path = cgroup_file("cpu", "cpu.max", "cpu.cfs_quota_us")
    words = _text(path).split()
    if path is not None and path.name == "cpu.cfs_quota_us":
        words += _text(path.parent / "cpu.cfs_period_us").split()
    if len(words) != 2 or words[0] == "max" or int(words[0]) <= 0:
        return None
    return int(words[0]) / int(words[1])


def _text(path: Path | None) -> str:
    """The contents of a kernel's file; "" if it cannot be read."""
    try:
        return path.read_text() if path else ""
    except OSError:
        return ""
