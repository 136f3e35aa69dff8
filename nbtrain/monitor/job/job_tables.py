"""The data of a job page in the panel: tables, charts, and the jobs and logs to choose from.

job_tables(run, job_id)  ->  one JSON object  ->  the live panel's pages; static.py draws part of it
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from nbtrain.base.run_directory.jobstate import ACTIVE, FAILURES
from nbtrain.base.run_directory.rank_phases import ERROR
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.job.conditions import type_of
from nbtrain.monitor.job.job_description import (
    FAULT_TITLES,
    UNKNOWN,
    JobDescription,
    RankRow,
    Replica,
    basics,
    fault_rows,
    resource_rows,
    use_of_limit,
)
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.job.rank_strip import rank_strip, seconds_text
from nbtrain.monitor.job.usage_charts import drawn, usage_charts
from nbtrain.monitor.logs.logs import SUPERVISOR

# Maximum number of points of a curve; a chart in the panel is about this many pixels wide.
CHART_POINTS = 160
MOST_EVENTS = 500
# Maximum number of failures in earlier attempts that are shown for a rank.
MOST_EARLIER = 3
# Maximum number of rank logs in the log menu; the tables offer the others.
MOST_LOGS = 256
# Maximum number of jobs in the job menu; `nbtrain job --job` shows older jobs.
MOST_JOBS = 50
CONDITION_HEADS = ("since", "type", "status", "reason", "message")
FAULT_HEADS = ("ended", *(title.lower() for title in FAULT_TITLES[1:]))
EVENT_HEADS = ("time", "type", "reason", "object", "message")
REPLICA_HEADS = (
    *("replica", "role", "host", "address", "phase", "restarts", "ranks", "CPU", "memory", "GPUs", "image"),
    "message",
)
RANK_HEADS = (
    *(
        "rank",
        "replica",
        "host",
        "phase",
        "activity",
        "step",
        "computing",
        "attempt",
        "exit code",
        "CPU",
        "memory",
        "message",
    ),
)
FAILED_TYPES = frozenset(type_of(state) for state in FAILURES)
"""Types of conditions that are shown as failures."""
# Maximum number of ranks whose logs are in their replica's menu; the table of ranks offers all logs.
MOST_IN_MENU = 32
# Labels of basics() that describe the run. The run's page already shows them elsewhere.
OF_RUN = ("cost of the run",)
FIGURE_HEADS = ("replica", "metric", "newest", "mean", "peak", "request", "limit")


def job_tables(run: RunDir, job_id: str | None = None, now: float | None = None) -> dict[str, Any]:
    """Return the data of a job page: of the newest job, or of `job_id`. Raises JobError if it does not exist.

    job_id, active  id of the job, and whether the job is active
    jobs            [[job id, label], ...] to choose from, newest first
    basics          [[label, text], ...]
    times           {label in basics: seconds since the epoch} for the labels that are times
    life            see monitor/status/life.py
    conditions, events, faults, replicas, ranks, figures
                    {"heads", "rows": [{"kind", "time", "cells"}]}: kind is "", "past", "warning" or "bad";
                    time is the first column in seconds since the epoch, which the page shows in the viewer's
                    time zone; rows of replicas and ranks also have "logs", in the form below
    charts          see usage_charts.drawn()
    warnings        messages about measurements that cannot be read
    strip           see monitor/job/rank_strip.py
    logs            [[rank, attempt, label], ...]: the logs that the log viewer can show
    yaml            resolved configuration of the job
    """
    page = describe_job(run, job_id, now)
    return {
        "job_id": page.job_id,
        "active": page.state in ACTIVE,
        "jobs": _jobs(run, page),
        "basics": [row for row in basics(page) if row[0] not in OF_RUN],
        "times": {"submitted": page.created_at} | ({"ended": page.ended_at} if page.ended_at else {}),
        "life": page.life,
        "conditions": conditions_shown(page),
        "events": _table(
            EVENT_HEADS,
            (
                (
                    "warning" if event.type == "Warning" else "",
                    event.time,
                    (event.type, event.reason, event.object, event.message),
                )
                for event in page.events[-MOST_EVENTS:]
            ),
        ),
        "faults": _table(
            FAULT_HEADS,
            (
                ("", fault.time, row[1:])
                for fault, row in zip(page.spending.faults, fault_rows(page.spending))
            ),
        ),
        "replicas": {"heads": [*REPLICA_HEADS], "rows": [_replica(replica) for replica in page.replicas]},
        "ranks": {
            "heads": [*RANK_HEADS],
            "rows": [_rank(replica, row) for replica in page.replicas for row in replica.ranks],
        },
        "figures": _table(
            FIGURE_HEADS, (("", None, row) for replica in page.replicas for row in resource_rows(replica))
        ),
        "charts": [drawn(chart, page.created_at) for chart in usage_charts(page, CHART_POINTS)],
        "warnings": page.usage_warnings,
        "strip": rank_strip(page),
        "logs": _logs(page),
        "yaml": page.yaml,
    }


def rank_charts(run: RunDir, job_id: str | None, rank: int) -> list[dict[str, Any]]:
    """Return the charts of one rank's resources, in the form of job_tables().

    Raises JobError if the job does not exist.
    """
    page = describe_job(run, job_id)
    return [drawn(chart, page.created_at) for chart in usage_charts(page, CHART_POINTS, rank)]


def conditions_shown(page: JobDescription) -> dict[str, Any]:
    """Return the table of conditions, in the form of job_tables()."""
    rows = (
        (
            "bad"
            if condition.status and condition.type in FAILED_TYPES
            else ""
            if condition.status
            else "past",
            condition.last_change,
            (condition.type, str(condition.status), condition.reason, condition.message),
        )
        for condition in page.conditions
    )
    return _table(CONDITION_HEADS, rows)


def _jobs(run: RunDir, page: JobDescription) -> list[list[str]]:
    ids = run.job_ids()
    newest = [*reversed(ids)][:MOST_JOBS]
    shown = newest if page.job_id in newest else [*newest, page.job_id]
    return [[job_id, f"job {job_id}{', newest' if job_id == ids[-1] else ''}"] for job_id in shown]


def _replica(replica: Replica) -> dict[str, Any]:
    pod = replica.pod
    restarts = f"{replica.restarts}" + (f" (pod: {pod.restarts})" if pod and pod.restarts else "")
    numbers = [row.rank for row in replica.ranks]
    ranks = "" if not numbers else f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    role = f"{replica.labels.get('role', '')} {replica.labels.get('index', '')}".strip()
    place = [pod.pod if pod else replica.name, role, replica.host or UNKNOWN, replica.address]
    use = [use_of_limit("cpu_cores", replica.use), use_of_limit("memory_bytes", replica.use), _gpus(replica)]
    newest = [_rank_logs(row)[:1] for row in replica.ranks[:MOST_IN_MENU]]
    return {
        "kind": "bad" if replica.phase == ERROR else "",
        "time": None,
        "cells": [*place, replica.phase, restarts, ranks, *use, replica.image or "", replica.message],
        "logs": [*(log for logs in newest for log in logs), *_own_logs(replica)],
    }


def _gpus(replica: Replica) -> str:
    """Describe a replica's GPUs, such as "2 x H100, 90 % busy"; "" without GPUs."""
    if not replica.gpus:
        return ""
    name = next(iter(replica.gpus.values())).name
    busy = [use.newest for gpu in replica.gpus.values() if (use := gpu.use.get("gpu_fraction"))]
    known = [value for value in busy if value is not None]
    words = f", {100 * sum(known) / len(known):.0f} % busy" if known else ""
    return f"{len(replica.gpus)} x {name}{words}"


