"""The page of a job in the panel's words: rows of its tables, charts, the choice of jobs and logs.

job_shown(run, job_id)  ->  one JSON object  ->  the pages of the live panel; static.py draws a part of it
"""

from collections.abc import Iterable, Sequence
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.jobstate import ACTIVE
from nbtrain.base.rundir import RunDir
from nbtrain.monitor.job_page import JobPage, job_page
from nbtrain.monitor.job_text import amounts_text, engine_words, moment, replica_rows, resource_rows
from nbtrain.monitor.logs import SUPERVISOR
from nbtrain.monitor.usage_charts import drawn, usage_charts

# A chart of the panel is about so many pixels wide.
CHART_POINTS = 160
MOST_EVENTS = 500
MOST_LOGS = 256
# Jobs that can be chosen; older ones: `nbtrain job --job`.
MOST_JOBS = 50
CONDITION_HEADS = ("since", "type", "status", "reason", "message")
EVENT_HEADS = ("time", "type", "reason", "object", "message")
REPLICA_HEADS = ("replica", "host", "phase", "restarts", "CPU", "memory", "message")
FIGURE_HEADS = ("replica", "figure", "newest", "mean", "peak", "request", "limit")


def job_shown(run: RunDir, job_id: str | None = None, now: float | None = None) -> dict[str, Any]:
    """The newest job's page, or that of `job_id`. Raises JobError if there is none.

    job_id, active  which job, and whether it goes on
    jobs            [[job id, its words], ...] to choose from, the newest first
    basics          [[label, text], ...]
    conditions, events, replicas, figures
                    {"heads", "rows": [{"kind", "time", "cells"}]}: kind is "", "past", "warning" or "bad",
                    time that of the first column, in seconds since the epoch, for the reader's time zone
    charts          usage_charts.drawn()
    logs            [[rank, attempt, words], ...]: what the log viewer can show
    yaml            the run's resolved configuration
    """
    page = job_page(run, job_id, now)
    return {
        "job_id": page.job_id,
        "active": page.state in ACTIVE,
        "jobs": _jobs(run, page),
        "basics": basics(page),
        "conditions": conditions_shown(page),
        "events": _table(
            EVENT_HEADS,
            (
                (
                    "warning" if one.type == "Warning" else "",
                    one.time,
                    (one.type, one.reason, one.object, one.message),
                )
                for one in page.events[-MOST_EVENTS:]
            ),
        ),
        "replicas": _table(REPLICA_HEADS, _replicas(page)),
        "figures": _table(
            FIGURE_HEADS, (("", None, row) for one in page.replicas for row in resource_rows(one))
        ),
        "charts": [drawn(chart, page.created_at) for chart in usage_charts(page, CHART_POINTS)],
        "logs": _logs(page),
        "yaml": page.yaml,
    }


def conditions_shown(page: JobPage) -> dict[str, Any]:
    """The table of conditions."""
    rows = (
        (
            "bad" if one.status and one.type in ("Failed", "Lost") else "" if one.status else "past",
            one.last_change,
            (one.type, str(one.status), one.reason, one.message),
        )
        for one in page.conditions
    )
    return _table(CONDITION_HEADS, rows)


def basics(page: JobPage) -> list[list[str]]:
    """Basic info: what the job is, where and since when, what it asks for."""
    restarts = amounts.counted(page.restarts, "restart")
    ranks = amounts.counted(page.world_size, "rank")
    rows = [
        ("phase", page.phase + (f": {page.cause}" if page.cause else "")),
        ("job", f"{page.job_id} of run {page.run_id or '-'}, backend {page.backend}"),
        ("labels", ", ".join(f"{key}={value}" for key, value in page.labels.items())),
        ("submitted", f"{moment(page.created_at)} UTC"),
        ("ended", f"{moment(page.ended_at)} UTC" if page.ended_at else ""),
        ("elapsed", amounts.elapsed(page.elapsed_seconds)),
        (
            "size",
            f"{amounts.counted(len(page.replicas), 'replica')}, {ranks}, attempt {page.attempt}, {restarts}",
        ),
        ("each replica asks for", amounts_text(page.requests) or "nothing in particular"),
        ("and may use", amounts_text(page.limits) or "what there is"),
        ("image", page.image or ""),
        ("engine", engine_words(page.engine, ended=page.ended_at is not None) if page.engine else ""),
        ("command", " ".join(page.command)),
    ]
    return [[label, text] for label, text in rows if text]


def _jobs(run: RunDir, page: JobPage) -> list[list[str]]:
    ids = run.job_ids()
    newest = [*reversed(ids)][:MOST_JOBS]
    shown = newest if page.job_id in newest else [*newest, page.job_id]
    return [[one, f"job {one}{', the newest' if one == ids[-1] else ''}"] for one in shown]


def _replicas(page: JobPage) -> Iterable[tuple[str, None, Sequence[str]]]:
    for replica in page.replicas:
        for row in replica_rows(replica):
            yield ("bad" if row[2].startswith("Error") else ""), None, row


def _logs(page: JobPage) -> list[list[Any]]:
    """Ranks with the newest attempt first, then supervisor and machines."""
    ranks: list[list[Any]] = []
    found: list[list[Any]] = []
    for replica in page.replicas:
        for one in replica.logs:
            name = one.path.rpartition("/")[2].removesuffix(".log")
            found.append([name, None, name if name == SUPERVISOR else f"machine {replica.index}"])
    for row in (row for replica in page.replicas for row in replica.ranks):
        for log in reversed(row.logs):
            words = f"rank {row.rank}" + (f", attempt {log.attempt}" if len(row.logs) > 1 else "")
            ranks.append([str(row.rank), log.attempt, words])
    return [*ranks[:MOST_LOGS], *found]


def _table(heads: Sequence[str], rows: Iterable[tuple[str, float | None, Sequence[str]]]) -> dict[str, Any]:
    return {
        "heads": list(heads),
        "rows": [{"kind": kind, "time": time, "cells": list(cells)} for kind, time, cells in rows],
    }
