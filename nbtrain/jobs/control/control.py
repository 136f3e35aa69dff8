"""Actions on a job from any process: stop, pause, request a checkpoint, wait for its end, clean up after it.

The actions reach the job through its backend (attempt/backend.py).
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
# Seconds that a submission may take: it calls git and the GPU driver, and may wait for a busy disk.
SUBMISSION_SECONDS = 60.0
# Seconds to wait until a scheduler reports that a job without ranks is paused; an operator needs one or two.
ENGINE_SECONDS = 15.0
# Seconds from a supervisor's last check for a pause to the end of its allocation, on a network disk.
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
    """Stop a job and wait until all its processes have exited; return its (state, cause).

    The ranks save a checkpoint and exit. After `backend.shutdown_timeout_seconds`, or twice the run's longest
    save if that is longer, ranks are killed unless they are still saving. With `now`, they are killed at
    once, and a supervisor on another host that has shown no sign of life for a minute counts as dead. A job
    that has already ended keeps its state. For a LOST job, whose supervisor is gone, the remaining processes
    are ended in the same way. With `wait_seconds` None, this waits as long as the supervisor may take.

    Raises JobError if the job is still active after `wait_seconds`.
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
            f"{display(job.run.path)}: job {job.job_id} is still {state}, {time.monotonic() - began:.0f} s "
            f"after the stop request; {_harder(job, state, now)}"
        )
    backend.finish(job, now)
    return state, cause


def _until_stopped(
    job: JobDir, while_in: Collection[str], wait_seconds: float | None
) -> tuple[str, str | None]:
    """Return (state, cause) once the state is no longer in `while_in`, or after `wait_seconds`.

    With `wait_seconds` None, this waits as long as the supervisor gives the ranks to save, and longer if they
    are still saving then.
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
    """Return why a job has not ended after a stop was requested, and which command ends it."""
    record, name = JobRecord.read(job.job_json), job.run.name
    if not now and state not in (QUEUED, SUSPENDED):
        return f"it may still be saving; `nbtrain cancel --now {name}` kills it."
    if not now and record and record.backend in ENGINES:
        return (
            "none of its ranks is running, so nothing needs to be saved. It ends when its scheduler starts "
            f"it again; to end it now, run `nbtrain cancel {name}` again."
        )
    if not now:
        return f"its supervisor does not respond. Run `nbtrain cancel --now {name}`."
    if record is None or record.supervisor is None:
        return f"its supervisor has not started. `nbtrain status {name}` shows what the job is waiting for."
    pid, host = record.supervisor.pid, record.supervisor.host
    return (
        f"its supervisor does not respond. Run `kill -9 {pid}` on {host} to end the supervisor, then "
        f"`nbtrain cancel --now {name}` to end its ranks."
    )


def give_up_silent(job: JobDir, heard: float) -> None:
    """Declare a supervisor on another host dead if job.json does not change for UNHEARD_SECONDS.

    `heard` is the modification time of job.json when the caller last read it. control/given_up.json records
    the decision. Does nothing for a job that a scheduler runs.
    """
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
    """Mark a job as FAILED if its submission was interrupted before a supervisor or scheduler had the job.

    Returns whether the job was marked. submit() holds the run's lock until a supervisor or scheduler has the
    job. A supervisor that starts late reads this state and exits.
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
        record.state, record.cause = FAILED, "the submission was interrupted before the supervisor started"
        record.mark("ended_at")
        record.write(job.job_json)
    return True


def _cut_off_unwritten(job: JobDir, wait_seconds: float | None) -> bool:
    """Return whether the submission was interrupted before it wrote job.json.

    A submission that is still writing holds the run's lock; this waits until it releases the lock. Raises
    JobError if that takes too long.
    """
    began = time.monotonic()
    while not job.job_json.exists():
        with job.run.locked(blocking=False) as taken:
            # The submission may have ended between the two checks.
            if taken and not job.job_json.exists():
                return True
        if time.monotonic() - began >= (SUBMISSION_SECONDS if wait_seconds is None else wait_seconds):
            raise JobError(
                f"{display(job.run.path)}: job {job.job_id} is being submitted by another process; try again."
            )
        time.sleep(POLL_SECONDS)
    return False


