"""How an agent finds the number and the address of its node."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from nbtrain.base.errors import JobError
from nbtrain.jobs.machine import node_address
from nbtrain.jobs.machine.node_address import NUMBER_VARIABLES, node_number, own_address, resolves


@pytest.mark.parametrize("name", NUMBER_VARIABLES)
def test_whoever_starts_the_agent_numbers_it(name: str) -> None:
    """The node number comes from the most reliable environment variable; a value that is not a number is
    ignored.
    """
    later = {variable: "0" for variable in NUMBER_VARIABLES[NUMBER_VARIABLES.index(name) + 1 :]}
    assert node_number(4, {name: "3", **later}) == 3
    assert node_number(1, {name: ""}) == 0


def test_a_number_that_cannot_be_is_refused() -> None:
    """A node number that is out of range is rejected, and the message names a fix."""
    with pytest.raises(
        JobError, match=r"^SLURM_PROCID=4, but the job has 4 nodes, numbered from 0\. Start one"
    ):
        node_number(4, {"SLURM_PROCID": "4"})
    with pytest.raises(
        JobError,
        match=r"is set to this node's number, from 0 to 1\. Start the agents with srun, mpirun",
    ):
        node_number(2, {"SLURM_PROCID": "-1"})


def machine(monkeypatch: pytest.MonkeyPatch, named: str = "127.0.1.1", **interfaces: Any) -> None:
    """Simulate a machine with these interfaces, {name: address}; None stands for an interface that is
    down.
    """
    found = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address or "10.9.9.9")]
        for name, address in interfaces.items()
    }
    stats = {name: SimpleNamespace(isup=bool(address)) for name, address in interfaces.items()}
    monkeypatch.setattr(node_address.psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(node_address.psutil, "net_if_stats", lambda: stats)
    monkeypatch.setattr(node_address.socket, "gethostbyname", lambda name: named)
    monkeypatch.setattr(node_address.socket, "gethostname", lambda: "node7")


def test_the_address_is_one_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent uses the address of the host name, then of a hardware interface, then of a bridge, and
    loopback as a last resort.
    """
    machine(monkeypatch, lo="127.0.0.1", docker0="172.17.0.1", eth0="10.0.0.7", ib0="10.1.0.7")
    assert own_address() == ("10.0.0.7", "eth0")
    assert own_address("ib0") == ("10.1.0.7", "ib0")
    machine(monkeypatch, named="10.1.0.7", lo="127.0.0.1", eth0="10.0.0.7", ib0="10.1.0.7")
    assert own_address() == ("10.1.0.7", "ib0")
    machine(monkeypatch, lo="127.0.0.1", docker0="172.17.0.1")
    assert own_address() == ("172.17.0.1", "docker0")
    machine(monkeypatch, lo="127.0.0.1", eth0=None)
    assert own_address() == ("127.0.0.1", "lo")
    with pytest.raises(
        JobError,
        match=r"^node7 has no active network interface ib0 with an IPv4 address; active interfaces: none\. "
        r"Set",
    ):
        own_address("ib0")


def test_an_address_must_resolve_and_not_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that does not resolve, or resolves only to loopback, is rejected, because ranks would time
    out.
    """
    assert resolves("10.0.0.7") == ""
    monkeypatch.setattr(node_address.socket, "gethostname", lambda: "node7")
    assert resolves("localhost") == "localhost resolves to loopback on node7"
    assert resolves("no such name").startswith("no such name does not resolve on node7: ")
