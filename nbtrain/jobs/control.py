"""Acting on a job from any process: stop it, ask for a checkpoint, wait for its end, clean up after it.

A job is reached through its supervisor, whose identity (pid, start time, boot) stands in job.json, so that a
recycled pid is never signalled. Where the supervisor is gone, what it left is found by the job's marker.
"""

import os
import signal
import time
from collections.abc import Callable

from nbtrain.base import files
from nbtrain.base.checkpoint_files import newest_checkpoint_step
from nbtrain.base.errors import JobError
from nbtrain.base.jobstate import ACTIVE, LOST, read_state
from nbtrain.base.records import ControlRequest, JobRecord
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.config.load import load_resolved
from nbtrain.jobs.supervisor import leftovers, processes

POLL_SECONDS = 0.1
SLOW_POLL_SECONDS = 1.0
# A submission whose supervisor is just coming up can be signalled as soon as it has said who it is.
SUPERVISOR_START_SECONDS = 30.0
# What a supervisor takes beyond shutdown_timeout_seconds, on a busy machine.
SUPERVISOR_SECONDS = 60.0
# Ranks of a lost job were told by the kernel to save and leave.
LOST_GRACE_SECONDS = 5.0


def cancel(job: JobDir, now: bool = False, wait_seconds: float | None = None) -> tuple[str, str | None]:
    """Stop a job and wait until nothing of it is left; returns its (state, cause).

    The ranks save a checkpoint and leave; those that have not after `backend.shutdown_timeout_seconds` are
    killed. `now` kills them at once. A job that has ended is left as it is. Of a LOST job, whose supervisor
    is gone, leftover processes are ended. `wait_seconds` None waits as long as the supervisor may take.

    Raises JobError where the job is still there after `wait_seconds`.
    """
    state, cause = read_state(job, time.time())
    if state in ACTIVE:
        if _signal_supervisor(job, signal.SIGQUIT if now else signal.SIGTERM):
            wait_seconds = _patience(job) if wait_seconds is None else wait_seconds
            state, cause = wait(job, wait_seconds)
        else:
            state, cause = read_state(job, time.time())
    if state in ACTIVE:
        raise JobError(
            f"{display(job.run.path)}: job {job.job_id} was asked to stop and is still {state} after "
            f"{wait_seconds:g} s; it goes on saving. `nbtrain cancel --now {job.run.name}` kills it."
        )
    if state == LOST:
        processes.send(processes.marked_pids([job.job_id]), signal.SIGTERM)
        processes.end_marked([job.job_id], 0.0 if now else LOST_GRACE_SECONDS)
    else:
        _wait_for_supervisor(job)
    return state, cause


def ask_devices(job: JobDir, devices: int | None) -> None:
    """Say how many devices the next attempt may take (backend.elastic); None: it counts them itself again."""
    files.write_json(job.control_devices, {"devices": devices, "time": time.time()})


def asked_devices(job: JobDir) -> int | None:
    """What ask_devices() said last; None where nothing holds."""
    asked = files.read_json(job.control_devices)
    return asked["devices"] if asked else None


def request_save(job: JobDir, wait_seconds: float | None = None) -> int | None:
    """Ask a running job for a checkpoint at its next step; it goes on.

    With `wait_seconds` the answer is waited for and its step returned. Raises JobError where the job is not
    active, saves nothing (mode: perf, eval), or has not saved in that time.
    """
    state, _ = read_state(job, time.time())
    before = ControlRequest.read(job.control_request)
    if state in ACTIVE and (mode := load_resolved(job.run.config_yaml).mode) != "full":
        raise JobError(
            f"{display(job.run.path)}: job {job.job_id} runs with mode: {mode}, which saves nothing."
        )
    if state not in ACTIVE or not _signal_supervisor(job, signal.SIGUSR1):
        raise JobError(
            f"{display(job.run.path)}: job {job.job_id} is {state}; only an active job can save. "
            f"`nbtrain resume {job.run.name}` goes on from its newest checkpoint."
        )
    if wait_seconds is None:
        return None
    known = before.request_id if before else 0
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        answer = _acknowledged(job)
        if answer is not None and answer["request_id"] > known:
            return answer["step"]
        if read_state(job, time.time())[0] not in ACTIVE:
            break
        time.sleep(POLL_SECONDS)
    state, cause = read_state(job, time.time())
    raise JobError(
        f"{display(job.run.path)}: job {job.job_id} did not save within {wait_seconds:g} s; it is {state}"
        + (f": {cause}" if cause else ".")
    )


