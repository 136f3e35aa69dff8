"""CPU time and memory of process trees, and GPUs as the driver reports them."""

import os
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.run_directory.records import ProcessIdentity
from nbtrain.monitor.usage.resources import ResourceSampler
from tests.waiting import wait_until


def busy_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.mark.slow
def test_a_tree_is_counted_with_its_children_and_others_are_not() -> None:
    """The usage of a process includes its child processes, but no processes outside its tree."""
    parent = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    try:
        sampler = ResourceSampler()
        identity = ProcessIdentity.of(parent.pid)
        wait_until(lambda: sampler.sample([identity], {0: identity})["job"]["num_processes"] == 2, "no child")
        [child] = psutil.Process(parent.pid).children()

        def sampled() -> tuple[dict[str, Any], list[float], list[float]]:
            """Return a sample, with the child's CPU seconds and the clock before and after it."""
            busy, times = [busy_seconds(child)], [time.monotonic()]
            use = sampler.sample([identity], {0: identity})
            return use, [*busy, busy_seconds(child)], [*times, time.monotonic()]

        _, busy, times = sampled()
        wait_until(lambda: busy_seconds(child) >= busy[1] + 0.5, "the child is not busy")
        use, busy_then, times_then = sampled()
        # The kernel counts in ticks of 0.01 s; the parent's own time is close to zero.
        least = (busy_then[0] - busy[1] - 0.05) / (times_then[1] - times[0])
        most = (busy_then[1] - busy[0] + 0.05) / (times_then[0] - times[1])
        assert least <= use["job"]["cpu_cores"] <= most
        assert use["ranks"]["0"]["num_processes"] == 2
        assert 5e6 < use["job"]["memory_bytes"] < 5e8
        assert use["machine"]["num_cores"] == usable_cores()
        assert use["machine"]["memory_used_bytes"] < use["machine"]["memory_total_bytes"]
        assert use["history"]["cpu_cores"][-1] == round(use["job"]["cpu_cores"], 3)
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()


def test_a_process_that_is_gone_is_not_counted() -> None:
    """A process that has ended is not counted, nor is another process that has reused its pid."""
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = ProcessIdentity.of(ended.pid)
    ended.wait()
    someone_else = ProcessIdentity(os.getpid(), start_ticks=1, boot_id="another boot")
    use = ResourceSampler().sample([someone_else], {0: identity} if identity else {})
    assert use["job"] is None
    assert use["ranks"] == {}


def test_gpus_are_those_of_the_driver_and_none_without_one() -> None:
    """Each GPU that the driver reports has its index and plausible values; without a driver, the list is
    empty.
    """
    found = nvml.gpus()
    assert [gpu.index for gpu in found] == list(range(len(found)))
    for gpu in found:
        assert gpu.memory_used_bytes is None or 0 <= gpu.memory_used_bytes <= gpu.memory_total_bytes
        assert gpu.utilization_fraction is None or 0 <= gpu.utilization_fraction <= 1
