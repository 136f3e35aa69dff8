"""Reads the heartbeats and exit records of a job's ranks, and selects those that are current."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nbtrain.base.run_directory.jobstate import RUNNING, STARTING
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir


class RankRecords(NamedTuple):
    """The newest attempt of a rank, and its records."""

    attempt: int
    beat: Heartbeat | None
    """Newest heartbeat, with the step and tokens that JobRecord.placed() gives a rank that is still loading.

    None if the rank has no heartbeat, or if the current attempt is starting or running without one.
    """
    end: ExitRecord | None
    """Exit record of `attempt`; None if the rank has not ended in that attempt."""


def read_heartbeats(job: JobDir | None, record: JobRecord | None) -> dict[int, Heartbeat]:
    """Return {rank: newest heartbeat} of a job.

    Until a rank has loaded the checkpoint, its heartbeat shows the checkpoint's step.
    """
    found = {}
    for path in job.heartbeats() if job else ():
        if path.stem.isdigit() and (heartbeat := Heartbeat.read(path)) is not None:
            found[heartbeat.rank] = record.placed(heartbeat) if record else heartbeat
    return dict(sorted(found.items()))


def records_of_rank(
    job: JobDir,
    record: JobRecord | None,
    rank: int,
    heartbeats: Mapping[int, Heartbeat],
    logs: Mapping[int, Sequence[int]],
    state: str,
) -> RankRecords:
    """Return the current records of a rank.

    `heartbeats` comes from read_heartbeats(), and `logs` from log_attempts(): a rank that ended before its
    first heartbeat has only a log of that attempt. While ranks are starting or running, records of earlier
    attempts are ignored; between two attempts, the last one shows how the rank ended.
    """
    beat, current = heartbeats.get(rank), record.attempt if record else 0
    attempts = [*logs.get(rank, ())] + ([beat.attempt] if beat else [])
    if state in (STARTING, RUNNING):
        attempts.append(current)
        beat = None if beat and beat.attempt < current else beat
    attempt = max(attempts, default=current)
    return RankRecords(attempt, beat, ExitRecord.read(job.exit_record(rank, attempt)))
