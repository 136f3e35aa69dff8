"""Measure a node's resource use while its ranks run, and write it to the job's resources/ folder.

    with Sampler(writer, job_id, ranks, config):     a thread that samples every two seconds
        ...                                          meanwhile, the process watches the ranks

The thread runs in the process that watches the ranks on this node: the supervisor with backend local, and
otherwise the node agent. It is started after the ranks and joined before other ranks are started, because a
process with several threads should not fork. An error in the thread is stored in `failure` and never ends a
job.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtrain.base.hardware import dcgm, nvml
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.records import host_name
from nbtrain.base.run_directory.usage import PROCESS_FIGURES, SAMPLE_SECONDS, gpu_subject, rank_subject
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine.device_needs import gpus_of_ranks
from nbtrain.jobs.node.job_processes import Counters, JobProcesses
from nbtrain.jobs.node.node_counters import node_counters, node_limits

# An attempt's first samples are taken at this interval in seconds, and there are this many of them, so that a
# run of a few seconds also has metrics.
EARLY_SECONDS, EARLY_LOOKS = 0.5, 20
# Seconds to wait for the thread. A driver that does not respond must not block the job.
JOIN_SECONDS = 5.0
# {counter of a node: metric that is its rate}
NODE_RATES = {
    "cpu_seconds": "cpu_cores",
    "network_received_bytes": "network_received_bytes_per_second",
    "network_sent_bytes": "network_sent_bytes_per_second",
    "rdma_received_bytes": "rdma_received_bytes_per_second",
    "rdma_sent_bytes": "rdma_sent_bytes_per_second",
    "disk_read_bytes": "disk_read_bytes_per_second",
    "disk_write_bytes": "disk_write_bytes_per_second",
    "disk_reads": "disk_reads_per_second",
    "disk_writes": "disk_writes_per_second",
}
IO_RATES = {
    "read_bytes": "disk_read_bytes_per_second",
    "write_bytes": "disk_write_bytes_per_second",
    "syscr": "read_calls_per_second",
    "syscw": "write_calls_per_second",
}
# {GPU metric: field of GpuUse in base/hardware/nvml.py}
GPU_FIGURES = {
    "gpu_fraction": "utilization_fraction",
    "gpu_memory_bytes": "memory_used_bytes",
    "temperature_celsius": "temperature_celsius",
    "power_watts": "power_watts",
    "sm_clock_mhz": "sm_clock_mhz",
}


class NodeMeter:
    """Meter of a node's resource use. Rates are averages since the previous sample."""

    def __init__(
        self,
        job_id: str,
        ranks: Iterable[int],
        gpus: Sequence[Gpu] = (),
        node: int | None = None,
    ):
        """Create a meter for this node's `ranks` and the `gpus` that they use."""
        self._ranks = list(ranks)
        self._processes = JobProcesses(job_id, also=[os.getpid()], node=node)
        self._before: dict[str, dict[str, float]] = {}
        self._looked_at: float | None = None
        self._gpus = _measured_gpus(gpus)
        self._tensor: nvml.TensorActivity | dcgm.TensorActivity = nvml.TensorActivity(self._gpus)
        if self._gpus and not self._tensor.supported:
            self._tensor = dcgm.TensorActivity(self._gpus)

    def sample(self) -> dict[str, dict[str, float | None]]:
        """Return the current metrics as {subject: {metric: value}}, with None for an unknown value.

        The subjects are "node", "replica" (all of the job's processes on this node), each rank if there are
        several, and each GPU. Every sample has the same subjects and metrics.
        """
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        elapsed = now - self._looked_at if self._looked_at is not None else None
        counters = self._processes.sample(now)
        node = node_counters()
        found: dict[str, dict[str, float | None]] = {"node": {}}
        found["node"] = {
            figure: self._rate("node", name, node[name], elapsed)
            for name, figure in NODE_RATES.items()
            if name in node
        }
        found["node"]["memory_bytes"] = node["memory_bytes"]
        found["replica"] = self._process_figures("replica", _sum(counters.values()), elapsed)
        if len(self._ranks) > 1:
            for rank in self._ranks:
                subject = rank_subject(rank)
                found[subject] = self._process_figures(subject, counters.get(rank), elapsed)
        self._looked_at = now
        return found | self._gpu_figures()

    def about(self, requests: Mapping[str, float]) -> dict[str, Any]:
        """Return the data that does not change: host, ranks, requests, limits, and GPUs with their memory."""
        gpus = {gpu.index: gpu for gpu in nvml.gpus()} if self._gpus else {}
        return {
            "host": host_name(),
            "ranks": self._ranks,
            "requests": dict(requests),
            "limits": node_limits(),
            "gpus": {
                gpu_subject(index): {"name": gpus[index].name, "memory_bytes": gpus[index].memory_total_bytes}
                for index in self._gpus
                if index in gpus
            },
        }

    def close(self) -> None:
        """End the helper program that measures tensor core activity, if it was started."""
        self._tensor.close()

    def _rate(self, subject: str, name: str, value: float, elapsed: float | None) -> float | None:
        """Return a counter's rate per second since the previous sample; None in the first sample."""
        before = self._before.setdefault(subject, {})
        last, before[name] = before.get(name), value
        return max(0.0, value - last) / elapsed if last is not None and elapsed else None

    def _process_figures(
        self, subject: str, counters: Counters | None, elapsed: float | None
    ) -> dict[str, float | None]:
        found: dict[str, float | None] = dict.fromkeys(PROCESS_FIGURES)
        if counters is None or not counters.num_processes:
            return found
        # Counters include the use before a process's first sample, so the first sample has no rate.
        found["cpu_cores"] = self._rate(subject, "cpu", counters.cpu_seconds, elapsed)
        found["memory_bytes"] = float(counters.memory_bytes)
        for key, figure in IO_RATES.items():
            if key in counters.io:
                found[figure] = self._rate(subject, key, counters.io[key], elapsed)
        return found

    def _gpu_figures(self) -> dict[str, dict[str, float | None]]:
        if not self._gpus:
            return {}
        tensor = self._tensor.sample()
        there = {gpu.index: gpu for gpu in nvml.gpus()}
        found = {}
        for index in self._gpus:
            gpu = there.get(index)
            figures: dict[str, float | None] = {
                figure: getattr(gpu, name, None) for figure, name in GPU_FIGURES.items()
            }
            if self._tensor.supported:
                figures["tensor_fraction"] = tensor.get(index)
            found[gpu_subject(index)] = figures
        return found


