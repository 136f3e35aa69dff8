"""State of a job as a reader sees it, from its records: how LOST is detected, and what a scheduler adds.

For a job of a scheduler (Slurm, Kubernetes), the job's own records take precedence, then the scheduler's last
response (engine.json), then the absence of a response. An unreachable scheduler is a flag in addition to the
state, not a state.
"""

from typing import TYPE_CHECKING

from nbtrain.base import files
from nbtrain.base.files import READ_ONLY, is_read_only
from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    CANCELLED,
    FAILED,
    FINAL,
    LOST,
    QUEUED,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, Preemption, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display

if TYPE_CHECKING:
    from nbtrain.base.run_directory.node_records import EngineWord

CUT_OFF = "the submission was interrupted before job.json was written"
# A supervisor that has not written job.json after this long never started.
QUEUED_GRACE_SECONDS = 30.0
# A supervisor renews the time stamp of its job.json this often.
SIGN_OF_LIFE_SECONDS = 5.0
# A supervisor on another host whose job.json is older than this is dead; clocks of two hosts may differ by
# minutes.
SILENCE_SECONDS = 900.0
# A supervisor is dead if its scheduler reports that the job has ended, and its job.json was older than this
# at the time of the request. Both times are time stamps on the shared disk, so the hosts' clocks do not
# matter.
ENGINE_SILENCE_SECONDS = 30.0
# Backends whose scheduler starts the supervisor on another machine, possibly much later.
ENGINES = frozenset({"slurm", "kubernetes"})


def ranks_run(state: str, heartbeat: Heartbeat) -> bool:
    """Return whether the rank that wrote the heartbeat is running, as far as it is known.

    A job that is paused, is waiting or is between two attempts has no ranks.
    The process of a rank is checked only on the rank's host.
    """
    return state in (STARTING, RUNNING) and not heartbeat.process.gone()


def preempted_words(preemption: Preemption) -> str:
    """Return a text that says why a job is QUEUED after a preemption, and how many steps it lost."""
    since = amounts.moment(preemption.preempted_at)
    lost = amounts.counted(preemption.lost_steps, "step")
    return f"preempted, waiting in the queue since {since}, lost {lost}; {preemption.notice}"


def at_rest(record: JobRecord) -> bool:
    """Return whether the job is paused and has released its allocation.

    Such a job has no process that could be lost.
    """
    return record.state == SUSPENDED and record.supervisor is None


