"""A node's resource samples: processes of a job (found by their marker), the node, its GPUs, and a thread
that fails.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import GpuUse
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.node.job_processes import JobProcesses
from nbtrain.jobs.node.node_counters import rdma_counters
from nbtrain.jobs.node.sampler import NodeMeter, Sampler
from nbtrain.monitor.usage.usage import read_usage
from tests.waiting import wait_until

JOB = "20270101-000000-abcd"
WORK = """
import subprocess, sys, time
if sys.argv[1] == "parent":
    child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(9)"])
held = bytearray(b"x" * 60_000_000)
with open(sys.argv[2], "wb") as file:
    file.write(held)
started = time.process_time()
while time.process_time() - started < 0.5:
    pass
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen]]:
    """Start rank 0 with a data worker, rank 1, and processes of another job and another node.

    Each has used 0.5 s of CPU time and 60 MB.
    """
    other = "20270101-000000-ffff"
    asked = [(JOB, "0", "parent"), (JOB, "1", "alone"), (other, "0", "alone"), (JOB, "2", "alone")]
    found = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, kind, str(tmp_path / f"{number}.bin")],
            env={**os.environ, "NBTRAIN_JOB": job, "RANK": rank, "NBTRAIN_NODE": "1" if rank == "2" else "0"},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for number, (job, rank, kind) in enumerate(asked)
    ]
    yield found
    for process in found:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_processes_of_a_job_are_those_with_its_marker(ranks: list[subprocess.Popen]) -> None:
    """The processes of a job are found by its marker. A rank's usage includes its workers, and the CPU time
    of a process that has ended stays counted.
    """
    processes = JobProcesses(JOB, node=0)
    for process in ranks:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"

    def look() -> dict:
        return processes.sample(time.clock_gettime(time.CLOCK_BOOTTIME))

    found = look()
    assert set(found) == {0, 1}
    assert (found[0].num_processes, found[1].num_processes) == (2, 1)
    assert 0.5 <= found[1].cpu_seconds < 60
    assert 60e6 < found[1].memory_bytes < found[0].memory_bytes < 300e6
    assert found[1].io["syscw"] > 0
    os.killpg(ranks[1].pid, signal.SIGKILL)
    ranks[1].wait()
    before = found[1].cpu_seconds
    ended = look()
    assert (ended[1].num_processes, ended[1].memory_bytes) == (0, 0)
    assert ended[1].cpu_seconds == before


def test_a_look_has_the_same_columns_whatever_is_there() -> None:
    """All samples have the same columns. Rates are available from the second sample on, and a rank that does
    not exist has no values.
    """
    look = NodeMeter(JOB, [4, 5])
    first, second = look.sample(), look.sample()
    assert list(first) == ["node", "replica", "rank 4", "rank 5"]
    assert {name: list(figures) for name, figures in first.items()} == {
        name: list(figures) for name, figures in second.items()
    }
    assert first["replica"]["cpu_cores"] is None
    assert second["replica"]["cpu_cores"] >= 0
    assert set(second["rank 4"].values()) == {None}
    assert 1e6 < second["replica"]["memory_bytes"] < psutil.virtual_memory().total
    assert "rank 7" not in NodeMeter(JOB, [7]).sample(), "its figures are the replica's"
    about = look.about({"memory_bytes": 1e9})
    assert about["requests"] == {"memory_bytes": 1e9} and about["ranks"] == [4, 5]
    assert 1 <= about["limits"]["cpu_cores"] <= os.cpu_count()


def test_a_gpu_that_is_lost_later_keeps_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [GpuUse(index, "H100", 0.5, 1 << 30, 80 << 30, 61, 300.0, 1980) for index in range(4)]
    monkeypatch.setattr(nvml, "gpus", lambda: there)
    look = NodeMeter(JOB, [0, 1], nvml.visible_gpus("2,3"))
    assert [subject for subject in look.sample() if subject.startswith("gpu")] == ["gpu 2", "gpu 3"]
    del there[3]
    assert look.sample()["gpu 3"]["power_watts"] is None
    assert look.sample()["gpu 2"] == {
        "gpu_fraction": 0.5,
        "gpu_memory_bytes": 1 << 30,
        "temperature_celsius": 61,
        "power_watts": 300.0,
        "sm_clock_mhz": 1980,
    }
    assert look.about({})["gpus"] == {"gpu 2": {"name": "H100", "memory_bytes": 80 << 30}}


