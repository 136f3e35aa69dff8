"""Actions on a job from any process: stop, pause, request a checkpoint, wait for its end, clean up after it.

The job's backend reaches the job (attempt/backend.py).
"""

import functools
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.jobstate import ACTIVE, FAILED, LOST, QUEUED, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.observed_state import CUT_OFF, ENGINES, at_rest
from nbtrain.base.run_directory.records import ControlRequest, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.load import load_resolved
from nbtrain.jobs.attempt import leftovers
from nbtrain.jobs.attempt.backend import backend_of_job
from nbtrain.jobs.attempt.phases import stop_patience_seconds
from nbtrain.jobs.attempt.ranks import Patience
from nbtrain.jobs.checks.existing_run import more_to_train
from nbtrain.jobs.machine import processes
from nbtrain.monitor.status.resume_start import measure_again, only_measured, resume_start

POLL_SECONDS = 0.1
SLOW_POLL_SECONDS = 1.0
# A supervisor renews job.json every 5 s; on a network disk, others may see the new time stamp late.
UNHEARD_SECONDS = 60.0
# Time that a supervisor needs on a busy machine, in addition to shutdown_timeout_seconds.
SUPERVISOR_SECONDS = 60.0
# Limit for one submission, which calls git, the GPU driver and a busy disk.
SUBMISSION_SECONDS = 60.0
# An operator needs a second or two to report that it holds a job without ranks.
ENGINE_SECONDS = 15.0
# Seconds from a supervisor's last check for a pause until it has left its allocation, on a network disk.
LEAVING_SECONDS = 5.0


Action = TypeVar("Action", bound=Callable[..., Any])


def by_its_owner(action: Action) -> Action:
    """Wrap an action so that a PermissionError becomes a JobError that names the run's owner."""

    @functools.wraps(action)
    def wrapped(subject: JobDir | RunDir, *arguments: Any, **named: Any) -> Any:
        try:
            return action(subject, *arguments, **named)
        except PermissionError as error:
            run = subject.run if isinstance(subject, JobDir) else subject
            owner = files.user_name(run.path.stat().st_uid)
            raise JobError(
                f"{display(run.path)}: the run belongs to {owner}, and this user may not act on it: "
                f"{error.strerror}. Ask {owner}, or use that account."
            ) from error

    return cast(Action, wrapped)


@by_its_owner
def cancel(job: JobDir, now: bool = False, wait_seconds: float | None = None) -> tuple[str, str | None]:
    """Stop a job and wait until none of its processes is left; return its (state, cause).

    The ranks save a checkpoint and leave. After `backend.shutdown_timeout_seconds`, or twice the run's
    longest save if that is longer, ranks are killed unless they still save. `now` kills them at once; a
    supervisor on another host that has shown no sign of life for a minute then counts as dead. A job that has
    ended is not changed. For a LOST job, whose supervisor is gone, the remaining processes are ended in the
    same way. `wait_seconds` None waits as long as the supervisor may take.

    Raises JobError if the job is still there after `wait_seconds`.
    """
    if _cut_off_unwritten(job, wait_seconds):
        return LOST, CUT_OFF
    backend, began = backend_of_job(job), time.monotonic()
    end_cut_off(job)
    state, cause = backend.status(job)
    if state in ACTIVE:
        heard = job.job_json.stat().st_mtime
        if backend.cancel(job, now or not backend.capabilities.stop_in_order):
            if now:
                give_up_silent(job, heard)
            state, cause = _until_stopped(job, ACTIVE, wait_seconds)
        else:
            state, cause = backend.status(job)
    if state in ACTIVE:
        raise JobError(
            f"{display(job.run.path)}: job {job.job_id} was asked to stop {time.monotonic() - began:.0f} s "
            f"ago and is still {state}; {_harder(job, state, now)}"
        )
    backend.finish(job, now)
    return state, cause


