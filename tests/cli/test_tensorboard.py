"""`nbtrain tensorboard`: which runs it serves, and at which address."""

import socket
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.lab.server.tensorboard_door import Door
from tests.lab.widgets.fake_run import FakeJob


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Door]:
    """Record the servers that are started; each exits at once."""
    doors: list[Door] = []

    async def serve(self: Door, host: str, port: int, say) -> None:
        doors.append(self)
        say(port)

    monkeypatch.setattr(Door, "serve", serve)
    return doors


def test_every_run_or_one(workspace: Path, served: list[Door], capsys: pytest.CaptureFixture) -> None:
    """Without arguments all runs are served; a path selects one run, which is served from its directory."""
    assert main(["tensorboard"]) == 0
    assert capsys.readouterr().out == (
        "TensorBoard: http://127.0.0.1:6006/nbtrain/   (Ctrl-C ends it)\n"
        "From another machine, run `ssh -L 6006:127.0.0.1:6006 HOST`, then open the same address.\n"
    )
    assert served[0].root == workspace / "output"
    FakeJob(RunDir(workspace / "elsewhere" / "gpt"), steps=3).finish("CANCELLED", "only a test")
    assert main(["tensorboard", str(workspace / "elsewhere" / "gpt"), "--port=7000"]) == 0
    assert "http://127.0.0.1:7000/nbtrain/?run=gpt   " in capsys.readouterr().out
    assert served[1].root == workspace / "elsewhere"


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_cannot_be(workspace: Path, capsys: pytest.CaptureFixture, port: int) -> None:
    assert main(["tensorboard", f"--port={port}"]) == 2
    assert capsys.readouterr().err == (
        f"ConfigError: --port {port} must be between 0 and 65535; --port 0 selects a free port.\n"
    )


def test_a_port_that_is_taken_is_said(workspace: Path, capsys: pytest.CaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["tensorboard", f"--port={port}"]) == 2
    assert capsys.readouterr().err == (
        f"ConfigError: cannot listen on port {port} of 127.0.0.1 (Address already in use): another program "
        "may be using the port. Use a free port, or --port 0.\n"
    )
