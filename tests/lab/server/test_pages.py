"""The script of the user interface, and TensorBoard's page and tile."""

import pytest

from nbtrain.lab.ui.script import panel_script
from tests.lab.server.conftest import Server

pytestmark = pytest.mark.slow


def test_script_and_tensorboard_page(server: Server) -> None:
    """The server returns the same script that the widgets use, and a page that shows the proxied TensorBoard
    in a frame, below the server's base path.
    """
    answer = server.ask("static/panel.js")
    assert (answer.status, answer.content.decode()) == (200, panel_script())
    answer = server.ask("tensorboard/")
    assert answer.status == 200
    assert b'data-address="/user/x/tensorboard/"' in answer.content


def test_the_proxy_adds_no_tile_of_its_own(server: Server) -> None:
    """jupyter-server-proxy adds no launcher tile, because the JupyterLab extension has one for
    TensorBoard.
    """
    info = server.get("/server-proxy/servers-info")
    (tile,) = [entry for entry in info["server_processes"] if entry["name"] == "tensorboard"]
    assert tile["launcher_entry"]["enabled"] is False