def _until_stopped(
    job: JobDir, while_in: Collection[str], wait_seconds: float | None
) -> tuple[str, str | None]:
    """Return (state, cause) once the state is not in `while_in`, or after `wait_seconds`.

    If `wait_seconds` is None, it waits as long as the supervisor allows the ranks for saving, and longer if
    they are still saving then.
    """
    backend, heartbeats = backend_of_job(job), job.heartbeats()
    if wait_seconds is None:
        config = load_resolved(job.run.config_yaml)
        patience = Patience(heartbeats, stop_patience_seconds(job.run, config) + SUPERVISOR_SECONDS)
    else:
        patience = Patience((), wait_seconds)
    while True:
        state, cause = backend.status(job)
        if state not in while_in or patience.over():
            return state, cause
        time.sleep(POLL_SECONDS)


def _harder(job: JobDir, state: str, now: bool) -> str:
    """Return why a job has not ended although a stop was requested, and which command ends it."""
    record, name = JobRecord.read(job.job_json), job.run.name
    if not now and state not in (QUEUED, SUSPENDED):
        return f"it may still be saving; `nbtrain cancel --now {name}` kills it."
    if not now and record and record.backend in ENGINES:
        return (
            "none of its ranks runs, so nothing is saved. It ends when it is started again; another "
            f"`nbtrain cancel {name}` makes its scheduler end it."
        )
    if not now:
        return f"its supervisor does not answer. Try `nbtrain cancel --now {name}`."
    if record is None or record.supervisor is None:
        return f"its supervisor has not started. `nbtrain status {name}` says what it waits for."
    pid, host = record.supervisor.pid, record.supervisor.host
    return (
        f"its supervisor does not answer. `kill -9 {pid}` on {host} ends it; "
        f"`nbtrain cancel --now {name}` then ends its ranks."
    )


def give_up_silent(job: JobDir, heard: float) -> None:
    """Treat a supervisor on another host as dead if job.json is unchanged since `heard` for too long."""
    record, backend = JobRecord.read(job.job_json), backend_of_job(job)
    supervisor = record.supervisor if record and record.backend not in ENGINES else None
    if supervisor is None or not supervisor.elsewhere():
        return
    deadline = time.monotonic() + UNHEARD_SECONDS
    while backend.status(job)[0] in ACTIVE and job.job_json.stat().st_mtime == heard:
        if time.monotonic() >= deadline:
            files.write_json(job.control_given_up, {"seconds": UNHEARD_SECONDS, "time": time.time()})
            return
        time.sleep(POLL_SECONDS)


def end_cut_off(job: JobDir) -> bool:
    """Mark a job as FAILED if its submission was cut off before it reached a supervisor or scheduler.

    Returns whether it was. submit() holds the run's lock until the job has reached one of them. A supervisor
    that starts late reads this state and leaves.
    """

    def cut_off() -> JobRecord | None:
        record = JobRecord.read(job.job_json)
        waits = record and record.state == QUEUED and not record.supervisor and not job.handle_json.exists()
        return record if waits else None

    if cut_off() is None:
        return False
    with job.run.locked(blocking=False) as taken:
        if not taken or (record := cut_off()) is None:
            return False
        record.state, record.cause = FAILED, "its submission was cut off before its supervisor started"
        record.mark("ended_at")
        record.write(job.job_json)
    return True


def _cut_off_unwritten(job: JobDir, wait_seconds: float | None) -> bool:
    """Return whether the submission was interrupted before job.json; wait for one that is still writing.

    submit() holds the run's lock while it writes. Raises JobError if it does not finish in time.
    """
    began = time.monotonic()
    while not job.job_json.exists():
        with job.run.locked(blocking=False) as taken:
            # The submission may have ended between the two looks.
            if taken and not job.job_json.exists():
                return True
        if time.monotonic() - began >= (SUBMISSION_SECONDS if wait_seconds is None else wait_seconds):
            raise JobError(
                f"{display(job.run.path)}: job {job.job_id} is being submitted by another process; try again."
            )
        time.sleep(POLL_SECONDS)
    return False


def advice_to_resume(run: RunDir) -> str:
    """Return one sentence that says how `nbtrain resume` continues a run that has stopped."""
    if only_measured(run):
        return f"{measure_again(run.name)}."
    start = resume_start(run)
    does = "starts from the beginning" if start.step is None else "continues from its newest checkpoint"
    if start.torn:
        does = "finds no complete checkpoint to continue from"
    return f"`nbtrain resume {run.name}` {does}."


