"""Files that a browser loads: the scripts of the user interface, and TensorBoard's page."""

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from nbtrain.lab.server.tensorboard_proxy import PROXY_NAME, tensorboard_page
from nbtrain.lab.ui.script import script

# {script name: the main module in lab/ui}
SCRIPTS = {"panel": "run/panel", "form": "form/form_widget", "runs": "runs/runs_widget"}


class ScriptHandler(JupyterHandler):
    """GET static/panel.js, static/form.js, static/runs.js: the same module that the widget includes."""

    auth_resource = "nbtrain"

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.finish(script(SCRIPTS[name]))


class TensorBoardPageHandler(JupyterHandler):
    """GET tensorboard/: a page with TensorBoard in a frame. It loads new points and passes ?runFilter= and
    similar options on to TensorBoard.
    """

    auth_resource = "nbtrain"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(tensorboard_page(url_path_join(self.base_url, PROXY_NAME) + "/"))
