"""What the kernel counts of host memory: who was ended for want of it, how much there was and how much was used."""

import re
from dataclasses import dataclass
from pathlib import Path

from nbtrain.jobs.environment import cgroup_file, oom_kills


@dataclass(frozen=True)
class HostMemory:
    """The kernel's counters at one moment; None where it does not show one."""

    oom_kills: int | None = None
    """Processes of this cgroup that the out-of-memory killer has ended."""
    machine_oom_kills: int | None = None
    """Those of the whole machine, other containers' too."""
    limit_bytes: int | None = None
    """Of this cgroup."""
    peak_bytes: int | None = None
    """The most that this cgroup has used since it was made."""

    @classmethod
    def now(cls) -> "HostMemory":
        return cls(
            oom_kills(),
            _counter(Path("/proc/vmstat"), "oom_kill"),
            _number(cgroup_file("memory", "memory.max", "memory.limit_in_bytes")),
            _number(cgroup_file("memory", "memory.peak", "memory.max_usage_in_bytes")),
        )

    def since(self, before: "HostMemory") -> "HostMemory":
        """The kills since then; limit and peak as they are now."""
        return HostMemory(
            _difference(self.oom_kills, before.oom_kills),
            _difference(self.machine_oom_kills, before.machine_oom_kills),
            self.limit_bytes,
            self.peak_bytes,
        )

    @property
    def evidence(self) -> str:
        """Why a SIGKILL was the out-of-memory killer's; "" where nothing says so."""
        if self.oom_kills:
            return "counted by its cgroup" + self._used()
        if self.machine_oom_kills:
            times = "once" if self.machine_oom_kills == 1 else f"{self.machine_oom_kills} times"
            return f"the machine's out-of-memory killer acted {times} meanwhile{self._used()}"
        return ""

    @property
    def no_evidence(self) -> str:
        """What is known where nothing says so."""
        if self.oom_kills == 0 or self.machine_oom_kills == 0:
            return f"the kernel counts no such kill{self._used()}"
        return "the kernel's counters are not readable"

    def _used(self) -> str:
        if self.limit_bytes is None or self.peak_bytes is None:
            return ""
        return f"; at most {self.peak_bytes / 2**30:.2f} of {self.limit_bytes / 2**30:.2f} GiB were used"


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _counter(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), flags=re.M)
    except OSError:
        return None
    return int(found[1]) if found else None


def _number(path: Path | None) -> int | None:
    try:
        text = path.read_text().strip() if path else ""
    except OSError:
        return None
    # Version 1 of cgroups tells "no limit" as a number near 2**63.
    return int(text) if text.isdigit() and int(text) < 2**60 else None