def advice_to_resume(run: RunDir) -> str:
    """Return one sentence that says where `nbtrain resume` would continue a run that has stopped."""
    if only_measured(run):
        return f"{measure_again(run.name)}."
    start = resume_start(run)
    does = "starts from the beginning" if start.step is None else "continues from its newest checkpoint"
    if start.torn:
        does = "finds no complete checkpoint to continue from"
    return f"`nbtrain resume {run.name}` {does}."


def _instead(job: JobDir, state: str, what: str) -> str:
    """Return why a job that has ended cannot pause or save, and which command to run instead."""
    if state != SUCCEEDED:
        return f"only an active job can {what}. {advice_to_resume(job.run)}"
    config = load_resolved(job.run.config_yaml)
    if config.mode != "full":
        return f"it has finished and can no longer {what}."
    return (
        f"it has trained all its steps ({config.train_steps:,}) and can no longer {what}. To continue "
        f"training: {more_to_train(job.run, config)}."
    )


def ask_devices(job: JobDir, devices: int | None) -> None:
    """Request a number of devices for the job's next attempt (backend.elastic).

    With None, the request is withdrawn, and the supervisor counts the usable devices.
    """
    files.write_json(job.control_devices, {"devices": devices, "time": time.time()})


def asked_devices(job: JobDir) -> int | None:
    """Return the number of devices that ask_devices() last requested; None without a request."""
    asked = files.read_json(job.control_devices)
    return asked["devices"] if asked else None


def ask_pause(job: JobDir, pause: bool) -> None:
    """Request a pause of the job; with `pause` False, withdraw the request."""
    files.write_json(job.control_pause, {"pause": pause, "time": time.time()})


def asked_pause(job: JobDir) -> bool:
    """Return whether the last ask_pause() requested a pause."""
    asked = files.read_json(job.control_pause)
    return bool(asked and asked["pause"])


def ask_priority(job: JobDir, priority: int) -> None:
    """Set the job's priority in the queue, instead of backend.priority."""
    files.write_json(job.control_priority, {"priority": priority, "time": time.time()})


def asked_priority(job: JobDir) -> int | None:
    """Return the priority that ask_priority() set last; None if it was never called."""
    asked = files.read_json(job.control_priority)
    return asked["priority"] if asked else None


