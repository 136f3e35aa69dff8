"""Logs of a run over REST: a part from an offset on, a search, the last traceback, a complete file.

For a rank that has written no log, the routes return what `nbtrain logs` prints: on Kubernetes, the output of
the rank's pod.

Text is sent as JSON or as a file to save, never as a page, so that a browser does not run a log's content.
"""

import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tornado.iostream import StreamClosedError

from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.attempt.backend import reader_of_job
from nbtrain.lab.server.jobs import job_named
from nbtrain.lab.server.requests import NbtrainHandler, RequestError, in_pool
from nbtrain.lab.server.views import confined
from nbtrain.monitor.logs import logs
from nbtrain.monitor.logs.log_lines import LINES

MOST_HITS = 1000
HITS = 200
MOST_TEXT = 1000
# Bytes of a download in memory at a time.
PIECE_BYTES = 1 << 20
# A log may have gigabytes: a search must not keep other readers waiting.
SEARCHERS = ThreadPoolExecutor(2, "nbtrain-search")
# Maximum number of searches that run or wait. A page starts one search at a time.
MOST_SEARCHES = 16
# Maximum lines of a pod's output to return; a log line has about 120 bytes (READ_LIMIT_BYTES).
OUTPUT_LINES = 2000
# A cluster that does not respond must not keep readers of files waiting.
CLUSTER_READERS = ThreadPoolExecutor(2, "nbtrain-pods")


class OneLogHandler(NbtrainHandler):
    """Shared base of routes for one log: ?rank=<number, "supervisor" or "node0">&job=&attempt=."""

    async def log_asked_for(self, name: str) -> tuple[JobDir, int | str, Path]:
        """Return the job, the rank or log name, and the log file, which may not exist."""
        view = await self.view(name)
        rank = self.get_argument("rank", "0")
        known = rank == logs.SUPERVISOR or logs.NODE.fullmatch(rank)
        if not known and not (rank.isascii() and rank.isdigit() and len(rank) < 10):
            raise RequestError(
                400,
                f'rank = {rank[:80]!r} must be a number, "{logs.SUPERVISOR}", or a machine such as "node0".',
            )
        attempt = self.number("attempt")
        job = await self.read(job_named, view.run, self.get_argument("job", None))
        path = await self.read(lambda: confined(logs.log_path(job, rank, attempt)))
        return job, rank if known else int(rank), path


class LogHandler(OneLogHandler):
    """GET run/<name>/log?rank=&job=&attempt=&offset=&line=: a part of a log.

    The part begins at the offset, is around the line or, without both, is the end of the log. `whole` is true
    for the output of a pod, which is not in a file and is returned completely each time.
    """

    async def get(self, name: str) -> None:
        offset, line = self.number("offset"), self.number("line")
        job, rank, path = await self.log_asked_for(name)
        # Finding a line in a log of gigabytes takes as long as a text search, so it uses the same threads.
        read = self.read if line is None else functools.partial(in_pool, SEARCHERS)
        part = await read(LINES.read, path, offset, line)
        text = "" if part.size_bytes else await in_pool(CLUSTER_READERS, output_of, job, rank)
        self.finish({**asdict(part), **({"text": text} if text else {}), "whole": bool(text)})


class LogFileHandler(OneLogHandler):
    """GET run/<name>/log/raw?rank=&job=&attempt=: the complete file as a download, of any size; for a rank
    that has written no log, the output of its pod.
    """

    async def get(self, name: str) -> None:
        job, rank, path = await self.log_asked_for(name)
        is_written, text = await self.read(path.exists), ""
        if not is_written and not (text := await in_pool(CLUSTER_READERS, output_of, job, rank)):
            raise RequestError(
                404,
                f"{name}: job {job.job_id} has no log {path.name} yet. "
                "The log is created when its process starts.",
            )
        self.set_header("Content-Disposition", f'attachment; filename="{name}-{job.job_id}-{path.name}"')
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if not is_written:
            self.finish(text, set_content_type="text/plain; charset=utf-8")
            return
        with await self.read(path.open, "rb") as stream:
            try:
                while piece := await self.read(stream.read, PIECE_BYTES):
                    self.write(piece)
                    await self.flush()
            except StreamClosedError:
                return
        self.finish(set_content_type="text/plain; charset=utf-8")


