"""Which attempt this rank belongs to, and its record in job.json, which says what changes from attempt to
attempt.

The environment carries names alone: NBTRAIN_JOB and NBTRAIN_ATTEMPT.
"""

import os

from nbtrain.base.errors import JobError
from nbtrain.base.records import AttemptRecord, JobRecord
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.attempt import attempt_record
from nbtrain.config.load import load_resolved


def find_job(run: RunDir) -> JobDir:
    """The job of this rank. Raises JobError if the run has none."""
    if job_id := os.environ.get("NBTRAIN_JOB"):
        return run.job(job_id)
    job = run.newest_job()
    if job is None:
        raise JobError(f"{run.path}: holds no job; `nbtrain submit RUN.yaml` makes one and starts it.")
    return job


def this_attempt_number() -> int:
    """Counted from 0, as for a rank that is started by hand."""
    return int(os.environ.get("NBTRAIN_ATTEMPT", "0"))


def this_attempt(run: RunDir) -> AttemptRecord:
    """The record of this rank's attempt; as the configuration says, for a rank that is started by hand."""
    number = this_attempt_number()
    record = JobRecord.read(find_job(run).job_json)
    found = record.attempt_record(number) if record else None
    return found or attempt_record(load_resolved(run.config_yaml), number)
