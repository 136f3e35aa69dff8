"""The REST routes under <base_url>nbtrain/: authenticated like the server's own, POSTs with an XSRF check.

Files are read in a thread, so that a slow disk does not stop the kernels' traffic. A GET does not count as
activity: a forgotten panel must not keep an idle server from being culled.
"""

import asyncio
import functools
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from nbtrain.base.errors import NbtrainError
from nbtrain.base.jobstate import LOST
from nbtrain.lab.server.tensorboard_proxy import PROXY_NAME
from nbtrain.lab.server.views import view_of
from nbtrain.lab.ui.script import panel_script
from nbtrain.monitor import logs
from nbtrain.monitor.job_page import job_of
from nbtrain.monitor.job_shown import job_shown
from nbtrain.monitor.run_view import RunView

TENSORBOARD_PAGE = Path(__file__).with_name("tensorboard.html")

# A job that saves quickly is seen to end within the answer; otherwise the panel shows it later.
STOP_ANSWER_SECONDS = 2.0


class NbtrainHandler(APIHandler):
    """What the REST handlers share."""

    auth_resource = "nbtrain"
    _track_activity = False

    async def view(self, name: str) -> RunView:
        """The run that a request names; 404 if there is none."""
        try:
            return await asyncio.to_thread(view_of, name)
        except NbtrainError as error:
            raise web.HTTPError(404, str(error), reason="no such run") from error

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Errors as {"message"}: what the panel shows."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = error.log_message if isinstance(error, web.HTTPError) else None
        self.set_status(status_code)
        self.finish({"message": message or f"HTTP {status_code}"})


class RunsHandler(NbtrainHandler):
    """GET runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        from nbtrain.monitor.runs import list_runs

        entries = await asyncio.to_thread(list_runs)
        self.finish({"runs": [entry.to_dict() for entry in entries]})


class RunHandler(NbtrainHandler):
    """GET run/<name>."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        from nbtrain.lab.engine_watch import look_after

        view = await self.view(name)
        if view.job is not None:
            await asyncio.to_thread(look_after, view.job)
        self.finish(await asyncio.to_thread(view.snapshot))


class JobHandler(NbtrainHandler):
    """GET run/<name>/job?job=<id>: what the pages of the panel show of a job, by default the newest."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        view = await self.view(name)
        try:
            shown = await asyncio.to_thread(job_shown, view.run, self.get_argument("job", None))
        except NbtrainError as error:
            raise web.HTTPError(404, str(error), reason="no such job") from error
        self.finish(shown)


class LogHandler(NbtrainHandler):
    """GET run/<name>/log?rank=<number, "supervisor" or "node0">&job=&attempt=&offset=: or the end."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        view = await self.view(name)
        rank = self.get_argument("rank", "0")
        if rank != logs.SUPERVISOR and not rank.isdigit() and not logs.NODE.fullmatch(rank):
            raise web.HTTPError(400, f'rank = {rank!r} must be a number, "{logs.SUPERVISOR}" or "node0".')
        attempt, offset = self.number("attempt"), self.number("offset")
        try:
            job = job_of(view.run, self.get_argument("job", None))
        except NbtrainError as error:
            raise web.HTTPError(404, str(error), reason="no such job") from error
        path = logs.log_path(job, rank, attempt)
        part = await asyncio.to_thread(logs.read_log, path, offset)
        self.finish(asdict(part))

    def number(self, argument: str) -> int | None:
        text = self.get_argument(argument, None)
        if text is not None and not text.isdigit():
            raise web.HTTPError(400, f"{argument} = {text!r} must be a number.")
        return None if text is None else int(text)


class StopHandler(NbtrainHandler):
    """POST run/<name>/stop: the ranks save and leave; {"state", "cause"} after at most two seconds."""

    _track_activity = True
    _stopping: set[asyncio.Task] = set()  # noqa: RUF012  kept so that a task is not collected while it runs

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        from nbtrain.jobs.control import cancel

        view = await self.view(name)
        if (job := view.job) is None:
            raise web.HTTPError(409, f"{name} has no job to stop.")
        if not view.active and view.state != LOST:
            self.finish({"state": view.state, "cause": view.cause})
            return
        task = asyncio.ensure_future(asyncio.to_thread(cancel, job))
        self._stopping.add(task)
        task.add_done_callback(functools.partial(self._ended, name, self.log))
        await asyncio.wait([task], timeout=STOP_ANSWER_SECONDS)
        if task.done() and (error := task.exception()) is not None:
            raise web.HTTPError(409, str(error))
        self.set_status(202 if not task.done() else 200)
        self.finish({"state": view.state, "cause": view.cause})

    @classmethod
    def _ended(cls, name: str, log: Any, task: asyncio.Task) -> None:
        cls._stopping.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("nbtrain: stopping %s failed: %s", name, task.exception())


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
