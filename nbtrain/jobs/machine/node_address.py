"""The number of this node, and the address at which other machines reach it."""

import os
import socket
from collections.abc import Mapping

import psutil

from nbtrain.base.errors import JobError
from nbtrain.base.process.ports import LOOPBACK

# Variables in which launchers number the machines, most reliable first.
NUMBER_VARIABLES = (
    "NBTRAIN_NODE_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PET_NODE_RANK",
    "JOB_COMPLETION_INDEX",
    "GROUP_RANK",
    "RANK",
)


def node_number(nodes: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return this machine's number, from the environment that the agent was started in. Raises JobError."""
    for name in NUMBER_VARIABLES:
        text = environment.get(name, "")
        if text.isdigit():
            number = int(text)
            if number >= nodes:
                raise JobError(
                    f"{name}={number}, but the job has {nodes} nodes, numbered from 0. Start one agent on "
                    "each node."
                )
            return number
    if nodes == 1:
        return 0
    raise JobError(
        f"none of {', '.join(NUMBER_VARIABLES)} says which of {nodes} nodes this is. Start the agents with "
        "srun, mpirun, DeepSpeed's launcher or an indexed Kubernetes job, or set NBTRAIN_NODE_RANK."
    )


def own_address(wanted_interface: str | None = None) -> tuple[str, str]:
    """Return (IPv4 address, its interface) by which others reach this machine; loopback as the last resort.

    The address of the host's own name comes first if an interface has it: a cluster's administrator chose it.
    Debian's /etc/hosts gives that name 127.0.1.1, which no other machine reaches, so loopback never counts.
    Raises JobError if `wanted_interface` is not there or has no address.
    """
    stats = psutil.net_if_stats()
    found = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        if stats[name].isup
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    }
    if wanted_interface is not None:
        for address, name in found.items():
            if name == wanted_interface:
                return address, name
        known = ", ".join(sorted({f"{name} ({address})" for address, name in found.items()})) or "none"
        raise JobError(
            f"{socket.gethostname()}: no network interface {wanted_interface} with an IPv4 address is up; "
            f"found: {known}. Set network_interface to one that every machine has, or to null."
        )
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    if named in found:
        return named, found[named]
    # Container bridges have the same address on every machine, so no other machine is reached through them.
    physical = {address: name for address, name in found.items() if not name.startswith(VIRTUAL)}
    for address, name in (physical or found).items():
        return address, name
    return LOOPBACK, "lo"


def is_this_machine(name: str) -> bool:
    """Return whether a host name or IPv4 address belongs to an interface of this machine."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)}
    except OSError:
        return False
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return any(address in own or address.startswith("127.") for address in found)


VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tun", "tap")


def resolves(address: str) -> str:
    """Return why the name or address of another machine cannot be used; "" if it can."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(address, None, socket.AF_INET)}
    except OSError as error:
        return f"{address} does not resolve on {socket.gethostname()}: {error}"
    if all(str(address).startswith("127.") for address in found):
        return f"{address} resolves to loopback on {socket.gethostname()}"
    return ""