def _instead(job: JobDir, state: str, what: str) -> str:
    """Return two sentences: why a job that has ended cannot do this, and which command to run instead."""
    if state != SUCCEEDED:
        return f"only an active job can {what}. {advice_to_resume(job.run)}"
    config = load_resolved(job.run.config_yaml)
    if config.mode != "full":
        return f"it has finished its work and can no longer {what}."
    return (
        f"all its {amounts.counted(config.train_steps, 'step')} are trained, so it can no longer "
        f"{what}. To continue training: {more_to_train(job.run, config)}."
    )


def ask_devices(job: JobDir, devices: int | None) -> None:
    """Set the number of devices that the next attempt may use (backend.elastic); with None, the supervisor
    counts them.
    """
    files.write_json(job.control_devices, {"devices": devices, "time": time.time()})


def asked_devices(job: JobDir) -> int | None:
    """Return the number that ask_devices() set last; None if there is no request, or it was withdrawn."""
    asked = files.read_json(job.control_devices)
    return asked["devices"] if asked else None


def ask_pause(job: JobDir, pause: bool) -> None:
    """Request that the job pauses, or withdraw that request."""
    files.write_json(job.control_pause, {"pause": pause, "time": time.time()})


def asked_pause(job: JobDir) -> bool:
    """Return whether the last ask_pause() requested a pause."""
    asked = files.read_json(job.control_pause)
    return bool(asked and asked["pause"])


def ask_priority(job: JobDir, priority: int) -> None:
    """Set the job's priority in the queue, instead of backend.priority."""
    files.write_json(job.control_priority, {"priority": priority, "time": time.time()})


def asked_priority(job: JobDir) -> int | None:
    """Return the priority that ask_priority() set last; None if there was no request."""
    asked = files.read_json(job.control_priority)
    return asked["priority"] if asked else None


@by_its_owner
def pause(job: JobDir, wait_seconds: float | None = None) -> tuple[str, str | None]:
    """Have a job save, end its ranks and wait; returns its (state, cause), SUSPENDED unless it ended first.

    unpause() continues the same job. A scheduler takes the job's devices once it has saved, or at once if its
    supervisor has not started; the state is QUEUED if the scheduler has not reported the pause after
    ENGINE_SECONDS.
    `wait_seconds` None waits as long as the supervisor may take. Raises JobError if the job is not active,
    saves nothing (mode: perf, eval) or is not paused in time.
    """
    backend, which = backend_of_job(job), f"{display(job.run.path)}: job {job.job_id}"
    began = time.monotonic()
    state, _ = backend.status(job)
    if state not in ACTIVE:
        raise JobError(f"{which} is {state}; {_instead(job, state, 'be paused')}")
    config, stop = load_resolved(job.run.config_yaml), f"`nbtrain cancel {job.run.name}` stops it."
    if config.mode != "full":
        raise JobError(
            f"{which} runs with mode: {config.mode}, which saves nothing and would start from the "
            f"beginning. {stop}"
        )
    if not backend.capabilities.pause:
        raise JobError(f"{which} runs on a backend that cannot pause it. {stop}")
    ask_pause(job, True)
    # A job in a scheduler's queue has no supervisor that could save.
    gone = {SUSPENDED, QUEUED} if config.backend.kind in ENGINES else {SUSPENDED}
    state, _ = _until_stopped(job, ACTIVE - gone, wait_seconds)
    if state in ACTIVE - gone:
        raise JobError(
            f"{which} was asked to pause {time.monotonic() - began:.0f} s ago and is still {state}. It "
            f"pauses once its ranks have saved; {stop}"
        )
    if state in ACTIVE:
        backend.pause(job)
        deadline = time.monotonic() + ENGINE_SECONDS
        while backend.status(job)[0] == QUEUED and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return backend.status(job)


@by_its_owner
def unpause(job: JobDir) -> None:
    """Continue a paused job, and wait until its supervisor has read the request. Raises JobError."""
    backend = backend_of_job(job)
    # The scheduler is called first: if it does not answer, the job is still paused and can be resumed later.
    backend.unpause(job)
    leaves = backend.capabilities.pause_ends_allocation and backend.status(job)[0] not in (QUEUED, SUSPENDED)
    ask_pause(job, False)
    began = time.monotonic()
    while (waited := time.monotonic() - began) < SUPERVISOR_SECONDS:
        state, record = backend.status(job)[0], JobRecord.read(job.job_json)
        if record is not None and at_rest(record):
            # Its supervisor had read the pause before the request was withdrawn.
            backend.unpause(job)
            leaves = False
        elif state != SUSPENDED and not (leaves and waited < LEAVING_SECONDS):
            return
        time.sleep(POLL_SECONDS)


