"""TensorBoard ends when it is idle; these tests run another program instead."""

import socket
import sys

import pytest

from nbtrain.lab.server import idle_tensorboard
from nbtrain.lab.server.idle_tensorboard import connections, serve

FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_connection_is_seen_in_the_kernels_table():
    """The kernel's table of connections lists a connection while it is open and after TensorBoard has closed
    it, but not before.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            answered, _ = server.accept()
            assert connections(port) == 1
            answered.close()
    assert connections(port) == 1


def test_it_ends_when_nobody_looks(capfd):
    """TensorBoard ends when the last connection was longer ago than the idle time; its exit code is passed
    on.
    """
    looks = iter([1, 1, 0])
    assert serve(FOREVER, 0.0, lambda: next(looks), every_seconds=0.01) == 0
    assert capfd.readouterr().out == "no page has been open for 0 h: ending TensorBoard\n"
    assert serve([sys.executable, "-c", "raise SystemExit(3)"], 3600, lambda: 0) == 3


def test_options_go_to_tensorboard(monkeypatch):
    """All options except the idle time are passed to TensorBoard; the port is used here too."""
    asked = {}
    monkeypatch.setattr(
        idle_tensorboard, "serve", lambda command, idle, looks: asked.update(command=command, idle=idle)
    )
    idle_tensorboard.main(["--idle-hours", "2", "--port=7000", "--logdir=s3://bucket/x", "--bind_all"])
    assert asked["command"][1:] == [
        *("-m", "tensorboard.main", "--port", "7000", "--logdir=s3://bucket/x", "--bind_all")
    ]
    assert asked["idle"] == 7200
    with pytest.raises(SystemExit):
        idle_tensorboard.main(["--idle-hours=soon"])