def _sum(all_counters: Iterable[Counters]) -> Counters:
    total = Counters()
    for counters in all_counters:
        total.cpu_seconds += counters.cpu_seconds
        total.memory_bytes += counters.memory_bytes
        total.num_processes += counters.num_processes
        for key, value in counters.io.items():
            total.io[key] = total.io.get(key, 0) + value
    return total


def _measured_gpus(used: Sequence[Gpu]) -> list[int]:
    """Return the driver's indices of the GPUs that the ranks use.

    MIG slices are not measured separately: if a rank uses a slice, the indices of all GPUs are returned.
    """
    if not used:
        return []
    measured, numbers = [gpu.index for gpu in nvml.gpus()], {gpu.index for gpu in used}
    return measured if None in numbers else [index for index in measured if index in numbers]


def requests_of(config: RunConfig) -> dict[str, float]:
    """Return {metric: amount that the run requests on each node}, for the metrics that it requests."""
    asked = {
        "cpu_cores": config.resources.cpus_per_node,
        "memory_bytes": config.resources.memory_per_node_bytes,
    }
    return {name: float(value) for name, value in asked.items() if value is not None}


class Sampler:
    """Thread that samples resource use while the ranks run; used as a context manager."""

    def __init__(self, writer: UsageWriter, job_id: str, ranks: Iterable[int], config: RunConfig):
        self._writer, self._job_id, self._ranks = writer, job_id, list(ranks)
        self._requests = requests_of(config)
        self._config = config
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage sampler", daemon=True)
        self.failure: str | None = None
        """The error that stopped the measuring, as "TYPE: MESSAGE"; None without an error."""

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            on_gpu = self._config.resources.device == "gpu"
            used = gpus_of_ranks(self._config)[: len(self._ranks)] if on_gpu else ()
            meter = NodeMeter(self._job_id, self._ranks, used, self._writer.node)
            with contextlib.closing(meter):
                self._watch(meter)
        except Exception as error:
            # Training must continue regardless of errors in the driver or the kernel.
            self.failure = f"{type(error).__name__}: {error}"

    def _watch(self, meter: NodeMeter) -> None:
        about = meter.about(self._requests)
        for number in itertools.count():
            sample = meter.sample()
            # A driver may have blocked this thread for so long that another thread is writing by now.
            if self._stop.is_set():
                return
            self._writer.add(sample, about)
            if self._stop.wait(EARLY_SECONDS if number < EARLY_LOOKS else SAMPLE_SECONDS):
                return
