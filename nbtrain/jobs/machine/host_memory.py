"""Host memory as reported by the kernel: processes killed for lack of memory, the limit and the peak.

Two sources are evidence: the kernel's log, which names processes, and the count of a cgroup that contains
only this job. The machine's own count also includes other programs, so it is reported only as a possible
cause.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.hardware.cgroup import memory_groups, oom_kills, oom_kills_in

KERNEL_LOG = Path("/dev/kmsg")
# Name of the first pid namespace (PROC_PID_INIT_INO), whose process ids the kernel's log uses.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Largest size of a record in the log.
RECORD_BYTES = 8192
# Record of a killed process. Records with a priority of 8 or more come from programs, not from the kernel.
KILLED = re.compile(rb"^[0-7],(\d+),[^;]*;.*?\bKilled process (\d+) ")


@dataclass(frozen=True)
class HostMemory:
    """The kernel's memory counters at one moment; None for a counter that cannot be read."""

    oom_kills: int | None = None
    """Number of processes in this cgroup that the out-of-memory killer has killed."""
    machine_oom_kills: int | None = None
    """Number of processes that the out-of-memory killer has killed on the machine, in all containers."""
    limit_bytes: int | None = None
    """Lowest memory limit of this cgroup and its parents."""
    peak_bytes: int | None = None
    """Peak memory use of the cgroup with that limit since the cgroup was created."""
    killed: frozenset[tuple[int, int]] = frozenset()
    """Processes killed by the out-of-memory killer, from the kernel's log: (number of the record, pid)."""

    @classmethod
    def now(cls) -> "HostMemory":
        least = next(iter(memory_groups()), None)
        return cls(
            oom_kills(),
            oom_kills_in(Path("/proc/vmstat")),
            least.limit_bytes if least else None,
            least.peak_bytes if least else None,
            killed_processes(),
        )

    def since(self, before: "HostMemory") -> "HostMemory":
        """Return the kills since `before`, with the current limit and peak."""
        return HostMemory(
            _difference(self.oom_kills, before.oom_kills),
            _difference(self.machine_oom_kills, before.machine_oom_kills),
            self.limit_bytes,
            self.peak_bytes,
            self.killed - before.killed,
        )

    def evidence(self, pid: int | None = None) -> str:
        """Return the evidence that the out-of-memory killer killed the process `pid`; "" without evidence."""
        if pid is not None and self.killed:
            # If the log names only other processes, the cgroup's count is about these.
            named = any(killed == pid for _, killed in self.killed)
            return f"the kernel's log names process {pid}{self._used()}" if named else ""
        return f"the job's cgroup counts an out-of-memory kill{self._used()}" if self.oom_kills else ""

    @property
    def possibility(self) -> str:
        """Text about out-of-memory kills anywhere on the machine, one of which may explain a killed process.

        "" if there were no such kills, or if their number cannot be read.
        """
        if not self.machine_oom_kills:
            return ""
        killed = "1 process" if self.machine_oom_kills == 1 else f"{self.machine_oom_kills} processes"
        elsewhere = ", but none in the job's cgroup" if self.oom_kills == 0 else ""
        return f"it killed {killed} on the machine during the attempt{elsewhere}{self._used()}"

    @property
    def no_evidence(self) -> str:
        """Text to show for a killed process if both evidence() and possibility are ""."""
        if self.oom_kills == 0 or self.machine_oom_kills == 0:
            return f"the kernel counts no such kill{self._used()}"
        return "the kernel's counters are not readable"

    def _used(self) -> str:
        if self.limit_bytes is None or self.peak_bytes is None:
            return ""
        return f"; at most {self.peak_bytes / 2**30:.2f} of {self.limit_bytes / 2**30:.2f} GiB were used"


def killed_processes() -> frozenset[tuple[int, int]]:
    """Return the processes that the kernel's log reports as killed, as (number of the record, pid).

    The result is empty if the log cannot be read, or if its process ids are from another namespace, as in
    most containers.
    """
    found = set()
    with contextlib.suppress(OSError):
        if str(Path("/proc/self/ns/pid").readlink()) != FIRST_PID_NAMESPACE:
            return frozenset()
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            # Each read returns one record. At the end of the log, a read would block, which raises OSError.
            while record := _record(log):
                if entry := KILLED.match(record):
                    found.add((int(entry[1]), int(entry[2])))
        finally:
            os.close(log)
    return frozenset(found)


def _record(log: int) -> bytes:
    while True:
        try:
            return os.read(log, RECORD_BYTES)
        except BrokenPipeError:
            # The record was overwritten before it was read; the next record is available.
            continue


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
