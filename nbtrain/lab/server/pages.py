"""What a browser loads beside figures: the script of the user interface, and TensorBoard's page."""

from html import escape
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from nbtrain.lab.server.tensorboard_proxy import PROXY_NAME
from nbtrain.lab.ui.script import panel_script

TENSORBOARD_PAGE = Path(__file__).with_name("tensorboard.html")


class ScriptHandler(JupyterHandler):
    """GET static/panel.js: the same module that the widget carries."""

    auth_resource = "nbtrain"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.finish(panel_script())


class TensorBoardPageHandler(JupyterHandler):
    """GET tensorboard/: TensorBoard in a frame that reloads its points and gets ?runFilter= and the like."""

    auth_resource = "nbtrain"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        page = TENSORBOARD_PAGE.read_text(encoding="utf-8")
        address = url_path_join(self.base_url, PROXY_NAME) + "/"
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page.replace("{{address}}", escape(address)))
