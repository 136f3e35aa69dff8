"""Requests and limits that make a run stop or save before it is finished.

A run is stopped or saved early for one of two reasons:

    Requests     a SIGTERM to this rank, or a request in control/request.json, which rank 0 reads
    ExitLimits   a job's limit in minutes or steps, as Megatron's --exit-duration-in-mins and --exit-interval
"""

import os
import signal
import time
from types import FrameType

from nbtrain.base import files
from nbtrain.base.run_directory.records import ControlRequest, JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.sections.schedule_section import BatchConfig
from nbtrain.parallel.agreement import LEAVE, NOTHING, SAVE, STOP
from nbtrain.train.health.attempt import this_attempt_number

ACTIONS = {"save": SAVE, "stop": STOP}


class Requests:
    """Pending requests to this rank, from SIGTERM and control/request.json.

    wish() returns the request with the highest priority (STOP before SAVE). The ranks then agree on the
    highest of all ranks.
    """

    def __init__(self, job: JobDir, rank: int):
        self.limit = ""
        """Message that names the limit at which the job stopped by itself (ExitLimits); "" if it did not."""
        self.job = job
        self._reads_file = rank == 0
        self._terminated = False
        self._request: ControlRequest | None = None
        acknowledged = files.read_json(job.control_ack) if self._reads_file else None
        self._done_id = acknowledged["request_id"] if acknowledged else 0
        signal.signal(signal.SIGTERM, self._on_terminate)

    def wish(self) -> int:
        """Return NOTHING, SAVE or STOP; LEAVE is never requested from outside."""
        wanted = NOTHING
        if self._reads_file:
            request = ControlRequest.read(self.job.control_request)
            if request is not None and request.request_id > self._done_id:
                self._request = request
                wanted = ACTIONS[request.action]
        return STOP if self._terminated else wanted

    def acknowledge(self, step: int) -> None:
        """Record that the last request has been carried out. Only rank 0 calls it."""
        if self._request is None or self._request.request_id <= self._done_id:
            return
        self._done_id, action = self._request.request_id, self._request.action
        done = {"request_id": self._done_id, "action": action, "step": step, "time": time.time()}
        files.write_json(self.job.control_ack, done)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True


class ExitLimits:
    """The limits of one job, which is `age_seconds` old at the start.

    At a limit, the job validates if a validation is due, saves and stops; another job can then continue the
    run. This helps on machines with a time limit per job, and for runs whose results are inspected at
    intervals.
    """

    def __init__(self, batch: BatchConfig, age_seconds: float):
        self._interval_steps = batch.exit_interval_steps
        self._minutes = batch.exit_duration_minutes
        self._began = time.monotonic() - age_seconds

    def wish(self) -> int:
        """Return LEAVE once the job has reached its maximum duration, otherwise NOTHING. The ranks' clocks
        differ, so the ranks must agree on the result.
        """
        over = self._minutes is not None and time.monotonic() - self._began >= 60 * self._minutes
        return LEAVE if over else NOTHING

    def ends_at(self, step: int) -> bool:
        """Return whether the job stops after `step` because of exit_interval_steps; the same on all ranks."""
        return self._interval_steps is not None and step % self._interval_steps == 0

    def cause(self, step: int) -> str:
        """Return a message that names the limit that ends the job after `step`; "" if no limit does."""
        if self.ends_at(step):
            return f"batch.exit_interval_steps = {self._interval_steps} is reached"
        return f"batch.exit_duration_minutes = {self._minutes:g} is reached" if self.wish() == LEAVE else ""


def job_age_seconds(job: JobDir) -> float:
    """Return the job's age in seconds, over all its attempts, without the time in which it was paused or
    waited for its devices; 0 for a manually started rank.
    """
    record = JobRecord.read(job.job_json) if "NBTRAIN_JOB" in os.environ else None
    if record is None or not record.started_at:
        return 0.0
    attempt = record.attempt_record(this_attempt_number())
    paused_seconds = attempt.paused_seconds if attempt else 0.0
    return max(0.0, record.seconds_since("started_at") - paused_seconds)
