"""Puts nbtrain's routes into a Jupyter Server. nbtrain.json, installed with the package, switches it on.

GET  nbtrain/runs                           every run under the output root, newest first
GET  nbtrain/run/<name>                     RunView.snapshot()
GET  nbtrain/run/<name>/job?job=            the page of its newest job, or of another: monitor/job_shown.py
GET  nbtrain/run/<name>/log?rank=&offset=   a piece of a log: a rank's, "supervisor", "node0"; job=, attempt=
POST nbtrain/run/<name>/stop                save a checkpoint and end the newest job
GET  nbtrain/static/panel.js                the panel's script, for pages without a kernel
GET  nbtrain/tensorboard/                   a page that keeps TensorBoard live
"""

from typing import Any

from jupyter_server.utils import url_path_join

from nbtrain.base.workspace import output_root
from nbtrain.jobs.queue.after_boot import start_after_boot
from nbtrain.lab.server import handlers


def load(server_app: Any) -> None:
    """Add the routes to a running ServerApp."""
    # Any text: RunDir.named refuses what is no name before a path is made of it.
    name = "([^/]+)"
    application = server_app.web_app
    routes = {
        "runs": handlers.RunsHandler,
        f"run/{name}": handlers.RunHandler,
        f"run/{name}/job": handlers.JobHandler,
        f"run/{name}/log": handlers.LogHandler,
        f"run/{name}/stop": handlers.StopHandler,
        r"static/panel\.js": handlers.ScriptHandler,
        "tensorboard/": handlers.TensorBoardPageHandler,
    }
    start_after_boot(say=server_app.log.warning)
    base = url_path_join(application.settings["base_url"], "nbtrain")
    application.add_handlers(".*$", [(url_path_join(base, path), kind) for path, kind in routes.items()])
    server_app.log.info("nbtrain: serving the runs under %s", output_root())
