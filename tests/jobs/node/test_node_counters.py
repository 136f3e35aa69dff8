"""In a container with limits, the container's usage is reported instead of the machine's, with both versions
of control groups.
"""

from pathlib import Path

import pytest

from nbtrain.base.hardware import cgroup
from nbtrain.jobs.machine import machine
from nbtrain.jobs.node.node_counters import node_counters

V2 = {
    "cpu.max": "200000 100000",
    "cpu.stat": "usage_usec 7500000\nuser_usec 7000000",
    "memory.max": str(8 << 30),
    "memory.current": str(3 << 30),
    "memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
}
V1 = {
    "cpu.cfs_quota_us": "200000",
    "cpu.cfs_period_us": "100000",
    "cpuacct.usage": "7500000000",
    "memory.limit_in_bytes": str(8 << 30),
    "memory.usage_in_bytes": str(3 << 30),
    "memory.stat": f"inactive_file 3\ntotal_inactive_file {1 << 30}\n",
}


def group(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the control group of a container, mounted so that it appears as the root."""
    own = "0::/\n" if "cpu.max" in files else "3:cpu:/\n2:cpuacct:/\n1:memory:/\n"
    (folder / "own").write_text(own)
    for line in own.splitlines():
        for name, text in files.items():
            (path := folder / line.split(":")[1] / name).parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
    monkeypatch.setattr(cgroup, "MOUNT", folder)
    monkeypatch.setattr(cgroup, "OWN", folder / "own")
    # The machine itself has more than any container of this test.
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: type("", (), {"total": 1 << 40})())


@pytest.mark.parametrize("files", [V2, V1], ids=["version 2", "version 1"])
def test_a_container_with_limits_is_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    """A container reports its CPU seconds, and its memory without page cache that can be freed."""
    group(tmp_path, files, monkeypatch)
    assert cgroup.cpu_seconds() == 7.5
    assert machine.memory_in_use_of_group() == 2 << 30
    counters = node_counters()
    assert (counters["cpu_seconds"], counters["memory_bytes"]) == (7.5, float(2 << 30))


def test_without_limits_the_machine_is_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path, V2 | {"cpu.max": "max 100000", "memory.max": "max"}, monkeypatch)
    assert cgroup.cpu_seconds() is None
    assert machine.memory_in_use_of_group() is None
