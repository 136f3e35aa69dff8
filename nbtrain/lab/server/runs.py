"""Runs over REST: the list, one run, what is noted about it, and deleting it.

GET runs  ->  monitor/watched_runs.py      GET run/<name>  ->  RunView.snapshot()
"""

from nbtrain.base.workspace import output_root
from nbtrain.lab.run_actions import run_shown
from nbtrain.lab.server.requests import NbtrainHandler, Refusal
from nbtrain.lab.server.views import changed, forget, run_of, watched
from nbtrain.monitor.notes import change_notes, labels_of


class RunsHandler(NbtrainHandler):
    """GET runs?archived=0|1: every run under the output root, the newest first."""

    async def get(self) -> None:
        archived = self.switch("archived")
        self.finish(await self.read(lambda: watched(output_root()).answer(archived)))


class RunHandler(NbtrainHandler):
    """GET, PATCH, DELETE run/<name>."""

    async def get(self, name: str) -> None:
        from nbtrain.lab.engine_watch import look_after

        view = await self.view(name)
        if view.job is not None:
            await self.read(look_after, view.job)
        self.finish(await self.read(run_shown, view))
        self.catch_up(view)

    async def patch(self, name: str) -> None:
        """PATCH run/<name> {"labels"?, "notes"?, "archived"?}: null removes a label. Answers all three."""
        run = await self.read(run_of, name)
        changes = self.body(labels=dict, notes=str, archived=bool)
        said = await self.read(lambda: change_notes(run, **changes))
        labels = await self.read(labels_of, run)
        changed()
        self.answer({"name": name, "labels": labels, "notes": said.notes, "archived": said.archived})

    async def delete(self, name: str) -> None:
        """DELETE run/<name>?confirm=<name>&force=: with all its files; refused while a job is active."""
        from nbtrain.jobs.delete import delete

        run = await self.read(run_of, name)
        confirmed, force = self.get_argument("confirm", ""), self.switch("force") or False
        if confirmed != name:
            raise Refusal(
                400,
                f"confirm = {confirmed[:80]!r} must be the run's name, {name}: its files cannot be had back.",
            )
        deleted, notes = await self.library(delete, run, force)
        forget()
        changed()
        self.answer({"name": name, "deleted": str(deleted), "notes": notes})
