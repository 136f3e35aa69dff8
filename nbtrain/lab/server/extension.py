"""Puts nbtrain's routes into a Jupyter Server. nbtrain.json, installed with the package, switches it on.

GET  nbtrain/runs                           every run under the output root, newest first
GET  nbtrain/run/<name>                     RunView.snapshot()
GET  nbtrain/run/<name>/log?rank=&offset=   a piece of a rank's log, or of "supervisor"
POST nbtrain/run/<name>/stop                save a checkpoint and end the newest job
GET  nbtrain/static/panel.js                the panel's script, for pages without a kernel
GET  nbtrain/tensorboard/                   a page that keeps TensorBoard live
"""

from typing import Any

from jupyter_server.utils import url_path_join

from nbtrain.base.workspace import output_root
from nbtrain.lab.server.handlers import (
    LogHandler,
    RunHandler,
    RunsHandler,
    ScriptHandler,
    StopHandler,
    TensorBoardPageHandler,
)
from nbtrain.lab.server.views import Views

SETTING = "nbtrain_views"


def load(server_app: Any) -> None:
    """Add the routes to a running ServerApp."""
    # Any text: RunDir.named refuses what is no name before a path is made of it.
    name = "([^/]+)"
    application = server_app.web_app
    application.settings[SETTING] = Views()

    def route(path: str) -> str:
        return url_path_join(application.settings["base_url"], "nbtrain", path)

    application.add_handlers(
        ".*$",
        [
            (route("runs"), RunsHandler),
            (route(f"run/{name}"), RunHandler),
            (route(f"run/{name}/log"), LogHandler),
            (route(f"run/{name}/stop"), StopHandler),
            (route(r"static/panel\.js"), ScriptHandler),
            (route("tensorboard/"), TensorBoardPageHandler),
        ],
    )
    server_app.log.info("nbtrain: serving the runs under %s", output_root())
