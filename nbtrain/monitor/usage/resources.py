"""Current resource use of a job on this machine: processes from /proc, GPUs from NVML.

A job's processes are its supervisor, the ranks named in its heartbeats, and their descendants. A process is
identified by pid, start time and boot, so a pid that another program reuses is never counted.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import psutil

from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.cgroup import available_memory_bytes, usable_cores, usable_memory_bytes
from nbtrain.base.run_directory.records import ProcessIdentity, boot_id

# Maximum number of samples that are kept: ten minutes at one sample per second.
HISTORY_SAMPLES = 600
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Enough for /proc/<pid>/stat, which has 52 numbers and a name of at most 64 characters.
STAT_BYTES = 4096
# Indices of fields after the command name in /proc/<pid>/stat.
_PARENT, _UTIME, _STIME, _START, _RSS = 1, 11, 12, 19, 21


@dataclass(frozen=True)
class ProcessUse:
    """Current resource use of process trees."""

    cpu_cores: float | None
    """Mean number of busy cores since the last sample; None for the first sample."""
    memory_bytes: int
    """Resident memory, summed over the processes."""
    num_processes: int


class ProcessRow(NamedTuple):
    """A process in the process table, from /proc/<pid>/stat (see proc(5))."""

    parent: int
    start_ticks: int
    cpu_seconds: float
    memory_bytes: int


class ProcessTable:
    """The processes of this machine, read at most once per `age_seconds`. Samplers can share one table."""

    def __init__(self, age_seconds: float = 0.0):
        self._age_seconds = age_seconds
        self._read_at = -math.inf
        self._rows: dict[int, ProcessRow] = {}
        self._children: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def read(self) -> tuple[float, dict[int, ProcessRow], dict[int, list[int]]]:
        """Return (monotonic time of reading, {pid: its row}, {pid: pids of its children})."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._age_seconds:
                rows = {}
                self._read_at = time.monotonic()
                for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
                    if (row := _row(pid)) is not None:
                        rows[pid] = row
                children: dict[int, list[int]] = {}
                for pid, row in rows.items():
                    children.setdefault(row.parent, []).append(pid)
                self._rows, self._children = rows, children
            return self._read_at, self._rows, self._children


def _row(pid: int) -> ProcessRow | None:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        # The command name is in parentheses and may contain any character, so split after the last
        # parenthesis.
        fields = os.read(descriptor, STAT_BYTES).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if fields[0] in b"ZX":
        return None
    ticks = int(fields[_UTIME]) + int(fields[_STIME])
    return ProcessRow(
        int(fields[_PARENT]), int(fields[_START]), ticks / TICKS_PER_SECOND, int(fields[_RSS]) * PAGE_BYTES
    )


class ResourceSampler:
    """Samples the resource use of one job. Keep the object, because rates are measured between two calls."""

    def __init__(self, processes: ProcessTable | None = None) -> None:
        self.history: deque[tuple[float, float, int]] = deque(maxlen=HISTORY_SAMPLES)
        """(time, busy cores, resident bytes) of the newest samples, except the first, which has no rate."""
        self._processes = processes or ProcessTable()
        self._cpu_seconds: dict[tuple[int, int], float] = {}
        self._sampled_at: float | None = None
        self._last: dict[str, Any] = {}

    def sample(self, roots: Iterable[ProcessIdentity], ranks: dict[int, ProcessIdentity]) -> dict[str, Any]:
        """Return the resource use of the job, of each rank, of the machine and of its GPUs.

        The job's processes are the trees of `roots` and of the ranks.
        """
        now, rows, children = self._processes.read()
        if now == self._sampled_at:
            return self._last
        elapsed = now - self._sampled_at if self._sampled_at is not None else None
        cpu_before, self._cpu_seconds = self._cpu_seconds, {}
        self._sampled_at = now

        def tree(identities: Iterable[ProcessIdentity]) -> ProcessUse | None:
            return self._tree(identities, rows, children, cpu_before, elapsed)

        by_rank = {rank: tree([who]) for rank, who in ranks.items()}
        job = tree([*roots, *ranks.values()])
        if job is not None and job.cpu_cores is not None:
            self.history.append((time.time(), job.cpu_cores, job.memory_bytes))
        memory_bytes = usable_memory_bytes()
        self._last = {
            "job": asdict(job) if job else None,
            "ranks": {str(rank): asdict(use) for rank, use in by_rank.items() if use},
            "machine": {
                "num_cores": usable_cores(),
                "memory_used_bytes": memory_bytes - available_memory_bytes(),
                "memory_total_bytes": memory_bytes,
                "load_1_minute": psutil.getloadavg()[0],
            },
            "gpus": [asdict(gpu) for gpu in nvml.gpus()],
            "history": {
                "times": [entry[0] for entry in self.history],
                "cpu_cores": [round(entry[1], 3) for entry in self.history],
                "memory_bytes": [entry[2] for entry in self.history],
            },
        }
        return self._last

    def _tree(
        self,
        roots: Iterable[ProcessIdentity],
        rows: dict[int, ProcessRow],
        children: dict[int, list[int]],
        cpu_before: dict[tuple[int, int], float],
        elapsed: float | None,
    ) -> ProcessUse | None:
        pids: set[int] = set()
        waiting = [
            root.pid
            for root in roots
            if root.pid in rows
            and rows[root.pid].start_ticks == root.start_ticks
            and root.boot_id == boot_id()
        ]
        while waiting:
            pid = waiting.pop()
            if pid not in pids:
                pids.add(pid)
                waiting.extend(children.get(pid, ()))
        memory_bytes = 0
        busy_seconds = 0.0
        measured = False
        for pid in pids:
            row = rows[pid]
            key = (pid, row.start_ticks)
            memory_bytes += row.memory_bytes
            self._cpu_seconds[key] = row.cpu_seconds
            if key in cpu_before:
                measured = True
                busy_seconds += row.cpu_seconds - cpu_before[key]
        if not pids:
            return None
        cores = max(0.0, busy_seconds / elapsed) if measured and elapsed else None
        return ProcessUse(cores, memory_bytes, len(pids))
