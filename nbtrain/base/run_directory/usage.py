"""Resource usage of a job over time: the quantities, and how long each resolution is kept.

A sample is {subject: {figure: value}} of one node (a machine or a pod). Subjects:

    node        the whole machine or pod, with its network and disks
    replica     all processes of the job on that node, the launcher and the supervisor included
    rank <k>    one rank with its wrapper and its workers; not written if the node has a single rank, whose
                values are the replica's
    gpu <k>     one GPU, by the driver's number
"""

from dataclasses import dataclass

from nbtrain.base.text.table import rows


@dataclass(frozen=True)
class Figure:
    """One measured quantity."""

    name: str
    unit: str
    meaning: str

    @property
    def label(self) -> str:
        """The metric's name on screen, without its unit: "disk write"."""
        if self.name in LABELS:
            return LABELS[self.name]
        words = self.name.removesuffix("_per_second").removesuffix("_bytes").split("_")
        return " ".join("RDMA" if word == "rdma" else word for word in words)


LABELS = {
    "cpu_cores": "CPU",
    "gpu_fraction": "utilization",
    "gpu_memory_bytes": "memory",
    "temperature_celsius": "temperature",
    "power_watts": "power",
    "sm_clock_mhz": "SM clock",
    "tensor_fraction": "tensor core utilization",
}
"""Names on screen that cannot be derived from the metric's name. For a GPU, the label begins with the GPU's
number.
"""
_TABLE = """
cpu_cores                           | cores   | busy cores: 1.0 is one core at full load
memory_bytes                        | bytes   | of a replica or rank: resident memory, shared pages
    counted in each process; of a node: memory in use
disk_read_bytes_per_second          | bytes/s | read from disks, not from the page cache
disk_write_bytes_per_second         | bytes/s | written to disks
disk_reads_per_second               | 1/s     | read operations of the node's disks
disk_writes_per_second              | 1/s     | write operations of the node's disks
read_calls_per_second               | 1/s     | system calls that read, from disks, pipes and sockets
write_calls_per_second              | 1/s     | system calls that write
network_received_bytes_per_second   | bytes/s | of all interfaces except loopback
network_sent_bytes_per_second       | bytes/s | of all interfaces except loopback
rdma_received_bytes_per_second      | bytes/s | of InfiniBand and RoCE ports, past the network stack
rdma_sent_bytes_per_second          | bytes/s | of InfiniBand and RoCE ports, past the network stack
gpu_fraction                        | share   | share of time in which a kernel ran
gpu_memory_bytes                    | bytes   | memory in use, by all programs
temperature_celsius                 | °C      | of the GPU
power_watts                         | W       | drawn by the GPU
sm_clock_mhz                        | MHz     | clock of the streaming multiprocessors
tensor_fraction                     | share   | share of time in which tensor cores worked (NVML's GPM
    from Hopper on; before, DCGM)
"""
FIGURES = {name: Figure(name, unit, meaning) for name, unit, meaning in rows(_TABLE)}
"""{name: metric}. All values are 0 or more. A metric that cannot be measured is omitted."""

PROCESS_FIGURES = (
    *("cpu_cores", "memory_bytes", "disk_read_bytes_per_second", "disk_write_bytes_per_second"),
    *("read_calls_per_second", "write_calls_per_second"),
)


SAMPLE_SECONDS = 2.0
"""Seconds between two samples of a node."""
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Resolution:
    """Resolution of points up to a certain age.

    The points within one period are merged into their mean and maximum.
    """

    age_seconds: float
    period_seconds: float


RESOLUTIONS = (
    Resolution(_HOUR, SAMPLE_SECONDS),
    Resolution(_DAY, 60.0),
    Resolution(7 * _DAY, 600.0),
    Resolution(512 * _DAY, _HOUR),
)
"""Resolutions by age: samples for an hour, a point per minute for a day, per ten minutes for a week, and per
hour for 512 days. Each period is a whole multiple of the one before it. Older points are deleted.
"""


def rank_subject(rank: int) -> str:
    return f"rank {rank}"


def gpu_subject(index: int) -> str:
    return f"gpu {index}"


def number_of(subject: str) -> int | None:
    """Return the number in a subject: 3 for "rank 3" and "gpu 3". None for "node" and "replica"."""
    _, _, number = subject.partition(" ")
    return int(number) if number.isdigit() else None
