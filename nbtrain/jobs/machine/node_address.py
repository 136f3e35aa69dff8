"""This node's number, and the address at which other machines reach it."""

import os
import socket
from collections.abc import Mapping

import psutil

from nbtrain.base.errors import JobError
from nbtrain.base.process.ports import LOOPBACK

# Variables with the machine's number, set by launchers; the most reliable variable comes first.
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
    """Return this machine's number from the agent's environment. Raises JobError without a valid number."""
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
        f"none of the variables {', '.join(NUMBER_VARIABLES)} is set to this node's number, from 0 to "
        f"{nodes - 1}. Start the agents with srun, mpirun, DeepSpeed's launcher or an indexed Kubernetes "
        "job, or set NBTRAIN_NODE_RANK."
    )


def own_address(wanted_interface: str | None = None) -> tuple[str, str]:
    """Return (IPv4 address, interface) by which other machines reach this machine.

    The address of the host's own name is preferred if an interface has it, because a cluster's administrator
    chose it. A loopback address is only the last resort: Debian's /etc/hosts gives the host name 127.0.1.1,
    which no other machine can reach. With `wanted_interface`, only the address of that interface is returned.
    Raises JobError if `wanted_interface` does not exist or has no address.
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
            f"{socket.gethostname()} has no active network interface {wanted_interface} with an IPv4 "
            f"address; active interfaces: {known}. Set network_interface to an interface that every machine "
            "has, or to null."
        )
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    if named in found:
        return named, found[named]
    # Container bridges have the same address on every machine, so they cannot be used to reach others.
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
    """Return why another machine's name or address cannot be used here; "" if it can."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(address, None, socket.AF_INET)}
    except OSError as error:
        return f"{address} does not resolve on {socket.gethostname()}: {error}"
    if all(str(address).startswith("127.") for address in found):
        return f"{address} resolves to loopback on {socket.gethostname()}"
    return ""
