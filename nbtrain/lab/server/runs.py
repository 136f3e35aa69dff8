"""Runs over REST: the list, one run, its labels and notes, and its deletion.

GET runs  ->  monitor/runs/watched_runs.py      GET run/<name>  ->  RunView.describe()
"""

import asyncio
import contextlib
import time
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.text import amounts
from nbtrain.base.workspace import output_root
from nbtrain.lab.server.pace import PACE
from nbtrain.lab.server.requests import ACTIONS, AHEAD, NbtrainHandler, RequestError
from nbtrain.lab.server.views import (
    NoRun,
    OutsideError,
    changed,
    columns,
    forget,
    run_of,
    sparklines,
    view_of,
    watched,
)
from nbtrain.monitor.metrics.finite_json import encoded
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.status.notes import change_notes, labels_of

# The list shows at most this many runs per page.
MOST_SPARKLINES = 100
# Pages that open at the same time have their responses within two seconds (docs/evidence/server.md).
FORM_SECONDS = 2.0


class RunsHandler(NbtrainHandler):
    """GET runs?archived=0|1: all runs in the output directory, newest first."""

    async def get(self) -> None:
        archived = self.switch("archived")
        failed = ACTIONS.all_failed
        self.finish(await self.read_first(lambda: watched(output_root()).answer(archived, failed)))
        AHEAD.submit(_load_the_rest)
        FORM.prepare_later()


def _load_the_rest() -> None:
    """Load the modules of a run's page early, so that the first run opens half a second faster."""
    import nbtrain.lab.run_actions
    import nbtrain.monitor.job.job_tables  # noqa: F401


class FormAhead:
    """Prepares the launch form once per server, so that the first form opens half a second faster."""

    def __init__(self) -> None:
        self._is_planned = False

    def prepare_later(self) -> None:
        """Prepare the form once the pages that open together with the list have their responses."""
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_later(FORM_SECONDS, AHEAD.submit, self._prepare)

    def _prepare(self) -> None:
        from nbtrain.lab.form.answers import prepare

        prepare()


FORM = FormAhead()


class CompareHandler(NbtrainHandler):
    """GET compare?runs=a,b: the settings that differ and the metrics of each run (monitor/runs/compare.py).

    POST compare {"runs": [...], "published": {"file", "text"}} adds columns of published figures. It changes
    nothing, and a page sends it as often as a GET, so it does not count as activity either.

    A run that does not exist or may not be shown is reported in `refused`; the others are compared.
    """

    async def get(self) -> None:
        names = [name for name in self.get_argument("runs", "").split(",") if name]
        self.answer(await self.read(_compared, names))

    async def post(self) -> None:
        body = self.body(runs=list, published=dict)
        names, published = body.get("runs", []), body.get("published", {})
        texts = [*names, published.get("file"), published.get("text")]
        if set(published) != {"file", "text"} or not all(isinstance(text, str) for text in texts):
            raise RequestError(
                400, "runs must be a list of names, and published must be {file, text} with two texts."
            )
        self.answer(await self.read(_compared, names, published["text"], published["file"]))

    @property
    def _track_activity(self) -> bool:  # type: ignore[override]
        return False


def _compared(names: list[str], text: str | None = None, file: str = "") -> dict[str, Any]:
    from nbtrain.monitor.runs.compare import MOST_RUNS, tables
    from nbtrain.monitor.runs.published import parse_published

    published = [] if text is None else parse_published(text, file)
    if not 1 <= len(names) <= MOST_RUNS:
        raise ConfigError(
            f"cannot compare {amounts.counted(len(names), 'run')}: choose 1 to {MOST_RUNS} runs."
        )
    runs, refused = [], {}
    for name in dict.fromkeys(names):
        try:
            runs.append(run_of(name))
        except (NoRun, OutsideError) as error:
            refused[name] = str(error)
    return tables(runs, refused, published)


class ColumnsHandler(NbtrainHandler):
    """GET columns?key=a&key=b: the settings or results `a` and `b` of all runs, and all available keys."""

    async def get(self) -> None:
        # The name of a result may contain a comma.
        self.answer(await self.read(_columns, self.get_arguments("key")))


def _columns(keys: list[str]) -> dict[str, Any]:
    from nbtrain.lab.form.fields import every_field

    root = output_root()
    return columns(root).answer(keys, watched(root).names(), [key for key in every_field() if key != "name"])


class SparklinesHandler(NbtrainHandler):
    """GET sparklines?name=a&name=b: loss curves of few points; runs without a loss are omitted."""

    async def get(self) -> None:
        names = self.get_arguments("name")
        if len(names) > MOST_SPARKLINES:
            raise RequestError(
                400,
                f"the request has {len(names):,} names; at most {MOST_SPARKLINES} are allowed. "
                "Send several requests.",
            )
        self.answer(await self.read(_sparklines, names))


def _sparklines(names: list[str]) -> dict[str, Any]:
    lines = {}
    for name in names:
        # A run may have been deleted since the page listed it, or is being deleted.
        with contextlib.suppress(NoRun, OutsideError, FileNotFoundError):
            lines[name] = sparklines().of(run_of(name))
    return {"runs": {name: line for name, line in lines.items() if line is not None}}


def _look(name: str) -> tuple[RunView, bytes]:
    """Return a run's view, and the run's description as JSON.

    A single call returns both, because pages poll each second and every call occupies a thread of the pool.
    """
    from nbtrain.lab.engine_watch import look_after
    from nbtrain.lab.run_actions import run_shown

    began = time.thread_time()
    view = view_of(name)
    if (job := view.job) is not None:
        look_after(job)
    shown = run_shown(view)
    again = PACE.spent(time.thread_time() - began) if shown["active"] else PACE.seconds
    # The rest of long metrics files is read in the background; until then the curves are incomplete, even for
    # a run that has ended.
    half = bool(view.reader.behind_bytes)
    failed = ACTIONS.failed(name, view.job.job_id if view.job else None, shown["state"])
    more = {"look_again_seconds": again, "half_read": half, "failed_action": failed}
    return view, encoded({**shown, **more})


class RunHandler(NbtrainHandler):
    """GET, PATCH, DELETE run/<name>."""

    async def get(self, name: str) -> None:
        """Return the description, the possible actions, and the time until the next poll."""
        view, content = await self.read(_look, name)
        self.finish(content)
        self.catch_up(view)

    async def patch(self, name: str) -> None:
        """PATCH run/<name> {"labels"?, "notes"?, "archived"?}: change the given fields, and return all
        three. A label with the value null is removed.
        """
        run = await self.read(run_of, name)
        changes = self.body(labels=dict, notes=str, archived=bool)
        said = await self.read(lambda: change_notes(run, **changes))
        labels = await self.read(labels_of, run)
        changed()
        self.answer({"name": name, "labels": labels, "notes": said.notes, "archived": said.archived})

    async def delete(self, name: str) -> None:
        """DELETE run/<name>?confirm=<name>&force=: delete the run with all its files. Refused while a job is
        active.
        """
        from nbtrain.jobs.control.delete import delete

        run = await self.read(run_of, name)
        confirmed, force = self.get_argument("confirm", ""), self.switch("force") or False
        if confirmed != name:
            raise RequestError(
                400,
                f"confirm = {confirmed[:80]!r} must be the run's name, {name}, because a deletion cannot be "
                "undone.",
            )
        deleted, notes = await self.library(delete, run, force)
        ACTIONS.clear(name)
        forget()
        changed()
        self.answer({"name": name, "deleted": str(deleted), "notes": notes})
