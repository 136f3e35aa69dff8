"""Bandwidth of networks between machines, measured by `nbtrain calibrate --network`.

The measurements are in network.json in the data directory:

    {"schema_version": 1, "networks": {"<place>": {"date", "nodes", "ranks", "figures": [{"collective",
    "bytes", "seconds", "spread"}, ...]}}}

A place (place_of) identifies the machines on which a run's ranks would start: the backend with the settings
that select its machines, the kind of device, and the ranks per machine. Plans of runs on several machines use
the entry of their place for OLDEST_DAYS, unless the run sets its network.
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
# Names of the two measured collectives.
GATHER, REDUCE = "all_gather", "all_reduce"


@dataclass(frozen=True)
class MeasuredNetwork:
    """Measured collectives over all ranks of a run on several machines, by array size."""

    place: str
    date: str
    """ISO date of the measurement."""
    nodes: int
    ranks: int
    figures: list[Figure]

    def bus_bandwidth(self, figure: Figure) -> float:
        """Return the bus bandwidth as in nccl-tests: the bytes per second over the slowest link of a ring."""
        factor = 2 if figure["collective"] == REDUCE else 1
        return factor * (self.ranks - 1) / self.ranks * figure["bytes"] / figure["seconds"]

    def of(self, collective: str) -> list[Figure]:
        """Return the measurements of one collective, smallest array first."""
        found = [figure for figure in self.figures if figure["collective"] == collective]
        return sorted(found, key=lambda figure: figure["bytes"])

    @property
    def bytes_per_second(self) -> float:
        """One-way bandwidth of a machine's network in bytes per second, from the largest arrays.

        In a gather, one ring passes through all ranks, so a machine's network cards carry its bus bandwidth.
        In an all-reduce, they carry the array at least once, even if NCCL uses a tree, which sends less than
        a ring (NVIDIA/nccl-tests issue 22). The larger of the two values is the bandwidth of the network.
        """
        reduces = self.of(REDUCE)[-1:]
        carried = [figure["bytes"] / figure["seconds"] for figure in reduces]
        return max([self.bus_bandwidth(self.of(GATHER)[-1]), *carried])

    @property
    def latency_seconds(self) -> float:
        """Latency of one hop of a ring in seconds, from the smallest gather."""
        return self.of(GATHER)[0]["seconds"] / max(self.ranks - 1, 1)


def network_path() -> Path:
    """Return the path of network.json in the data directory."""
    return data_home() / "network.json"


def place_of(config: RunConfig) -> str:
    """Return the key of a run's machines in network.json; runs with the same key use the same network."""
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
    """Return the measured networks by place, without damaged entries; {} if there is no readable file."""
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
    """Return an entry of network.json as a MeasuredNetwork; None if it is damaged."""
    try:
        network = MeasuredNetwork(place, **{key: entry[key] for key in KEYS})
        datetime.date.fromisoformat(network.date)
        figures = (network.bytes_per_second, network.latency_seconds)
        return network if all(0 < figure < math.inf for figure in figures) else None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def measured_network(config: RunConfig, today: datetime.date | None = None) -> MeasuredNetwork | None:
    """Return the measured network of a run's machines.

    The result is None if there is no recent measurement, and for a run on one machine.
    """
    if config.resources.nodes == 1 or config.backend.kind == "local":
        return None
    network = read_networks().get(place_of(config))
    if network is None:
        return None
    age = (today or datetime.date.today()) - datetime.date.fromisoformat(network.date)
    return network if age.days <= OLDEST_DAYS else None


def write_network(network: MeasuredNetwork) -> Path:
    """Write a measurement to network.json, where entries of other places are kept, and return its path."""
    path = network_path()
    entry = {key: getattr(network, key) for key in KEYS}
    add_entry(path, SCHEMA_VERSION, "networks", network.place, entry)
    return path


def source_of(network: MeasuredNetwork) -> str:
    """Return a phrase about where and when a network was measured."""
    return f"measured on {network.date} over {network.nodes} machines ({display(network_path())})"