@by_its_owner
def request_save(job: JobDir, wait_seconds: float | None = None) -> int | None:
    """Ask a running job for a checkpoint at its next step; the job continues.

    With `wait_seconds`, wait for the answer and return its step. Raises JobError if the job is not active,
    waits in a queue, saves nothing (mode: perf, eval), or has not saved in that time.
    """
    backend, which = backend_of_job(job), f"{display(job.run.path)}: job {job.job_id}"
    state, cause = backend.status(job)
    before, done = ControlRequest.read(job.control_request), files.read_json(job.control_ack)
    if state in ACTIVE and (mode := load_resolved(job.run.config_yaml).mode) != "full":
        raise JobError(f"{which} runs with mode: {mode}, which saves nothing.")
    if state == SUSPENDED:
        raise JobError(f"{which} is paused; it has saved already. {advice_to_resume(job.run)}")
    if state == QUEUED:
        waits = f": {cause}" if cause else ""
        raise JobError(f"{which} is QUEUED{waits}. None of its ranks runs, so nothing can be saved yet.")
    if state in ACTIVE and not backend.capabilities.save:
        raise JobError(f"{which} runs on a backend that cannot ask it to save.")
    if state not in ACTIVE or not backend.save(job):
        raise JobError(f"{which} is {state}; {_instead(job, state, 'save')}")
    if wait_seconds is None:
        return None
    # An attempt removes the request of the attempt before it, but keeps that one's answer.
    known = max(before.request_id if before else 0, done["request_id"] if done else 0)
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        answer = files.read_json(job.control_ack)
        if answer is not None and answer["request_id"] > known:
            return answer["step"]
        if backend.status(job)[0] not in ACTIVE:
            break
        time.sleep(POLL_SECONDS)
    state, cause = backend.status(job)
    why = f": {cause}" if cause else "."
    raise JobError(f"{which} did not save within {wait_seconds:g} s; it is {state}{why}")


def wait(
    job: JobDir,
    timeout_seconds: float | None = None,
    on_change: Callable[[str, str | None], None] | None = None,
) -> tuple[str, str | None]:
    """Return (state, cause) at the job's end, or the current ones after `timeout_seconds`.

    `on_change` is called with each new state and its cause, first with the current one.
    """
    backend = backend_of_job(job)
    started = time.monotonic()
    before = None
    while True:
        state, cause = backend.status(job)
        if on_change and state != before:
            on_change(state, cause)
        before = state
        elapsed = time.monotonic() - started
        if state not in ACTIVE or (timeout_seconds is not None and elapsed >= timeout_seconds):
            return state, cause
        # Poll fast for a job that is starting, slowly for a job that runs for days.
        pause = POLL_SECONDS if elapsed < 60 else SLOW_POLL_SECONDS
        left = pause if timeout_seconds is None else timeout_seconds - elapsed
        time.sleep(max(0.01, min(pause, left)))


@by_its_owner
def clean(run: RunDir, dry_run: bool = False) -> list[str]:
    """Remove what failed and killed jobs left in a run directory; return what was removed, one line each.

    That is: processes of jobs that have ended, temporary files, torn checkpoints, cut-off submissions. Logs,
    records and complete checkpoints stay. `dry_run` removes nothing. Raises JobError while a job is active.
    """
    with run.locked(blocking=False) as taken:
        newest = run.newest_job()
        if not taken or (newest and backend_of_job(newest).status(newest)[0] in ACTIVE):
            raise JobError(
                f"{display(run.path)}: a job is active; it cleans up after itself. "
                f"`nbtrain cancel {run.name}` stops it."
            )
        pids = processes.marked_pids(run.job_ids())
        torn = "torn checkpoint"
        if newest_checkpoint_step(run) is None:
            torn += "; no complete checkpoint is left, so this is the last copy of the training"
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
