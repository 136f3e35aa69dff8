"""Table rows for a job's ranks: phase, step, process and message, from heartbeats and exit records."""

from collections.abc import Mapping
from typing import Any

from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.rank_phases import phase_of_rank
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.monitor.job.rank_records import records_of_rank
from nbtrain.monitor.logs.logs import log_attempts

# A heartbeat older than this is marked as stale. Heartbeats come every second, but less often if a step is
# long.
STALE_HEARTBEAT_SECONDS = 60.0


def rank_rows(
    job: JobDir | None,
    record: JobRecord | None,
    heartbeats: Mapping[int, Heartbeat],
    resources: Mapping[str, Any] | None,
    now: float,
    state: str,
) -> list[dict[str, Any]]:
    """Return one row per rank. `resources` has the CPU and memory use of each rank; None if not measured."""
    if job is None:
        return []
    uses, logs = resources["ranks"] if resources else {}, log_attempts(job)
    rows = []
    for rank in range(record.world_size if record else len(heartbeats)):
        attempt, heartbeat, ended = records_of_rank(job, record, rank, heartbeats, logs, state)
        age = heartbeat.seconds_since("time", now) if heartbeat else None
        phase, activity = phase_of_rank(state, record.attempt if record else 0, heartbeat, ended)
        use = uses.get(str(rank)) or {}
        stale = state in ACTIVE and ended is None and age is not None and age > STALE_HEARTBEAT_SECONDS
        row = {
            "rank": rank,
            "phase": phase,
            "activity": activity,
            "step": ended.step if ended and ended.step is not None else heartbeat and heartbeat.step,
            "pid": heartbeat.process.pid if heartbeat else None,
            "attempt": attempt,
            "heartbeat_age_seconds": age,
            "stale": stale,
            **{key: use.get(key) for key in ("cpu_cores", "memory_bytes")},
            **{key: getattr(ended, key, None) for key in ("exit_code", "signal")},
            "message": ended.message if ended else "",
        }
        rows.append(row)
    return rows


def heartbeat_text(row: Mapping[str, Any], active: bool) -> str:
    """Format the age of a rank's heartbeat; "" if the job has ended or the rank has no heartbeat."""
    age = row["heartbeat_age_seconds"]
    return "" if age is None or not active else f"{amounts.elapsed(age)} ago"
