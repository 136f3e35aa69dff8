"""The states of a job: their order, who may set them, and how LOST is seen.

QUEUED -> STARTING -> RUNNING -> SUCCEEDED
             ^           |  \\-> FAILED
             |           |   \\-> CANCELLED
             +-RESTARTING+
LOST: derived by readers, never written.
"""

from nbtrain.base import last_words
from nbtrain.base.files import READ_ONLY, is_read_only
from nbtrain.base.records import JobRecord
from nbtrain.base.rundir import JobDir
from nbtrain.base.workspace import display

QUEUED = "QUEUED"
STARTING = "STARTING"
RUNNING = "RUNNING"
RESTARTING = "RESTARTING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
LOST = "LOST"

MEANING = {
    QUEUED: "submitted; its supervisor has not started yet",
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

# A supervisor that has not written job.json after this long never started.
QUEUED_GRACE_SECONDS = 30.0
# A supervisor renews the time stamp of its job.json this often.
SIGN_OF_LIFE_SECONDS = 5.0
# A supervisor on another host whose job.json is older than this is dead; clocks of two hosts may differ by
# minutes.
SILENCE_SECONDS = 900.0


def observed_state(record: JobRecord, now: float, written_at: float | None = None) -> tuple[str, str | None]:
    """(state, cause) as a reader must see them: what was written, or LOST if its writer is dead.

    A supervisor on another host is judged by its silence alone: `written_at` is the time stamp of job.json.
    """
    supervisor = record.supervisor
    if record.state not in ACTIVE:
        return record.state, record.cause
    if supervisor is None:
        if now - record.created_at < QUEUED_GRACE_SECONDS:
            return record.state, record.cause
        return LOST, f"its supervisor did not start within {QUEUED_GRACE_SECONDS:.0f} s of the submission"
    if supervisor.alive():
        return record.state, record.cause
    if not supervisor.elsewhere():
        return LOST, (
            f"its supervisor (pid {supervisor.pid}) died without a word while the job was {record.state}"
            " (killed, out of memory, or the machine was restarted)"
        )
    if written_at is None or now - written_at < SILENCE_SECONDS:
        return record.state, record.cause
    return LOST, (
        f"nothing was heard for {now - written_at:.0f} s of its supervisor (pid {supervisor.pid} on "
        f"{supervisor.host}), while the job was {record.state}"
    )


def read_state(job: JobDir, now: float) -> tuple[str, str | None]:
    """observed_state of a job on disk. LOST without job.json: its submission never finished."""
    record = JobRecord.read(job.job_json)
    if record is None:
        return LOST, "the submission was cut off before job.json was written"
    state, cause = observed_state(record, now, job.job_json.stat().st_mtime)
    if state != LOST:
        return state, cause
    # Its supervisor may have recorded the end and left between our two reads, or recorded it elsewhere.
    record = JobRecord.read(job.job_json) or record
    state, cause = observed_state(record, now, job.job_json.stat().st_mtime)
    if state == LOST and (words := last_words.kept(record)) and words.state in FINAL:
        return words.state, words.cause
    if state == LOST and is_read_only(job.path):
        return state, f"{cause}; {display(job.run.path)} is {READ_ONLY}"
    return state, cause
