"""Registration of nbtrain's routes in a Jupyter Server, enabled by nbtrain.json, which the package installs.

openapi.yaml describes the requests and responses of each route; a test compares it with ROUTES.
"""

from typing import Any

from jupyter_server.utils import url_path_join

from nbtrain.base.workspace import output_root
from nbtrain.jobs.queue.after_boot import start_after_boot
from nbtrain.lab.server import actions, forms, jobs, logs, metrics, pages, plans, runs

# Matches any text: RunDir.named refuses an invalid name before it becomes a path.
NAME = "([^/]+)"
# {path below <base_url>nbtrain/, a regular expression: handler}
ROUTES = {
    "runs": runs.RunsHandler,
    "compare": runs.CompareHandler,
    "columns": runs.ColumnsHandler,
    "sparklines": runs.SparklinesHandler,
    f"run/{NAME}": runs.RunHandler,
    f"run/{NAME}/job": jobs.JobHandler,
    f"run/{NAME}/job/rank": jobs.RankHandler,
    f"run/{NAME}/({'|'.join(jobs.PARTS)})": jobs.JobPartHandler,
    f"run/{NAME}/log": logs.LogHandler,
    f"run/{NAME}/log/raw": logs.LogFileHandler,
    f"run/{NAME}/log/search": logs.LogSearchHandler,
    f"run/{NAME}/log/traceback": logs.TracebackHandler,
    f"run/{NAME}/(?:stop|cancel)": actions.StopHandler,
    f"run/{NAME}/save": actions.SaveHandler,
    f"run/{NAME}/pause": actions.PauseHandler,
    f"run/{NAME}/resume": actions.ResumeHandler,
    f"run/{NAME}/clone": actions.CloneHandler,
    f"run/{NAME}/metrics": metrics.MetricsHandler,
    rf"run/{NAME}/metrics\.csv": metrics.CsvHandler,
    f"run/{NAME}/plan": plans.PlanHandler,
    f"run/{NAME}/config": plans.ConfigHandler,
    "form": forms.FormHandler,
    "(form/assess|form/layouts)": forms.FormPartHandler,
    "form/text": forms.FormTextHandler,
    "check": plans.CheckHandler,
    "submit": forms.SubmitHandler,
    rf"static/({'|'.join(pages.SCRIPTS)})\.js": pages.ScriptHandler,
    "tensorboard/": pages.TensorBoardPageHandler,
}


def load(server_app: Any) -> None:
    """Add the routes to a running ServerApp."""
    application = server_app.web_app
    start_after_boot(say=server_app.log.warning)
    server_app.config.HTMLExporter.preprocessors.append(".".join(("nbtrain.lab.export", "OfflinePage")))
    base = url_path_join(application.settings["base_url"], "nbtrain")
    application.add_handlers(".*$", [(url_path_join(base, path), kind) for path, kind in ROUTES.items()])
    server_app.log.info("nbtrain: serving the runs under %s", output_root())