def observed_state(record: JobRecord, now: float, written_at: float | None = None) -> tuple[str, str | None]:
    """Return (state, cause) for readers: the recorded state, or LOST if the supervisor is dead.

    A supervisor on another host is judged only by the age of job.json. `written_at` is the file's
    modification time.
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
            f"its supervisor (pid {supervisor.pid}) died without a message while the job was {record.state}"
            " (killed, out of memory, or the machine was restarted)"
        )
    if written_at is None or now - written_at < SILENCE_SECONDS:
        return record.state, record.cause
    return LOST, (
        f"no sign of life from its supervisor (pid {supervisor.pid} on {supervisor.host}) for "
        f"{now - written_at:.0f} s while the job was {record.state}"
    )


def state_with_engine(
    record: JobRecord,
    word: "EngineWord | None",
    silent_seconds: float,
    silent_when_asked: float | None = None,
) -> tuple[str, str | None]:
    """Return (state, cause) of a job that runs under a scheduler.

    `silent_seconds` is the age of job.json by the reader's clock, which may be minutes off.
    `silent_when_asked` is the number of seconds by which job.json is older than engine.json: at most 0 if the
    supervisor wrote after the scheduler responded. While the supervisor writes, its own state counts, except
    for a suspended job, whose supervisor does not write because it is stopped.
    """
    state, cause = record.state, record.cause
    if state not in ACTIVE or at_rest(record):
        return state, cause
    reported = word.state if word else None
    name = word.engine if word and word.engine else record.backend
    # Before the scheduler has given the job a name, only the scheduler is known.
    engine = name if " " in name else f"the {name} job"
    reason = word.reason if word else ""
    silent = silent_seconds if silent_when_asked is None else silent_when_asked
    denied = word is not None and (reported in FINAL or (word.seen and reported is None))
    if reported == SUSPENDED and silent > -ENGINE_SILENCE_SECONDS:
        return SUSPENDED, reason or f"{engine} is suspended"
    if state == QUEUED:
        return _before_its_supervisor(
            record, reported, engine, reason, denied and silent > QUEUED_GRACE_SECONDS
        )
    if silent >= ENGINE_SILENCE_SECONDS:
        if reported == QUEUED:
            return QUEUED, reason or f"{engine} is back in the queue"
        if reported == CANCELLED:
            return CANCELLED, f"{reason or f'{engine} was cancelled'}, while the job was {state}"
        if denied:
            why = reason or f"{engine} is no longer known to its scheduler"
            return LOST, f"its supervisor has been silent for {silent:.0f} s while the job was {state}; {why}"
    elif denied and silent > 0:
        # The supervisor may still write how the job ended.
        why = reason or f"{engine} is no longer known to its scheduler"
        return state, (
            f"{why}; its supervisor has been silent for {silent:.0f} s, and the job counts as LOST after "
            f"{ENGINE_SILENCE_SECONDS:.0f} s"
        )
    asked = f"the scheduler of {name}" if " " in name else name
    answers = word is not None and word.seen and silent_seconds - silent < SILENCE_SECONDS
    if silent_seconds > SILENCE_SECONDS and not answers:
        return LOST, (
            f"no sign of life from its supervisor for {silent_seconds:.0f} s while the job was {state}, and "
            f"{asked} does not answer"
        )
    return state, cause


def _before_its_supervisor(
    record: JobRecord, reported: str | None, engine: str, reason: str, denied: bool
) -> tuple[str, str | None]:
    """Return (state, cause) of a job whose supervisor has not started, from the scheduler's report.

    `denied` says whether the scheduler reports that the job has ended or does not know the job.
    """
    if reported in (CANCELLED, FAILED):
        how = f"{engine} was cancelled" if reported == CANCELLED else f"{engine} failed"
        return reported, reason or f"{how} before its supervisor started"
    if reported == SUCCEEDED and record.autotune == "tune":
        return reported, f"DeepSpeed's autotuner has ended; `nbtrain job {record.name}` says what it found"
    if reported == RUNNING and record.autotune != "none":
        return reported, "DeepSpeed's autotuner tries ZeRO stages and micro-batch sizes"
    if reported == SUCCEEDED:
        # A batch script that ends normally without a supervisor has trained nothing.
        return FAILED, f"{engine} has ended, and no supervisor has started; see logs/supervisor.log"
    if denied and record.started_at is not None:
        # The job was submitted to the scheduler, which would know it if it were still in its queue.
        known = f"{engine} is no longer known to its scheduler"
        return LOST, f"{known}, and nothing continues the job: {record.cause}"
    if denied:
        return LOST, f"{engine} is not known to its scheduler, and its supervisor never started"
    if record.waiting_preemption is None:
        return QUEUED, reason or record.cause
    # Until the scheduler takes the devices, it still reports the allocation as running.
    return QUEUED, "; ".join(filter(None, (record.cause, reason if reported == QUEUED else "")))


def _left_for_pause(job: JobDir, record: JobRecord) -> bool:
    """Return whether the supervisor of a Kubernetes job has left because the job is paused.

    This is known before the cluster reports that the job's pods have ended. The pause request counts only if
    it is older than job.json, which the supervisor writes before it exits: the supervisor may have missed a
    newer request.
    """
    if record.backend != "kubernetes" or record.state != QUEUED:
        return False
    asked = files.read_json(job.control_pause)
    return (
        asked is not None
        and asked["pause"]
        and job.control_pause.stat().st_mtime <= job.job_json.stat().st_mtime
    )


def _given_up(job: JobDir, supervisor: ProcessIdentity) -> str:
    """Return why a supervisor on another host counts as dead before its time-out; "" if it does not.

    A note in control/given_up.json records that the supervisor counts as dead. If the supervisor writes
    job.json after the note, it counts as alive again. It then finds the request to exit without saving.
    """
    note = files.read_json(job.control_given_up) if supervisor.elsewhere() else None
    if note is None or job.job_json.stat().st_mtime > job.control_given_up.stat().st_mtime:
        return ""
    return (
        f"its supervisor (pid {supervisor.pid} on {supervisor.host}) gave no sign of life within "
        f"{note['seconds']:.0f} s of the request to exit at once"
    )


def read_state(job: JobDir, now: float) -> tuple[str, str | None]:
    """Return (state, cause) of a job on disk.

    A submission writes job.json last. Without it, the job is LOST unless its folder got another file
    recently.
    """
    return read_job(job, now)[1:]


def read_job(job: JobDir, now: float) -> tuple[JobRecord | None, str, str | None]:
    """Return (record, state, cause) of a job on disk. The record is None without job.json.

    State and cause are the same as from read_state().
    """
    record = JobRecord.read(job.job_json)
    if record is None:
        if job.path.is_dir() and now - job.path.stat().st_mtime < QUEUED_GRACE_SECONDS:
            return None, QUEUED, "the job is being submitted"
        return None, LOST, CUT_OFF
    if record.backend in ENGINES:
        # Imported here, because the import takes 5 ms and a list of local runs does not need it.
        from nbtrain.base.run_directory.node_records import EngineWord

        word, written_at = EngineWord.read(job.engine_json), job.job_json.stat().st_mtime
        asked = job.engine_json.stat().st_mtime - written_at if word else None
        state, cause = state_with_engine(record, word, now - written_at, asked)
        if state == QUEUED and _left_for_pause(job, record):
            return record, SUSPENDED, record.cause
        return record, state, cause
    state, cause = observed_state(record, now, job.job_json.stat().st_mtime)
    if state in ACTIVE and record.supervisor and (why := _given_up(job, record.supervisor)):
        return record, LOST, f"{why}, while the job was {state}"
    if state != LOST:
        return record, state, cause
    # The supervisor may have written the end to job.json since the read above. If it could not write there,
    # it has written a final record to the temporary folder.
    record = JobRecord.read(job.job_json) or record
    state, cause = observed_state(record, now, job.job_json.stat().st_mtime)
    if state == LOST and (words := final_record.read(record)) and words.state in FINAL:
        return words, words.state, words.cause
    if state == LOST and is_read_only(job.path):
        cause = f"{cause}; {display(job.run.path)} is {READ_ONLY}"
    return record, state, cause
