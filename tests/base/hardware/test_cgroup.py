"""Control groups of versions 1 and 2, simulated as files in a folder: limits, usage and kill counts."""

import os

import pytest

from nbtrain.base.hardware import cgroup
from nbtrain.base.hardware.cgroup import (
    MemoryGroup,
    available_memory_bytes,
    cgroup_file,
    cpu_seconds,
    memory_groups,
    oom_kills,
    usable_cores,
)

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return a function that writes /proc/self/cgroup and the given files below the mount point."""

    def write(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    monkeypatch.setattr(cgroup, "MOUNT", tmp_path / "mount")
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(128)))
    return write


def test_limits_of_the_groups_above_count(groups, tmp_path, monkeypatch):
    """The limits of parent groups apply: a Slurm task's limit is "max", but its job and step have limits."""
    job, meminfo = "system.slice/slurmstepd.scope/job_7", tmp_path / "meminfo"
    monkeypatch.setattr(cgroup, "MEMINFO", meminfo)
    groups(
        f"0::/{job}/step_0/task_0\n",
        {
            f"{job}/step_0/task_0/memory.max": "max",
            f"{job}/step_0/task_0/cpu.max": "max 100000",
            f"{job}/step_0/memory.max": 8 * GIB,
            f"{job}/step_0/memory.current": 3 * GIB,
            f"{job}/step_0/memory.stat": f"anon 5\ninactive_file {GIB}",
            f"{job}/step_0/memory.peak": 4 * GIB,
            f"{job}/memory.max": 16 * GIB,
            f"{job}/memory.current": 12 * GIB,
            f"{job}/cpu.max": "350000 100000",
            f"{job}/cpu.stat": "usage_usec 7500000\nuser_usec 7000000",
            "system.slice/cpu.max": "900000 100000",
        },
    )
    assert memory_groups() == [
        MemoryGroup(8 * GIB, 2 * GIB, 4 * GIB),
        MemoryGroup(16 * GIB, 12 * GIB, None),
    ]
    assert (usable_cores(), cpu_seconds()) == (4, 7.5)
    # 16 GiB less 12 GiB in use is less than 8 GiB less 2 GiB, and than what the machine has free.
    for free_gib, available_gib in ((100, 4), (3, 3)):
        meminfo.write_text(f"MemTotal: {1 << 30} kB\nMemAvailable: {free_gib << 20} kB\n")
        assert available_memory_bytes() == available_gib * GIB


@pytest.mark.parametrize("own", ["/docker/0af3", "/", "/../../kubepods/pod7"])
def test_a_container_shows_its_group_at_the_root_of_the_mount(groups, own):
    """In a container, the process's group is the root of the mount, whatever path /proc reports."""
    groups(f"0::{own}\n", {"cpu.max": "400000 100000", "memory.max": 16 * GIB})
    assert usable_cores() == 4
    assert memory_groups() == [MemoryGroup(16 * GIB, None, None)]


def test_version_1_has_a_tree_for_each_controller(groups):
    """In version 1, each controller has a separate tree, and a limit near 2**63 means no limit."""
    groups(
        "5:memory:/job/task\n4:cpuacct:/job/task\n3:cpu:/job/task\n0::/\n",
        {
            "memory/job/task/memory.limit_in_bytes": 2**63 - 4096,
            "memory/job/memory.limit_in_bytes": GIB,
            "memory/job/memory.usage_in_bytes": GIB // 2,
            "memory/job/memory.max_usage_in_bytes": GIB,
            "memory/job/memory.stat": f"inactive_file 3\ntotal_inactive_file {GIB // 4}",
            "cpu/job/task/cpu.cfs_quota_us": -1,
            "cpu/job/task/cpu.cfs_period_us": 100000,
            "cpu/job/cpu.cfs_quota_us": 50000,
            "cpu/job/cpu.cfs_period_us": 100000,
            "cpuacct/job/task/cpuacct.usage": 1,
            "cpuacct/job/cpuacct.usage": 7500000000,
        },
    )
    assert memory_groups() == [MemoryGroup(GIB, GIB // 4, GIB)]
    assert (usable_cores(), cpu_seconds()) == (1, 7.5)


def test_without_groups_the_machine_is_all_there_is(groups):
    groups("0::/user.slice\n", {"user.slice/memory.max": "max", "user.slice/cpu.max": "max 100000"})
    assert (memory_groups(), usable_cores(), cpu_seconds(), oom_kills()) == ([], 128, None, None)
    groups("", {})
    assert (memory_groups(), usable_cores(), cgroup_file("cpu", "cpu.max", "")) == ([], 128, None)


@pytest.mark.parametrize(
    ("own", "file", "text", "kills"),
    [
        ("0::/a", "a/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0", 2),
        ("4:memory:/a", "memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1", 1),
    ],
)
def test_kills_are_counted_by_the_own_group(groups, own, file, text, kills):
    """Kills are counted in the process's own group; None (unknown) is distinct from 0."""
    groups(f"{own}\n", {file: text})
    assert oom_kills() == kills
