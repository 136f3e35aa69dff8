"""Limits and usage of this process's control groups: CPU and host memory, for cgroup versions 1 and 2.

A group's limit applies to all groups below it, so the groups above this process's own group count too. Often,
a Slurm job or a user's slice has the limit, while the group of its processes below says "max".
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
# Version 1 reports "no limit" as a number near 2**63.
NO_LIMIT = 2**60


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that limits host memory. None stands for a value that the kernel does not report."""

    limit_bytes: int
    in_use_bytes: int | None
    """Bytes in use, without idle file pages, which the kernel frees on demand."""
    peak_bytes: int | None
    """Peak bytes in use since the group was created, including file pages."""


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    The process's CPU affinity and the CPU quotas of its groups limit the number. A fraction of a core is
    rounded up.
    """
    cores = len(os.sched_getaffinity(0))
    quota = min((quota for quota, _ in _quotas()), default=None)
    return max(1, min(cores, int(-(-quota // 1)))) if quota else cores


def group_files(controller: str, v2_name: str, v1_name: str) -> list[Path]:
    """Return the files `v2_name` (cgroup version 2) or `v1_name` (version 1) of this process's groups.

    The process's own group comes first, then the groups above it. Groups without the file are omitted.
    """
    for line in text_of(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots, name = (MOUNT, MOUNT / "unified"), v2_name
        elif controller in controllers.split(","):
            roots, name = (MOUNT / controllers, MOUNT / controller), v1_name
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        # Inside a container, the root of the mount is often the group itself, and `path` does not exist below
        # it.
        levels = [PurePosixPath()] if ".." in own.parts else [own, *own.parents]
        for root in roots:
            if found := [file for level in levels if (file := root / level / name).is_file()]:
                return found
    return []


def cgroup_file(controller: str, v2_name: str, v1_name: str) -> Path | None:
    """Return the first of group_files(). None if there is none.

    The file is in this process's own group if the controller is enabled there.
    """
    return next(iter(group_files(controller, v2_name, v1_name)), None)


def memory_groups() -> list[MemoryGroup]:
    """Return the memory groups of this process that have a limit, the smallest limit first."""
    groups = []
    for path in group_files("memory", "memory.max", "memory.limit_in_bytes"):
        limit = _number(path)
        if limit is None or limit >= NO_LIMIT:
            continue
        new = path.name == "memory.max"
        held = _number(path.with_name("memory.current" if new else "memory.usage_in_bytes"))
        peak = _number(path.with_name("memory.peak" if new else "memory.max_usage_in_bytes"))
        # Version 1 counts the group alone in the first of two lines, and includes the groups below it in
        # total_.
        idle = re.findall(
            r"^(?:total_)?inactive_file (\d+)$", text_of(path.with_name("memory.stat")), flags=re.M
        )
        in_use = None if held is None else max(0, held - int(idle[-1] if idle else 0))
        groups.append(MemoryGroup(limit, in_use, peak))
    return sorted(groups, key=lambda group: group.limit_bytes)


def usable_memory_bytes() -> int:
    """Return the bytes of memory that this process may use.

    This is the memory of the machine or the smallest limit of the process's groups, whichever is less.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(group.limit_bytes for group in memory_groups())])


def available_memory_bytes() -> int:
    """Return the bytes of memory that are free for this process.

    This is the free memory of the machine or the smallest remainder of the process's groups, whichever is
    less.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text_of(MEMINFO), flags=re.M)
    machine = 1024 * int(found[1]) if found else usable_memory_bytes()
    left = (max(0, group.limit_bytes - (group.in_use_bytes or 0)) for group in memory_groups())
    return min([machine, *left])


def cpu_seconds() -> float | None:
    """Return the CPU seconds used by the group with the smallest CPU quota. None if no group has a quota."""
    if not (quotas := _quotas()):
        return None
    _, path = min(quotas)
    if path.name == "cpu.max":
        found = re.search(r"^usage_usec (\d+)$", text_of(path.with_name("cpu.stat")), flags=re.M)
        return int(found[1]) / 1e6 if found else None
    # Version 1 may count in another hierarchy, which usually has the same groups.
    level = group_files("cpu", "", path.name).index(path)
    used = [_number(file) for file in group_files("cpuacct", "", "cpuacct.usage")]
    nanoseconds = used[min(level, len(used) - 1)] if used else None
    return None if nanoseconds is None else nanoseconds / 1e9


def oom_kills() -> int | None:
    """Return how many processes of this group the out-of-memory killer has ended. None if it is not known."""
    return oom_kills_in(cgroup_file("memory", "memory.events", "memory.oom_control"))


def oom_kills_in(path: Path | None) -> int | None:
    """Return the counter `oom_kill` in a kernel file. None if it cannot be read."""
    counter = re.search(r"^oom_kill (\d+)$", text_of(path), flags=re.M)
    return int(counter[1]) if counter else None


def text_of(path: Path | None) -> str:
    """Return the contents of a kernel file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""


def _quotas() -> list[tuple[float, Path]]:
    """Return (quota in cores, the file that holds it) for each group of this process with a CPU quota."""
    found = []
    for path in group_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        words = text_of(path).split()
        if path.name == "cpu.cfs_quota_us":
            words += text_of(path.with_name("cpu.cfs_period_us")).split()
        if len(words) == 2 and words[0] != "max" and int(words[0]) > 0:
            found.append((int(words[0]) / int(words[1]), path))
    return found


def _number(path: Path) -> int | None:
    """Return the number in a file; None for "max" or if it cannot be read."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None