@by_its_owner
def pause(job: JobDir, wait_seconds: float | None = None) -> tuple[str, str | None]:
    """Pause a job after it has saved; return its (state, cause), which is SUSPENDED unless it ended first.

    The ranks save and exit, and the job waits until unpause() continues it. A scheduler takes back the job's
    devices once the job has saved, or at once if its supervisor has not started. If the scheduler has not
    reported the pause after ENGINE_SECONDS, the state is QUEUED. With `wait_seconds` None, this waits as long
    as the supervisor may take.

    Raises JobError if the job is not active, saves nothing (mode: perf, eval) or is not paused in time.
    """
    backend, which = backend_of_job(job), f"{display(job.run.path)}: job {job.job_id}"
    began = time.monotonic()
    state, _ = backend.status(job)
    if state not in ACTIVE:
        raise JobError(f"{which} is {state}; {_instead(job, state, 'be paused')}")
    config, stop = load_resolved(job.run.config_yaml), f"`nbtrain cancel {job.run.name}` stops it."
    if config.mode != "full":
        raise JobError(
            f"{which} runs with mode: {config.mode}, which saves no checkpoint, so after a pause it would "
            f"start from the beginning. {stop}"
        )
    if not backend.capabilities.pause:
        raise JobError(f"{which} runs on a backend that cannot pause jobs. {stop}")
    ask_pause(job, True)
    # A job in a scheduler's queue has no supervisor that could save.
    gone = {SUSPENDED, QUEUED} if config.backend.kind in ENGINES else {SUSPENDED}
    state, _ = _until_stopped(job, ACTIVE - gone, wait_seconds)
    if state in ACTIVE - gone:
        raise JobError(
            f"{which} is still {state}, {time.monotonic() - began:.0f} s after the pause request. It pauses "
            f"once its ranks have saved; {stop}"
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
    """Make a running job save a checkpoint at its next step and continue.

    With `wait_seconds`, wait for the checkpoint and return its step; otherwise, return None at once. Raises
    JobError if the job is not active, waits in a queue, saves nothing (mode: perf, eval), or has not saved in
    that time.
    """
    backend, which = backend_of_job(job), f"{display(job.run.path)}: job {job.job_id}"
    state, cause = backend.status(job)
    before, done = ControlRequest.read(job.control_request), files.read_json(job.control_ack)
    if state in ACTIVE and (mode := load_resolved(job.run.config_yaml).mode) != "full":
        raise JobError(f"{which} runs with mode: {mode}, which saves no checkpoint.")
    if state == SUSPENDED:
        raise JobError(f"{which} is paused and has already saved. {advice_to_resume(job.run)}")
    if state == QUEUED:
        waits = f": {cause}" if cause else ""
        raise JobError(
            f"{which} is QUEUED{waits}. None of its ranks is running, so there is nothing to save yet."
        )
    if state in ACTIVE and not backend.capabilities.save:
        raise JobError(f"{which} runs on a backend that cannot request a checkpoint.")
    if state not in ACTIVE or not backend.save(job):
        raise JobError(f"{which} is {state}; {_instead(job, state, 'save')}")
    if wait_seconds is None:
        return None
    # An attempt removes its predecessor's request but keeps its acknowledgement.
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
    now = f"{state}: {cause.rstrip('.')}." if cause else f"{state}."
    raise JobError(
        f"{which} did not save within {wait_seconds:g} s of the request. The job is {now} To see what its "
        f"ranks do, run `nbtrain logs {job.run.name}`."
    )


def wait(
    job: JobDir,
    timeout_seconds: float | None = None,
    on_change: Callable[[str, str | None], None] | None = None,
) -> tuple[str, str | None]:
    """Wait until the job has ended, at most `timeout_seconds`, and return its (state, cause).

    `on_change` is called with the current state and its cause, and again after each change of state.
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
    """Remove what failed and killed jobs left behind; return one line for each removed thing.

    Removed are processes of ended jobs, temporary files, torn checkpoints and interrupted submissions. Logs,
    records and complete checkpoints stay. With `dry_run`, nothing is removed. Raises JobError while a job is
    active.
    """
    with run.locked(blocking=False) as taken:
        newest = run.newest_job()
        if not taken or (newest and backend_of_job(newest).status(newest)[0] in ACTIVE):
            raise JobError(
                f"{display(run.path)}: a job is active, and it cleans up after itself. To stop it, run "
                f"`nbtrain cancel {run.name}`."
            )
        pids = processes.marked_pids(run.job_ids())
        torn = "torn checkpoint"
        if newest_checkpoint_step(run) is None:
            torn += "; the run has no complete checkpoint, so this is the last copy of its training"
        found = [
            *((path, "temporary file") for path in leftovers.temporaries(run)),
            *((path, torn) for path in leftovers.torn_checkpoints(run)),
            *((path, "interrupted submission") for path in leftovers.cut_off_submissions(run)),
        ]
        lines = [f"process {pid}: left by an ended job" for pid in pids]
        lines += [f"{path.relative_to(run.path)}: {what}" for path, what in found]
        if not dry_run:
            processes.end_marked(run.job_ids(), 0.0)
            for path, _ in found:
                leftovers.remove(path)
        return lines
