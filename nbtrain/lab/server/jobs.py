"""Jobs over REST: the job page for the panel, or one part in the form of `nbtrain job --json`.

The run YAML schema, from which the job page takes the names of settings, is loaded at the first request.
"""

import math
import time
from typing import Any

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.lab.server.pace import PAGES
from nbtrain.lab.server.requests import NbtrainHandler
from nbtrain.lab.server.views import MOST_VIEWS, NoRun, refuse_links, view_of
from nbtrain.monitor.metrics.finite_json import encoded

PARTS = ("conditions", "events", "replicas", "resources")


def job_named(run: RunDir, job_id: str | None) -> JobDir:
    """Return the run's job with this id, by default the newest job. Raises NoRun if there is no such job, and
    OutsideError if its folder leads out of the output directory.
    """
    try:
        job = run.existing_job(job_id)
    except JobError as error:
        raise NoRun(str(error)) from error
    if job_id is not None:
        refuse_links(run, job)
    return job


class JobHandler(NbtrainHandler):
    """GET run/<name>/job?job=<id>: the page of a job for the panel; the newest job by default."""

    async def get(self, name: str) -> None:
        self.finish(await self.read(_page, name, self.get_argument("job", None)))


# {job folder and state: (time, job page as JSON)}
_kept: dict[str, tuple[float, bytes]] = {}


def _page(name: str, job_id: str | None) -> bytes:
    from nbtrain.monitor.job.job_tables import job_tables

    began = time.thread_time()
    job = job_named(view_of(name).run, job_id)
    # The page of an ended job is requested only once, and must not be the cached page from before its end.
    key = f"{job.path} {read_state(job, time.time())[0]}"
    at, content = _kept.get(key, (-math.inf, b""))
    if time.monotonic() - at >= PAGES.seconds:
        content = encoded(job_tables(job.run, job.job_id))
        if len(_kept) >= MOST_VIEWS:
            _kept.clear()
        _kept[key] = (time.monotonic(), content)
        PAGES.spent(time.thread_time() - began)
    return content


class RankHandler(NbtrainHandler):
    """GET run/<name>/job/rank?rank=&job=: {"rank", "charts"}, the resources of one rank over time."""

    async def get(self, name: str) -> None:
        view, rank = await self.view(name), self.number("rank", 0)
        job = await self.read(job_named, view.run, self.get_argument("job", None))
        self.answer({"rank": rank, "charts": await self.read(_rank_charts, job, rank)})


def _rank_charts(job: JobDir, rank: int) -> list[dict[str, Any]]:
    from nbtrain.monitor.job.job_tables import rank_charts

    return rank_charts(job.run, job.job_id, rank)


class JobPartHandler(NbtrainHandler):
    """GET run/<name>/conditions, events, replicas or resources?job=&since=: one part of the job page.

    The response is {"job_id", "state", and the part under its name}. `since`, in seconds since the epoch,
    excludes older events and older points of resources.
    """

    async def get(self, name: str, part: str) -> None:
        view, job_id, since = await self.view(name), self.get_argument("job", None), self.real("since")
        job = await self.read(job_named, view.run, job_id)
        self.answer(await self.read(_part, view.run, job, part, since))


def _part(run: RunDir, job: JobDir, part: str, since: float | None) -> dict[str, Any]:
    from nbtrain.monitor.job.job_records import describe_job

    page = describe_job(run, job.job_id).to_dict()
    found = page[part]
    if since is not None and part == "events":
        found = [event for event in found if event["time"] >= since]
    if since is not None and part == "resources":
        for curve in (
            curve for node in found for curves in node["curves"].values() for curve in curves.values()
        ):
            first = sum(at < since for at in curve["times"])
            curve.update({key: curve[key][first:] for key in ("times", "mean", "max")})
    return {"job_id": job.job_id, "state": page["state"], part: found}
