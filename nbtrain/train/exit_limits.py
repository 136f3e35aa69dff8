"""When a job ends itself, before the run is done: after so many minutes, or at every so many steps.

As Megatron's --exit-duration-in-mins and --exit-interval. It validates where that is due, saves and stops, and another
job goes on from there: for queues that lend machines for a while, and for looking at a run now and then.
"""

import os
import time

from nbtrain.base.records import JobRecord
from nbtrain.base.rundir import JobDir
from nbtrain.config.schedule_section import BatchConfig
from nbtrain.parallel.wishes import LEAVE, NOTHING


class ExitLimits:
    """The limits of one job, which is `age_seconds` old."""

    def __init__(self, batch: BatchConfig, age_seconds: float):
        self._interval_steps = batch.exit_interval_steps
        self._minutes = batch.exit_duration_minutes
        self._began = time.monotonic() - age_seconds

    def wish(self) -> int:
        """LEAVE once the time is over. Clocks differ, so that the ranks must agree on it."""
        over = self._minutes is not None and time.monotonic() - self._began >= 60 * self._minutes
        return LEAVE if over else NOTHING

    def ends_at(self, step: int) -> bool:
        """Whether `step` is one to stop at; the same on all ranks."""
        return self._interval_steps is not None and step % self._interval_steps == 0

    def cause(self, step: int) -> str:
        """Which limit ends the job after `step`, or "" where none does."""
        if self.ends_at(step):
            return f"batch.exit_interval_steps = {self._interval_steps} is reached"
        return f"batch.exit_duration_minutes = {self._minutes:g} are over" if self.wish() == LEAVE else ""


def job_age_seconds(job: JobDir) -> float:
    """Since the job began, which may be some attempts ago; 0 for a rank that is started by hand."""
    record = JobRecord.read(job.job_json) if "NBTRAIN_JOB" in os.environ else None
    return record.seconds_since("started_at") if record and record.started_at else 0.0