def output_of(job: JobDir, rank: int | str) -> str:
    """Return the last lines that `nbtrain logs` prints for a rank without a log; "" if it has a log."""
    if logs.read_log(logs.log_path(job, rank), limit_bytes=1).size_bytes:
        return ""
    return "".join(f"{line}\n" for line in reader_of_job(job).logs(job, rank, OUTPUT_LINES))


class LogSearchHandler(NbtrainHandler):
    """GET run/<name>/log/search?q=&job=&rank=&limit=&case=0|1&regex=0|1: {"hits", "more", "complete"}.

    The search covers all jobs, the newest first, or one job; case=0 ignores case. With regex=1, q is a
    Python regular expression. `more` says whether there are more hits than the limit. `complete` is false if
    the search was stopped after log_search.PATTERN_SECONDS. At most MOST_SEARCHES searches run or wait at a
    time; further searches are refused.
    """

    num_searches = 0

    async def get(self, name: str) -> None:
        view, text = await self.view(name), self.get_argument("q", "", strip=False)
        if not text or len(text) > MOST_TEXT:
            raise RequestError(400, f"q has {len(text):,} characters and must have 1 to {MOST_TEXT:,}.")
        limit = self.number("limit", HITS, MOST_HITS)
        rank, case = self.number("rank"), self.switch("case")
        job_id = self.get_argument("job", None)
        asked = (view.run, job_id, text, rank, case is False, limit, self.switch("regex") or False)
        if LogSearchHandler.num_searches >= MOST_SEARCHES:
            raise RequestError(
                409, f"{MOST_SEARCHES} searches of logs are running or waiting already; try again later."
            )
        LogSearchHandler.num_searches += 1
        try:
            self.answer(await in_pool(SEARCHERS, _search, *asked))
        finally:
            LogSearchHandler.num_searches -= 1


def _search(
    run: RunDir, job_id: str | None, text: str, rank: int | None, ignore_case: bool, limit: int, regex: bool
) -> dict[str, Any]:
    from nbtrain.monitor.logs.log_search import search, search_in_time

    ids = [job_named(run, job_id).job_id] if job_id else [*reversed(run.job_ids())]
    jobs = (job_named(run, one) for one in ids)
    if regex:
        hits, complete = search_in_time(jobs, text, rank, ignore_case, limit + 1)
    else:
        hits, complete = [*itertools.islice(search(jobs, text, rank, ignore_case), limit + 1)], True
    shown = [hit_shown(asdict(hit)) for hit in hits[:limit]]
    return {"hits": shown, "more": len(hits) > limit, "complete": complete}


def hit_shown(hit: dict[str, Any]) -> dict[str, Any]:
    """Return a hit as JSON, with rank and attempt from the log's name: "3.0.log" is rank 3, attempt 0."""
    who, _, attempt = hit["log"].removesuffix(".log").partition(".")
    return {
        "job": hit["job"],
        "rank": who,
        "attempt": int(attempt) if attempt.isdigit() else None,
        "line": hit["line_number"],
        "offset": hit["offset_bytes"],
        "text": hit["text"],
        "spans": hit["spans"],
    }


class TracebackHandler(NbtrainHandler):
    """GET run/<name>/log/traceback?rank=&job=: the last traceback of a rank, by default of the failed rank.

    The response is {"job_id", "state", "rank", "title", "text"}; "text" is null if there is no traceback.
    """

    async def get(self, name: str) -> None:
        view, rank = await self.view(name), self.number("rank")
        job = await self.read(job_named, view.run, self.get_argument("job", None))
        self.answer(await self.read(_traceback, job, rank))


def _traceback(job: JobDir, rank: int | None) -> dict[str, Any]:
    from nbtrain.monitor.logs.tracebacks import failed_rank, last_traceback, whose

    state = read_state(job, time.time())[0]
    who: int | str = failed_rank(job) if rank is None else rank
    text = last_traceback(job, who)
    title = f"The last traceback of {whose(who)}" if text else f"{whose(who).capitalize()} has no traceback"
    return {"job_id": job.job_id, "state": state, "rank": who, "title": title, "text": text}
