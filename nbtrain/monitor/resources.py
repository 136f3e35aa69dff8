"""CPU and memory of a job's processes on this machine, by psutil; GPUs by NVML.

A job's processes are its supervisor, the ranks of its heartbeats, and everything below them. Each is compared
by pid, start time and boot, so that a pid given to another program is never counted.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from nbtrain.base import nvml
from nbtrain.base.records import ProcessIdentity

# Ten minutes at one sample a second; older ones are thinned out.
HISTORY_SAMPLES = 600


@dataclass(frozen=True)
class ProcessUse:
    """What one process tree uses now."""

    cpu_cores: float | None
    """Cores busy since the last sample (1.0 is one core); None at the first."""
    memory_bytes: int
    """Resident memory, summed over the tree."""
    num_processes: int


class ResourceSampler:
    """Samples one job. Rates are between two calls, so keep the object."""

    def __init__(self) -> None:
        self.history: deque[tuple[float, float, int]] = deque(maxlen=HISTORY_SAMPLES)
        """(time, cores busy, resident bytes) of every sample that has a rate."""
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self._sampled_at: float | None = None

    def sample(self, roots: Iterable[ProcessIdentity], ranks: dict[int, ProcessIdentity]) -> dict[str, Any]:
        """Use of the job (the trees of `roots`), of each rank and of the machine: bytes and cores."""
        now = time.monotonic()
        elapsed = now - self._sampled_at if self._sampled_at is not None else None
        cpu_before, self._cpu_seconds = self._cpu_seconds, {}
        self._sampled_at = now
        children: dict[int, list[int]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"], []).append(process.pid)
        by_rank = {rank: self._tree([who], children, cpu_before, elapsed) for rank, who in ranks.items()}
        job = self._tree([*roots, *ranks.values()], children, cpu_before, elapsed)
        if job is not None and job.cpu_cores is not None:
            self.history.append((time.time(), job.cpu_cores, job.memory_bytes))
        memory = psutil.virtual_memory()
        return {
            "job": asdict(job) if job else None,
            "ranks": {str(rank): asdict(use) for rank, use in by_rank.items() if use},
            "machine": {
                "num_cores": psutil.cpu_count() or 1,
                "memory_used_bytes": memory.total - memory.available,
                "memory_total_bytes": memory.total,
                "load_1_minute": psutil.getloadavg()[0],
            },
            "gpus": [asdict(gpu) for gpu in nvml.gpus()],
            "history": {
                "times": [entry[0] for entry in self.history],
                "cpu_cores": [round(entry[1], 3) for entry in self.history],
                "memory_bytes": [entry[2] for entry in self.history],
            },
        }

    def _tree(
        self,
        roots: Iterable[ProcessIdentity],
        children: dict[int, list[int]],
        cpu_before: dict[tuple[int, float], float],
        elapsed: float | None,
    ) -> ProcessUse | None:
        pids: set[int] = set()
        waiting = [root.pid for root in roots if root.alive()]
        while waiting:
            pid = waiting.pop()
            if pid not in pids:
                pids.add(pid)
                waiting.extend(children.get(pid, ()))
        memory_bytes = num_processes = 0
        busy_seconds = 0.0
        measured = False
        for pid in pids:
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    key = (pid, process.create_time())
                    memory_bytes += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                # It ended between the listing and this line, or belongs to another user.
                continue
            num_processes += 1
            self._cpu_seconds[key] = times.user + times.system
            if key in cpu_before:
                measured = True
                busy_seconds += self._cpu_seconds[key] - cpu_before[key]
        if not num_processes:
            return None
        cores = max(0.0, busy_seconds / elapsed) if measured and elapsed else None
        return ProcessUse(cores, memory_bytes, num_processes)
