"""Host memory as the kernel reports it: processes killed for lack of memory, the limit, the peak.

Two sources are evidence: the kernel's log, which names processes, and the count of a cgroup that holds only
this job. The machine's own count also rises for other programs: it is reported as a possibility and decides
nothing.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.hardware.cgroup import memory_groups, oom_kills, oom_kills_in

KERNEL_LOG = Path("/dev/kmsg")
# The kernel's log numbers processes as in the first pid namespace, which is this one (PROC_PID_INIT_INO).
FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Maximum size of one record of the log.
RECORD_BYTES = 8192
# Records with priorities from 8 on come from programs, not from the kernel.
KILLED = re.compile(rb"^[0-7],(\d+),[^;]*;.*?\bKilled process (\d+) ")


@dataclass(frozen=True)
class HostMemory:
    """The kernel's counters at a moment; None for a counter that the kernel does not show."""

    oom_kills: int | None = None
    """Number of processes of this cgroup that the out-of-memory killer has killed."""
    machine_oom_kills: int | None = None
    """Number of processes that the out-of-memory killer has killed on the whole machine, including other
    containers."""
    limit_bytes: int | None = None
    """The lowest limit of this cgroup and its parents."""
    peak_bytes: int | None = None
    """Peak use of the cgroup with that limit since it was created."""
    killed: frozenset[tuple[int, int]] = frozenset()
    """Entries of the kernel's log: (number of the entry, process that the out-of-memory killer killed)."""

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
        """Return the evidence that the out-of-memory killer sent the SIGKILL of process `pid`; "" if that is
        not certain.
        """
        if pid is not None and self.killed:
            # If the log names other processes, the cgroup's count is about them.
            named = any(killed == pid for _, killed in self.killed)
            return f"its log names process {pid}{self._used()}" if named else ""
        return "counted by its cgroup" + self._used() if self.oom_kills else ""

    @property
    def possibility(self) -> str:
        """Return a hint that memory may be the cause, for the case without evidence; "" if nothing suggests
        it.
        """
        if not self.machine_oom_kills:
            return ""
        times = "once" if self.machine_oom_kills == 1 else f"{self.machine_oom_kills} times"
        elsewhere = ", though its cgroup counts none" if self.oom_kills == 0 else ""
        return f"the machine's out-of-memory killer acted {times} meanwhile{elsewhere}{self._used()}"

    @property
    def no_evidence(self) -> str:
        """Clause for the case that there is neither evidence nor a hint."""
        if self.oom_kills == 0 or self.machine_oom_kills == 0:
            return f"the kernel counts no such kill{self._used()}"
        return "the kernel's counters are not readable"

    def _used(self) -> str:
        if self.limit_bytes is None or self.peak_bytes is None:
            return ""
        return f"; at most {self.peak_bytes / 2**30:.2f} of {self.limit_bytes / 2**30:.2f} GiB were used"


def killed_processes() -> frozenset[tuple[int, int]]:
    """Return processes that the kernel's log reports as killed: (number of the entry, process).

    Empty if the log cannot be read, or if it counts processes of another namespace, as in most containers.
    """
    found = set()
    with contextlib.suppress(OSError):
        if str(Path("/proc/self/ns/pid").readlink()) != FIRST_PID_NAMESPACE:
            return frozenset()
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            # Each read returns one record; at the end it would wait, which is an OSError here.
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
            # The record was overwritten before it was read: the next one is available.
            continue


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
