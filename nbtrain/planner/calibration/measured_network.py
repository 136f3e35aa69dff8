"""Measurements of networks between machines, by `nbtrain calibrate --network`, in network.json of the data
directory.

    {"schema_version": 1, "networks": {"<place>": {"date", "nodes", "ranks", "figures": [{"collective",
    "bytes", "seconds", "spread"}, ...]}}}

A place (place_of) is where a run's ranks would be: the backend with the settings that choose its machines,
the kind of device, and the ranks of a machine. Plans of runs on several machines use the entry of their place
for OLDEST_DAYS, unless the run says which network it has.
"""

import datetime
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.workspace import data_home, display
from nbtrain.config.schema import RunConfig
from nbtrain.planner.calibration.calibration import OLDEST_DAYS, Figure, add_entry

SCHEMA_VERSION = 1
KEYS = ("date", "nodes", "ranks", "figures")
# Bus bandwidth over algorithm bandwidth is (n - 1) / n for a gather (NVIDIA/nccl-tests doc/PERFORMANCE.md).
GATHER, REDUCE = "all_gather", "all_reduce"


@dataclass(frozen=True)
class MeasuredNetwork:
    """Collectives over all ranks of a run on several machines, by the bytes of the whole array."""

    place: str
    date: str
    """ISO date of the measurement."""
    nodes: int
    ranks: int
    figures: list[Figure]

    def bus_bandwidth(self, figure: Figure) -> float:
        """Return the bytes per second that crossed the slowest link of a ring, as nccl-tests counts them."""
        factor = 2 if figure["collective"] == REDUCE else 1
        return factor * (self.ranks - 1) / self.ranks * figure["bytes"] / figure["seconds"]

    def of(self, collective: str) -> list[Figure]:
        """Return the measurements of one collective, the smallest array first."""
        found = [figure for figure in self.figures if figure["collective"] == collective]
        return sorted(found, key=lambda figure: figure["bytes"])

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth of a machine's network, one way, by the largest arrays.

        In a gather one ring passes through all ranks, so that a machine's cards carry its bus bandwidth. In
        an all-reduce they carry the array at least once, also where NCCL chooses a tree, which sends less
        than a ring (NVIDIA/nccl-tests issue 22). The larger of both is what the network can carry.
        """
        reduces = self.of(REDUCE)[-1:]
        carried = [figure["bytes"] / figure["seconds"] for figure in reduces]
        return max([self.bus_bandwidth(self.of(GATHER)[-1]), *carried])

    @property
    def latency_seconds(self) -> float:
        """Seconds of one hop of a ring, from the smallest gather."""
        return self.of(GATHER)[0]["seconds"] / max(self.ranks - 1, 1)


def network_path() -> Path:
    """Return the path of network.json in the data directory."""
    return data_home() / "network.json"


def place_of(config: RunConfig) -> str:
    """Return the place where the run's ranks communicate: equal places have the same network."""
    backend, resources = config.backend, config.resources
    words: list[str] = [backend.kind]
    if backend.kind == "hosts":
        section = backend.hosts
        where = sorted(section.hosts) if section.hosts else [f"hostfile {section.hostfile}"]
        words += [", ".join(where), section.network_interface or ""]
    elif backend.kind == "slurm":
        slurm = backend.slurm
        words += [f"partition {slurm.partition or 'of the cluster'}", slurm.constraint or ""]
        words += [slurm.network_interface or ""]
    elif backend.kind == "kubernetes":
        kubernetes = backend.kubernetes
        words += [f"namespace {kubernetes.namespace or 'of the context'}"]
        words += [f"{key}={value}" for key, value in sorted(kubernetes.node_selector.items())]
    device = resources.gpu_type or "GPUs" if resources.device == "gpu" else "CPUs"
    words += [f"{config.ranks_per_node} x {device} a machine"]
    return "; ".join(word for word in words if word)


def read_networks() -> dict[str, MeasuredNetwork]:
    """Return the measured networks by place, without damaged entries; {} without a readable file."""
    try:
        content = files.read_json(network_path())
    except RecordError:
        return {}
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return {}
    entries = content.get("networks")
    found = {}
    for place, entry in entries.items() if isinstance(entries, dict) else ():
        if network := _network(place, entry):
            found[place] = network
    return found


def _network(place: str, entry: Any) -> MeasuredNetwork | None:
    """Return an entry of network.json; None if it is damaged."""
    try:
        network = MeasuredNetwork(place, **{key: entry[key] for key in KEYS})
        datetime.date.fromisoformat(network.date)
        figures = (network.bytes_per_second, network.latency_seconds)
        return network if all(0 < figure < math.inf for figure in figures) else None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def measured_network(config: RunConfig, today: datetime.date | None = None) -> MeasuredNetwork | None:
    """Return the network that was measured where this run is to run; None if it was not, or too long ago."""
    if config.resources.nodes == 1 or config.backend.kind == "local":
        return None
    network = read_networks().get(place_of(config))
    if network is None:
        return None
    age = (today or datetime.date.today()) - datetime.date.fromisoformat(network.date)
    return network if age.days <= OLDEST_DAYS else None


def write_network(network: MeasuredNetwork) -> Path:
    """Write the measurement of one place to network.json and return its path; other places stay."""
    path = network_path()
    entry = {key: getattr(network, key) for key in KEYS}
    add_entry(path, SCHEMA_VERSION, "networks", network.place, entry)
    return path


def source_of(network: MeasuredNetwork) -> str:
    """Return a phrase that says where and when a network was measured."""
    return f"measured on {network.date} over {network.nodes} machines ({display(network_path())})"
