"""Choosing a free port below the range that the system uses for outgoing connections."""

import socket
import subprocess
import sys

import pytest

from nbtrain.base.process import ports


def test_no_outgoing_connection_takes_it():
    """The port is chosen at random below Linux's range for outgoing connections, which starts at 32768."""
    found = {ports.port_to_listen_on() for _ in range(20)}
    assert len(found) > 1 and all(15_000 <= port < 32_768 for port in found)


def test_a_port_in_use_is_passed_over(monkeypatch):
    """A port in use is skipped; if all ports are in use, the search fails."""
    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, ports.port_to_listen_on()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "TRIES", 1)
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "LAST", port + 1)
        with pytest.raises(RuntimeError, match=r"1 ports between .* were tried, but all are in use"):
            ports.port_to_listen_on()


def test_a_port_is_given_to_one_caller_at_a_time(monkeypatch):
    """A claimed port is given to no other caller until CLAIM_SECONDS have passed or the claiming process has
    ended.
    """
    port = ports.port_to_listen_on()
    only = f"ports.TRIES, ports.FIRST, ports.LAST = 1, {port}, {port + 1}; print(ports.port_to_listen_on())"
    command = [sys.executable, "-c", f"from nbtrain.base.process import ports; {only}"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "were tried, but all are in use" in refused.stderr
    monkeypatch.setattr(ports, "CLAIM_SECONDS", -1.0)
    assert ports.port_to_listen_on() != port
    for _ in range(2):
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{port}\n"
