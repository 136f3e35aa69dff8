"""The job and attempt of this rank, and its final report to the wrapper process that started it.

The environment carries only names: NBTRAIN_JOB, NBTRAIN_ATTEMPT, and NBTRAIN_EXIT_FD for the wrapper's pipe.
Everything that changes between attempts is in job.json.
"""

import json
import os

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.config.load.attempt import attempt_record


def find_job(run: RunDir) -> JobDir:
    """Return the job of this rank. Raises JobError if the run has none."""
    if job_id := os.environ.get("NBTRAIN_JOB"):
        return run.job(job_id)
    job = run.newest_job()
    if job is None:
        raise JobError(
            f"{run.path}: this run has no job. Run `nbtrain submit RUN.yaml`, which creates and starts a job."
        )
    return job


def this_attempt_number() -> int:
    """Return the number of this attempt, from 0; 0 for a rank that was started manually."""
    return int(os.environ.get("NBTRAIN_ATTEMPT", "0"))


def this_attempt(run: RunDir) -> AttemptRecord:
    """Return the record of this rank's attempt. A manually started rank has no record, so one is built from
    the configuration.
    """
    number = this_attempt_number()
    record = JobRecord.read(find_job(run).job_json)
    found = record.attempt_record(number) if record else None
    return found or attempt_record(load_resolved(run.config_yaml), number)


def report_outcome(outcome: str, step: int | None, message: str, detail: str = "", error: str = "") -> None:
    """Send outcome, step, message, detail and error (see records.ExitRecord) to the wrapper as one line of
    JSON.

    A rank that is killed cannot report its outcome. Without a wrapper, this function does nothing, because
    the message is in the log.
    """
    number = os.environ.get("NBTRAIN_EXIT_FD")
    if number is None:
        return
    word = {"outcome": outcome, "step": step, "message": message, "detail": detail, "error": error}
    with os.fdopen(int(number), "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(word) + "\n")