@pytest.mark.parametrize(
    ("settings", "held", "shell", "numbers"),
    [
        ({"backend.kind": "hosts", "backend.hosts.hosts": ["a"]}, None, None, [0, 1]),
        ({"backend.kind": "hosts", "backend.hosts.hosts": ["a"]}, None, "3", [0, 1]),
        ({"backend.env": {"CUDA_VISIBLE_DEVICES": "3,1,0"}}, None, "0", [1, 3]),
        ({"backend.env": {"CUDA_VISIBLE_DEVICES": "3,1,0"}}, "0,3", None, [0, 3]),
        ({}, None, "2,3", [2, 3]),
        ({"backend.env": {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/2/3,MIG-GPU-1/2/4"}}, None, None, [0, 1, 2, 3]),
        ({"resources.device": "cpu"}, None, None, []),
    ],
)
def test_gpus_of_other_jobs_are_not_measured(
    tmp_path: Path,
    tiny: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    held: str | None,
    shell: str | None,
    numbers: list[int],
) -> None:
    """Two ranks use the first two GPUs that they see: the GPUs that the job holds, else the ones in
    backend.env, else in the shell's variable, which is not read on hosts.

    All GPUs are measured if the ranks use parts of some.
    """
    there = [GpuUse(index, "H100", 0.5, 1 << 30, 80 << 30, 61, 300.0, 1980) for index in range(4)]
    monkeypatch.setattr(nvml, "gpus", lambda: there)
    for name, value in (("NBTRAIN_GPUS", held), ("CUDA_VISIBLE_DEVICES", shell)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    gpu = {"resources.device": "gpu", "resources.gpus_per_node": 2, "parallel.data_parallel_size": 2}
    looks: list[NodeMeter] = []
    monkeypatch.setattr(Sampler, "_watch", lambda self, meter: looks.append(meter))
    with Sampler(UsageWriter(tmp_path, 0), JOB, [0, 1], tiny(**{**gpu, **settings})) as sampler:
        sampler._thread.join(600)
    assert sampler.failure is None
    assert looks[0]._gpus == numbers


def test_ports_of_infiniband_count_words_of_four_bytes(tmp_path: Path) -> None:
    for port, words in (("mlx5_0/ports/1", 10), ("mlx5_1/ports/1", 5)):
        folder = tmp_path / port / "counters"
        folder.mkdir(parents=True)
        (folder / "port_rcv_data").write_text(f"{words}\n")
        (folder / "port_xmit_data").write_text("N/A\n")
    assert rdma_counters(tmp_path) == {"rdma_received_bytes": 60.0}
    assert rdma_counters(tmp_path / "none") == {}


def test_a_failure_is_kept_and_ends_nothing(
    tmp_path: Path, tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: NodeMeter) -> None:
        raise RuntimeError("the driver answers in tongues")

    monkeypatch.setattr(NodeMeter, "sample", broken)
    with Sampler(UsageWriter(tmp_path, 0), JOB, [0], tiny()) as sampler:
        sampler._thread.join(600)
    assert sampler.failure == "RuntimeError: the driver answers in tongues"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_job_leaves_its_resources_in_its_folder(
    fake: Callable[..., RunConfig], start: Callable[..., JobDir]
) -> None:
    """After a job with two ranks and a restart, its folder contains all samples as one history."""
    # Seconds of training in each attempt: on a busy machine a sample, due every half second, comes late.
    fault = {"rank": 1, "attempt": 0, "step": 30, "do": "exit", "code": 3}
    job = start(fake([fault], ranks=2, steps=60, step_seconds=0.1))
    wait_until(lambda: '"SUCCEEDED"' in job.job_json.read_text(), "the job's end")
    [node] = read_usage(job.resources)
    assert node.subjects() == ["node", "replica", "rank 0", "rank 1"]
    assert node.about["ranks"] == [0, 1]
    memory = node.points("rank 1", "memory_bytes")
    [first, second] = JobRecord.read(job.job_json).attempts
    assert memory.times[0] < first.ended_at < second.started_at < memory.times[-1]
    # A process that was sampled between its fork and its exec held a few hundred KiB.
    assert statistics.median(memory.means) > 5e6 and max(memory.maxima) < 2e9
    assert node.points("replica", "memory_bytes").newest > memory.newest
    assert memory.times == sorted(memory.times)
    assert node.peak("replica", "cpu_cores") > 0
