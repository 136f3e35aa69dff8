"""The states of a job: their order, who may set them, and how LOST is seen.

QUEUED -> STARTING -> RUNNING -> SUCCEEDED
             ^           |  \\-> FAILED
             |           |   \\-> CANCELLED
             +-RESTARTING+
LOST: derived by readers, never written.
"""

from nbtrain.base.records import JobRecord
from nbtrain.base.rundir import JobDir

QUEUED = "QUEUED"
STARTING = "STARTING"
RUNNING = "RUNNING"
RESTARTING = "RESTARTING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
LOST = "LOST"

MEANING = {
    QUEUED: "written down; its supervisor has not spoken yet",
    STARTING: "the supervisor runs and has started the ranks",
    RUNNING: "rank 0 trains",
    RESTARTING: "a rank failed; waiting before the next attempt",
    SUCCEEDED: "all tokens are done and saved",
    FAILED: "ended by an error; the cause says which",
    CANCELLED: "stopped on request; can be resumed",
    LOST: "its supervisor is gone without a word; can be resumed",
}
ACTIVE = frozenset({QUEUED, STARTING, RUNNING, RESTARTING})
FINAL = frozenset({SUCCEEDED, FAILED, CANCELLED, LOST})

# A supervisor that has not spoken after this long was never born.
QUEUED_GRACE_SECONDS = 30.0


def observed_state(record: JobRecord, now: float) -> tuple[str, str | None]:
    """(state, cause) as a reader must see them: what was written, or LOST where its writer is dead."""
    if record.state not in ACTIVE:
        return record.state, record.cause
    if record.supervisor is None:
        if now - record.created_at < QUEUED_GRACE_SECONDS:
            return record.state, record.cause
        return LOST, f"its supervisor did not start within {QUEUED_GRACE_SECONDS:.0f} s of the submission"
    if record.supervisor.alive():
        return record.state, record.cause
    return LOST, (
        f"its supervisor (pid {record.supervisor.pid}) died without a word while the job was {record.state}"
        " (killed, out of memory, or the machine was restarted)"
    )


def read_state(job: JobDir, now: float) -> tuple[str, str | None]:
    """observed_state of a job on disk. A folder without job.json is a submission that never finished: LOST."""
    record = JobRecord.read(job.job_json)
    if record is None:
        return LOST, "the submission was cut off before job.json was written"
    state, cause = observed_state(record, now)
    if state == LOST and (last_word := JobRecord.read(job.job_json)) is not None:
        # Its supervisor may have written the end and left between our two looks.
        return observed_state(last_word, now)
    return state, cause
