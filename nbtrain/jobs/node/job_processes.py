"""Measure the resource use of a job's processes on this machine, from two small /proc files per process.

Processes are found by the job's marker in their environment (machine/processes.py), so ranks, wrappers and
workers count wherever they are in the process tree. A process's rank is RANK in the same environment. proc(5)
defines the values.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from nbtrain.jobs.machine.processes import JOB_MARKER, NODE_MARKER

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Prefix of the environment entry that contains the number of a rank's node.
NODE_PREFIX = f"{NODE_MARKER}=".encode()
# Age in seconds up to which a process may still show its parent's environment, until it runs its own program.
YOUNG_SECONDS = 5.0
# Fields of /proc/<pid>/stat after the command name, counted from 0.
_UTIME, _STIME, _START, _RSS = 11, 12, 19, 21
IO_KEYS = ("read_bytes", "write_bytes", "syscr", "syscw")
"""Keys in /proc/<pid>/io that are read: bytes of disk I/O, and numbers of system calls."""


@dataclass
class Counters:
    """Resources that a group of processes has used since its start, and the memory that it uses now."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    io: dict[str, int] = field(default_factory=dict)
    """Sums for the keys in IO_KEYS, as {key: sum}; empty if the kernel does not show them."""
    num_processes: int = 0


@dataclass
class _Process:
    start_ticks: int
    group: int | None
    """Rank of the process; None for the launcher and other processes with the marker."""
    ours: bool
    cpu_seconds: float = 0.0
    io: dict[str, int] = field(default_factory=dict)

    def young(self, boot_seconds: float) -> bool:
        """Return whether the process is so young that it may still show its parent's environment."""
        return boot_seconds - self.start_ticks / TICKS_PER_SECOND < YOUNG_SECONDS


class JobProcesses:
    """The processes of one job on this machine.

    Keep the object between samples, because it caches which processes belong to the job.
    """

    def __init__(self, job_id: str, also: Iterable[int] = (), node: int | None = None):
        """Create a reader of the job's processes.

        `also` are pids of processes that count without a marker, such as the caller's own. If a job has
        several nodes on one machine, only the processes of `node` and processes without a node count.
        """
        self._marker = f"{JOB_MARKER}={job_id}".encode()
        self._node = None if node is None else f"{NODE_MARKER}={node}".encode()
        self._also = frozenset(also)
        self._known: dict[int, _Process] = {}
        self._total: dict[int | None, Counters] = {}

    def sample(self, boot_seconds: float) -> dict[int | None, Counters]:
        """Return {rank: counters}, with the key None for processes that do not belong to a rank.

        Memory and the number of processes are current values; the other counters include processes that have
        ended. `boot_seconds` is the current time since boot.
        """
        for counters in self._total.values():
            counters.memory_bytes = counters.num_processes = 0
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._known.keys() - there:
            del self._known[pid]
        for pid in there:
            known = self._known.get(pid)
            if known is None or known.ours or known.young(boot_seconds):
                self._measure(pid, boot_seconds)
        return self._total

    def _measure(self, pid: int, boot_seconds: float) -> None:
        try:
            stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:
            return
        start = int(stat[_START])
        known = self._known.get(pid)
        if known is None or known.start_ticks != start:
            known = self._known[pid] = _Process(start, *self._whose(pid))
        elif known.young(boot_seconds):
            known.group, known.ours = self._whose(pid)
        if not known.ours:
            return
        cpu_seconds = (int(stat[_UTIME]) + int(stat[_STIME])) / TICKS_PER_SECOND
        counters = self._total.setdefault(known.group, Counters())
        counters.num_processes += 1
        counters.memory_bytes += int(stat[_RSS]) * PAGE_BYTES
        counters.cpu_seconds += max(0.0, cpu_seconds - known.cpu_seconds)
        known.cpu_seconds = cpu_seconds
        io = _io(pid)
        for key, value in io.items():
            counters.io[key] = counters.io.get(key, 0) + max(0, value - known.io.get(key, 0))
        known.io = io or known.io

    def _whose(self, pid: int) -> tuple[int | None, bool]:
        """Return (rank of a process or None, whether the process belongs to the job)."""
        if pid in self._also:
            return None, True
        try:
            variables = _read(f"/proc/{pid}/environ").split(b"\0")
        except OSError:
            return None, False  # the process is gone, or belongs to another user
        if self._marker not in variables:
            return None, False
        nodes = [variable for variable in variables if variable.startswith(NODE_PREFIX)]
        if nodes and self._node is not None and self._node not in nodes:
            return None, False
        ranks = [variable[5:] for variable in variables if variable.startswith(b"RANK=")]
        return (int(ranks[0]) if ranks and ranks[0].isdigit() else None), True


def _io(pid: int) -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/io").decode().splitlines():
            key, _, value = line.partition(": ")
            if key in IO_KEYS:
                found[key] = int(value)
    return found


def _read(path: str) -> bytes:
    """Return the contents of a small file in /proc, in a third of the time that pathlib takes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = os.read(descriptor, 1 << 16)
        while more := os.read(descriptor, 1 << 16):
            content += more
        return content
    finally:
        os.close(descriptor)
