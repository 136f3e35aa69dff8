"""A port to listen on: below those that outgoing connections take, and free."""

import socket

import pytest

from nbtrain.base import ports


def test_no_outgoing_connection_takes_it():
    """Linux gives those 32768 and more; another choice each time."""
    found = {ports.port_to_listen_on() for _ in range(20)}
    assert len(found) > 1 and all(15_000 <= port < 32_768 for port in found)


def test_a_port_in_use_is_passed_over(monkeypatch):
    """Of two ports the free one; none of one that is in use."""
    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, ports.port_to_listen_on()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "TRIES", 1)
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "LAST", port + 1)
        with pytest.raises(RuntimeError, match=r"1 ports between .* were tried, and all are in use"):
            ports.port_to_listen_on()