def wait(
    job: JobDir,
    timeout_seconds: float | None = None,
    on_change: Callable[[str, str | None], None] | None = None,
) -> tuple[str, str | None]:
    """(state, cause) at the job's end, or as they are when `timeout_seconds` have passed.

    `on_change` is called with each new state and its cause, first with the one found.
    """
    started = time.monotonic()
    told = None
    while True:
        state, cause = read_state(job, time.time())
        if on_change and state != told:
            on_change(state, cause)
        told = state
        elapsed = time.monotonic() - started
        if state not in ACTIVE or (timeout_seconds is not None and elapsed >= timeout_seconds):
            return state, cause
        # Quick at first, for those who wait for a start; slow later, for those who wait for days.
        pause = POLL_SECONDS if elapsed < 60 else SLOW_POLL_SECONDS
        left = pause if timeout_seconds is None else timeout_seconds - elapsed
        time.sleep(max(0.01, min(pause, left)))


def clean(run: RunDir, dry_run: bool = False) -> list[str]:
    """Remove what failed and killed jobs left in a run directory; returns it, one line each.

    That is: processes of jobs that have ended, temporary files, torn checkpoints, cut-off submissions. Logs,
    records and whole checkpoints stay. `dry_run` removes nothing. Raises JobError while a job is active.
    """
    with run.locked(blocking=False) as taken:
        newest = run.newest_job()
        if not taken or (newest and read_state(newest, time.time())[0] in ACTIVE):
            raise JobError(
                f"{display(run.path)}: a job is active; it cleans up after itself. "
                f"`nbtrain cancel {run.name}` stops it."
            )
        pids = processes.marked_pids(run.job_ids())
        torn = "torn checkpoint"
        if newest_checkpoint_step(run) is None:
            torn += "; no whole one is left, so this is the last copy of what it holds"
        found = [
            *((path, "temporary file") for path in leftovers.temporaries(run)),
            *((path, torn) for path in leftovers.torn_checkpoints(run)),
            *((path, "submission that was cut off") for path in leftovers.cut_off_submissions(run)),
        ]
        lines = [f"process {pid}: left by an ended job" for pid in pids]
        lines += [f"{path.relative_to(run.path)}: {what}" for path, what in found]
        if not dry_run:
            processes.end_marked(run.job_ids(), 0.0)
            for path, _ in found:
                leftovers.remove(path)
        return lines


def _patience(job: JobDir) -> float:
    """The longest an orderly stop takes: the ranks' time to save, and the supervisor's to kill and tell."""
    return load_resolved(job.run.config_yaml).backend.shutdown_timeout_seconds + SUPERVISOR_SECONDS


def _acknowledged(job: JobDir) -> dict | None:
    return files.read_json(job.control_ack)


def _signal_supervisor(job: JobDir, number: int) -> bool:
    """Signal the supervisor; False where it is gone. Waits for one that is just starting."""
    deadline = time.monotonic() + SUPERVISOR_START_SECONDS
    while True:
        record = JobRecord.read(job.job_json)
        if record is None:
            return False
        if record.supervisor is not None:
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    if record.state not in ACTIVE or not record.supervisor.alive():
        return False
    processes.send([record.supervisor.pid], number)
    return True


def _wait_for_supervisor(job: JobDir, seconds: float = 10.0) -> None:
    """The supervisor lives a moment longer than its last word, and holds the lock until it is gone."""
    record = JobRecord.read(job.job_json)
    deadline = time.monotonic() + seconds
    while record and record.supervisor and record.supervisor.alive() and time.monotonic() < deadline:
        if record.supervisor.pid == os.getpid():
            return
        time.sleep(0.02)