def _rank(replica: Replica, row: RankRow) -> dict[str, Any]:
    alone = len(replica.ranks) == 1
    use = replica.use if alone and not row.use else row.use
    failed = [f"attempt {end.attempt}: {end.message}" for end in row.earlier if end.failed]
    cells = [
        *(f"{row.rank}", replica.pod.pod if replica.pod else replica.name, replica.host or UNKNOWN),
        *(row.phase, row.activity, "" if row.step is None else f"{row.step:,}"),
        "" if row.compute_seconds is None else seconds_text(row.compute_seconds),
        f"{row.attempt}",
        "" if row.exit_code is None else f"{row.exit_code}",
        *(use_of_limit("cpu_cores", use), use_of_limit("memory_bytes", use)),
        "; ".join([*([row.message] if row.message else []), *failed[-MOST_EARLIER:]]),
    ]
    kind = "bad" if row.phase == ERROR else ""
    return {"kind": kind, "time": None, "cells": cells, "logs": _rank_logs(row)}


def _own_logs(replica: Replica) -> list[list[Any]]:
    found: list[list[Any]] = []
    for log in replica.logs:
        name = log.path.rpartition("/")[2].removesuffix(".log")
        found.append([name, None, name if name == SUPERVISOR else f"machine {replica.index}"])
    return found


def _rank_logs(row: RankRow) -> list[list[Any]]:
    """Return a rank's logs as [rank, attempt, label], newest attempt first."""
    several = len(row.logs) > 1
    return [
        [str(row.rank), log.attempt, f"rank {row.rank}" + (f", attempt {log.attempt}" if several else "")]
        for log in reversed(row.logs)
    ]


def _logs(page: JobDescription) -> list[list[Any]]:
    """Return all logs: the ranks' newest attempts, then earlier attempts, then supervisor and machines."""
    by_rank = [_rank_logs(row) for replica in page.replicas for row in replica.ranks]
    by_age = itertools.zip_longest(*by_rank)
    ranks = [log for attempts in by_age for log in attempts if log is not None]
    return [*ranks[:MOST_LOGS], *(log for replica in page.replicas for log in _own_logs(replica))]


def _table(heads: Sequence[str], rows: Iterable[tuple[str, float | None, Sequence[str]]]) -> dict[str, Any]:
    return {
        "heads": list(heads),
        "rows": [{"kind": kind, "time": time, "cells": list(cells)} for kind, time, cells in rows],
    }
