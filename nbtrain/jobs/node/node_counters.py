"""Resource use of this machine or pod: CPU, network and disks as rising counters, and the memory in use."""

import contextlib
from pathlib import Path

import psutil

from nbtrain.base.hardware.cgroup import cpu_seconds
from nbtrain.jobs.machine.machine import memory_in_use_of_group, this_machine

INFINIBAND = Path("/sys/class/infiniband")
# Unit of InfiniBand ports' counters in bytes.
RDMA_WORD_BYTES = 4


def node_counters() -> dict[str, float]:
    """Return {name: value} for the readable counters: CPU seconds, bytes and operations since boot."""
    found: dict[str, float] = {"memory_bytes": float(memory_in_use())}
    cpu = cpu_seconds()
    if cpu is None:
        times = psutil.cpu_times()
        cpu = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    found["cpu_seconds"] = cpu
    with contextlib.suppress(OSError):
        interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
        outside = [one for name, one in interfaces.items() if name != "lo"]
        found["network_received_bytes"] = float(sum(interface.bytes_recv for interface in outside))
        found["network_sent_bytes"] = float(sum(interface.bytes_sent for interface in outside))
    with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
        if disks := psutil.disk_io_counters(nowrap=False):
            found["disk_read_bytes"], found["disk_write_bytes"] = disks.read_bytes, disks.write_bytes
            found["disk_reads"], found["disk_writes"] = disks.read_count, disks.write_count
    return found | rdma_counters()


def memory_in_use() -> int:
    """Return the bytes of memory in use, without reclaimable caches.

    Inside a pod or container with a memory limit, it is the memory of the pod or container.
    """
    held = memory_in_use_of_group()
    if held is not None:
        return held
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def rdma_counters(folder: Path = INFINIBAND) -> dict[str, float]:
    """Return the bytes received and sent through all InfiniBand and RoCE ports; {} without such ports."""
    found: dict[str, float] = {}
    for name, file in (("rdma_received_bytes", "port_rcv_data"), ("rdma_sent_bytes", "port_xmit_data")):
        for path in folder.glob(f"*/ports/*/counters/{file}"):
            with contextlib.suppress(OSError, ValueError):
                found[name] = found.get(name, 0.0) + int(path.read_text()) * RDMA_WORD_BYTES
    return found


def node_limits() -> dict[str, float]:
    """Return the upper limits of cpu_cores (cores) and memory_bytes (bytes) on this machine or pod."""
    machine = this_machine()
    return {"cpu_cores": float(machine.cores), "memory_bytes": float(machine.memory_bytes)}
