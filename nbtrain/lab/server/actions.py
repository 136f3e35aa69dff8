"""Actions on a run over REST: save, stop, cancel, pause, resume, clone.

They need no kernel, so they work while a cell runs, after a kernel restart and from a second browser.
"""

from collections.abc import Callable
from typing import Any

from nbtrain.base.run_directory.jobstate import ACTIVE, LOST
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.lab.server.requests import ACTIONS, NbtrainHandler, RequestError, act
from nbtrain.lab.server.views import changed
from nbtrain.monitor.run.run_view import RunView


class ActionHandler(NbtrainHandler):
    """Shared base of the routes of actions. Each responds with {"state", "cause", "name"}.

    The response comes within two seconds, with status 202 if the action is not done by then. If the action
    fails later, GET run/<name> and GET runs report the error until the next action on the run, or until the
    job's state changes.
    """

    def need_job(self, view: RunView, what: str) -> JobDir:
        if (job := view.job) is None:
            raise RequestError(409, f"{view.name} has no job to {what}: the run was never submitted.")
        return job

    async def until_answered(
        self, view: RunView, job: JobDir, what: str, function: Callable[[], Any]
    ) -> None:
        ended = await act(job, what, function, self.log)
        await self.answer_state(view, 200 if ended else 202)

    async def answer_state(self, view: RunView, status: int = 200, **more: Any) -> None:
        state, cause = await self.read(lambda: (view.state, view.cause))
        changed()
        self.answer({"name": view.name, "state": state, "cause": cause, **more}, status)


class StopHandler(ActionHandler):
    """POST run/<name>/stop or cancel {"now"?}: the ranks save a checkpoint and exit.

    With `now` true, the ranks are killed without a checkpoint. A job that has ended is not changed.
    """

    async def post(self, name: str) -> None:
        from nbtrain.jobs.control.control import cancel

        view, now = await self.view(name), self.body(now=bool).get("now", False)
        job = self.need_job(view, "stop")
        state = await self.read(lambda: view.state)
        if state not in ACTIVE and state != LOST:
            await self.answer_state(view)
            return
        # Killing does not wait for a stop in progress.
        await self.until_answered(view, job, "kill" if now else "stop", lambda: cancel(job, now=now))


class SaveHandler(ActionHandler):
    """POST run/<name>/save: the ranks save a checkpoint at the next step, and the job continues."""

    async def post(self, name: str) -> None:
        from nbtrain.jobs.control.control import request_save

        view = await self.view(name)
        job = self.need_job(view, "save")
        await self.until_answered(view, job, "save", lambda: request_save(job))


class PauseHandler(ActionHandler):
    """POST run/<name>/pause: the job saves a checkpoint and releases its devices; resume continues it."""

    async def post(self, name: str) -> None:
        from nbtrain.jobs.control.control import pause

        view = await self.view(name)
        job = self.need_job(view, "pause")
        await self.until_answered(view, job, "pause", lambda: pause(job))


class ResumeHandler(ActionHandler):
    """POST run/<name>/resume {"overrides"?, "try_code"?}: start a new job from the newest checkpoint, or
    continue the paused job. With `try_code` false, the run's own Python file (`code`) is not tried first.
    """

    async def post(self, name: str) -> None:
        view, asked = await self.view(name), self.body(overrides=dict, try_code=bool)
        ACTIONS.clear(name)
        job, notes = await self.library(_resume, view.run, asked)
        await self.answer_state(view, job_id=job.job_id, notes=notes)


class CloneHandler(ActionHandler):
    """POST run/<name>/clone {"name", "overrides"?, "submit"?, "try_code"?}: create a copy of the run.

    The copy has the settings of the run, changed by `overrides`. Nothing is started unless `submit` is true.
    With `try_code` false, the run's own Python file (`code`) is not tried first.
    """

    async def post(self, name: str) -> None:
        view = await self.view(name)
        asked = self.body(name=str, overrides=dict, submit=bool, try_code=bool)
        if "name" not in asked:
            raise RequestError(400, 'name is missing: {"name": the name of the new run}.')
        job_id, notes = await self.library(_clone, view.run, asked)
        made = await self.view(asked["name"])
        await self.answer_state(made, 201, job_id=job_id, notes=notes)


def _resume(run: RunDir, asked: dict[str, Any]) -> JobDir:
    from nbtrain.jobs.submission.submit import resume

    return resume(run, asked.get("overrides"), tries_code=asked.get("try_code", True))


def _clone(run: RunDir, asked: dict[str, Any]) -> str | None:
    from nbtrain.jobs.submission.clone import clone, submit_clone

    name, overrides = asked["name"], asked.get("overrides")
    if asked.get("submit"):
        return submit_clone(run, name, overrides, tries_code=asked.get("try_code", True))[0].job_id
    clone(run, name, overrides)
    return None
