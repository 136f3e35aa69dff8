"""The script, TensorBoard's page and its tile."""

import pytest

from nbtrain.lab.ui.script import panel_script
from tests.lab.server.conftest import Server

pytestmark = pytest.mark.slow


def test_script_and_tensorboard_page(server: Server) -> None:
    """The script is the widget's own; the page frames the proxied TensorBoard below the prefix."""
    answer = server.ask("static/panel.js")
    assert (answer.status, answer.content.decode()) == (200, panel_script())
    answer = server.ask("tensorboard/")
    assert answer.status == 200
    assert b'data-address="/user/x/tensorboard/"' in answer.content


def test_launcher_has_the_tile(server: Server) -> None:
    """jupyter-server-proxy knows TensorBoard, opens our page in a JupyterLab tab, and shows the icon."""
    info = server.get("/server-proxy/servers-info")
    (tile,) = [entry for entry in info["server_processes"] if entry["name"] == "tensorboard"]
    assert tile["launcher_entry"]["title"] == "TensorBoard"
    assert tile["launcher_entry"]["path_info"] == "nbtrain/tensorboard/"
    assert tile["new_browser_tab"] is False
    icon = server.ask("/server-proxy/icon/tensorboard")
    assert icon.status == 200
    assert icon.content.startswith(b"<svg")
