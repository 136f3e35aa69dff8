"""Status of one job: its size, its times, and how much of its time was a pause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.records import JobRecord
from nbtrain.monitor.life import elapsed_words, paused_seconds


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Size and times of a job, from its record and its events."""

    job_id: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    restarts: int
    resumed_from_step: int | None
    """Step of the checkpoint that the newest attempt started from; None if it began at step 0."""
    world_size: int
    backend: str
    command: list[str]
    """Command of each rank: the arguments of Python, to which the run directory is appended."""
    elapsed_seconds: float
    """Time since the start, or since the submission of a job that has not started; until its end or now."""
    paused_seconds: float
    """Part of elapsed_seconds in which the job was paused."""

    @property
    def ranks_text(self) -> str:
        return amounts.counted(self.world_size, "rank")

    @property
    def restarts_text(self) -> str:
        return amounts.counted(self.restarts, "restart")

    @property
    def elapsed_text(self) -> str:
        """Elapsed time as text, with the part of it that was a pause."""
        return elapsed_words(self.elapsed_seconds, self.paused_seconds)


def job_status(record: JobRecord, active: bool, events: Sequence[Mapping[str, Any]], now: float) -> JobStatus:
    """Return the status of a job. If the job is not active, the record includes its end."""
    begin = "started_at" if record.started_at else "created_at"
    elapsed = record.seconds_since(begin, now) if active else record.seconds_between(begin, "ended_at")
    return JobStatus(
        job_id=record.job_id,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        attempt=record.attempt,
        restarts=record.restarts,
        resumed_from_step=record.resumed_from_step,
        world_size=record.world_size,
        backend=record.backend,
        command=record.command,
        elapsed_seconds=elapsed,
        paused_seconds=paused_seconds(events, record.created_at, now if active else record.ended_at or now),
    )
