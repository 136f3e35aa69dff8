"""Submit a run: read its inputs, check them, write the run directory, and start the job.

    read     read_request -> read_launch         the run directory; weights, data and this machine
    check    refuse_submission, preflight        the request and the launch; then the plan
    write    [under the run's lock: write_job]   config.yaml plan.json run.json jobs/<id>/
    start    backend.submit                      the supervisor

The result depends on what is in output/<run>/:

    nothing, or a folder with only notebooks/     a new run
    this run, active                              the active job is returned
    this run, paused                              the paused job continues; only resume() may change settings
    this run, failed, cancelled or lost           a new job, from the newest complete checkpoint
    this run, succeeded                           refused: resume with more tokens, or clone
    anything else                                 refused

If several processes submit the same run at the same time, only one job starts: the process that gets the
run's lock writes the job, and the others return it, even if it has ended meanwhile.
"""

import functools
import logging
import shlex
import time
from collections.abc import Callable
from dataclasses import replace

from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.run_directory.observed_state import at_rest
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, runs_like
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.load import Overrides, load, load_resolved, override_layer
from nbtrain.config.load.changes import changes_between
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.own_blocks import read_own_block
from nbtrain.config.rules.check import check_config
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import backend_of, backend_of_job, status_of
from nbtrain.jobs.checks.existing_run import (
    CONTINUES,
    backend_is_the_same,
    is_not_finished,
    more_to_train,
    pause_keeps_its_settings,
    refuse_foreign,
    refuse_submission,
    training_is_the_same,
)
from nbtrain.jobs.checks.limits import refuse_over_limits, refuse_run_over_limits
from nbtrain.jobs.checks.preflight import preflight, preflight_in_allocation, refuse_to_start
from nbtrain.jobs.control.control import asked_pause, asked_priority, cancel, end_cut_off, unpause
from nbtrain.jobs.request.initial_weights import read_weights_again
from nbtrain.jobs.request.launch import Launch, read_launch
from nbtrain.jobs.request.own_code import code_is_the_same, try_code
from nbtrain.jobs.request.request import Request, read_request, read_run, read_run_again
from nbtrain.jobs.submission.job_files import make_folder, write_job
from nbtrain.planner.plan import Plan
from nbtrain.planner.plan import plan as make_plan

logger = logging.getLogger(__name__)

# Python arguments that start a rank; the run directory is appended. Tests start another program.
TRAINER = ("-m", "nbtrain.train")
LOCK_SECONDS = 10.0
# Seconds of silence before a supervisor on another host is reported, because two machines' clocks differ.
SILENT_SECONDS = 60.0
AGAIN = "write a new file with `nbtrain submit RUN --dry-run FILE` and submit that file"


def submit(
    config: RunConfig,
    *,
    parent: str | None = None,
    command: tuple[str, ...] = TRAINER,
    reads_data: bool = True,
    tries_code: bool = True,
    code_tried: str = "",
) -> JobDir:
    """Start a run as a detached job, return its active job, or resume it (see the table above).

    `parent` is the id of the run that this run was made from. `reads_data` is False for a `command` that
    reads neither data nor weights. With `tries_code`, the file that `code` names is tried first, if torch is
    installed (own_code.py); `code_tried` is the result of a trial that the caller has already made. Raises
    ConfigError if the configuration breaks a rule, and SubmitError with all problems if the run cannot start.
    """
    check_config(config)
    refuse_foreign(RunDir.named(config.name))
    request = read_request(config)
    if active := _joined(request, _keep_paused):
        return active
    # _joined() has ended an active job whose submission was interrupted.
    request = read_request(config) if request.existing.active else request
    refuse_submission(request, is_not_finished)
    new_priority = config.sets("backend.priority")
    return _launch(
        request,
        parent,
        command,
        new_priority=new_priority,
        reads_data=reads_data,
        tries_code=tries_code,
        code_tried=code_tried,
    )


def prepare_job(config: RunConfig, job: JobDir, run_id: str) -> None:
    """Write the files that submit() writes, for a job that its scheduler has started from a dry run's text.

    Nothing is started. Raises ConfigError and SubmitError as submit() does, and SubmitError if the run has
    another active job.
    """
    check_config(config)
    run = job.run
    if run.name != config.name:
        raise ConfigError(
            f"{run.path} is not the directory of the run {config.name}. The command in the submitted file "
            f"names the directory of its own run: {AGAIN}."
        )
    refuse_foreign(run)
    request = read_request(config, read_run(run))
    in_the_way = request.existing.active
    if in_the_way is None or end_cut_off(in_the_way):
        request = read_request(config, read_run(run)) if in_the_way else request
        refuse_submission(request, is_not_finished)
        in_the_way = _launch(request, None, TRAINER, started=(job, run_id))
    else:
        _tell_changes(request, "is active")
    if in_the_way.job_id != job.job_id:
        raise SubmitError(
            f"{display(run.path)}: its job {in_the_way.job_id} is {status_of(in_the_way)[0]}, and a run can "
            f"have only one job at a time. Wait until that job ends, or run `nbtrain cancel {run.name}`; "
            f"then {AGAIN}."
        )


def refuse_hopeless(config: RunConfig) -> None:
    """Make the checks of submit() that do not depend on the data, before the data is prepared.

    Raises the same errors as submit(). Nothing is written.
    """
    check_config(config)
    refuse_foreign(RunDir.named(config.name))
    refuse_submission(request := read_request(config), is_not_finished)
    _checked_launch(
        request,
        lambda launch: [finding for finding in preflight(launch) if finding.lacks != "data"],
        same_data=False,
    )


def resume(
    run: RunDir,
    overrides: Overrides = None,
    *,
    command: tuple[str, ...] = TRAINER,
    wanted: Callable[[], bool] = lambda: True,
    tries_code: bool = True,
) -> JobDir:
    """Continue from the newest complete checkpoint as a new job, with `overrides` to the run's settings.

    If the run has an active job, that job is returned. A run that has succeeded needs a greater training
    length: batch.train_tokens (or the same amount in another unit), or batch.max_steps after a trial.
    Resuming means training: after a job with mode: eval the mode becomes full again, and after a job with
    mode: perf the mode must be given. `wanted` is called last, under the run's lock, and returns whether to
    start the job after all. `tries_code` is as in submit(). Raises ConfigError and SubmitError as submit()
    does.
    """
    refuse_foreign(run)
    if not run.exists():
        raise SubmitError(
            f"{display(run.path)}: there is no run to resume. {runs_like(run.name)} "
            "`nbtrain submit RUN.yaml` starts one."
        )
    if newest := run.newest_job():
        backend_of_job(newest).settle(newest)
    existing = read_run(run)
    before = existing.config or load_resolved(run.config_yaml)
    given = override_layer(overrides).value
    config = load(before, given)
    if given.get("name", run.name) != run.name:
        raise ConfigError(
            f"{config.where('name')}: a run keeps its name on resume, and this run is called {run.name}. To "
            f"train it from the beginning as a new run, run `nbtrain clone {run.name} {config.name}`."
        )
    if active := _joined(read_request(config, existing), _end_paused):
        return active
    if existing.active:
        # A paused job that was ended for a new job may have saved a checkpoint or succeeded since.
        existing = read_run(run)
    if "mode" not in given and before.mode != "full":
        config = _mode_of_resume(run, before, config)
    # Number of steps trained so far; only mode: full trains, so other modes leave it unchanged.
    done = before.train_steps if before.mode == "full" else existing.checkpoints.complete_step or 0
    if existing.state == SUCCEEDED and config.mode == "full" and config.train_steps <= done:
        again = f" To evaluate again: `nbtrain resume {run.name} mode=eval`." if before.mode == "eval" else ""
        raise SubmitError(
            f"{display(run.path)}: all {amounts.counted(done, 'step')} are done, and the run ends at step "
            f"{config.train_steps:,}. To continue training: {more_to_train(run, before, config)}.{again}"
        )
    new_priority = "backend.priority" in override_layer(overrides).origins
    request = read_request(config, existing)
    return _launch(request, None, command, wanted, new_priority=new_priority, tries_code=tries_code)


def _mode_of_resume(run: RunDir, before: RunConfig, config: RunConfig) -> RunConfig:
    """Return `config` with mode: full after a job with mode: eval. Raises SubmitError after mode: perf."""
    if before.mode == "perf":
        raise SubmitError(
            f"{display(run.path)}: its last job only measured throughput (mode: perf) and left no checkpoint "
            f"to continue from. `nbtrain resume {run.name} mode=full` trains the run from the beginning; "
            f"`nbtrain resume {run.name} mode=perf` measures again."
        )
    logger.info(
        "%s: its last job evaluated (mode: eval); the new job continues training (mode: full). To evaluate "
        "again instead, run `nbtrain resume %s mode=eval`.",
        run.name,
        run.name,
    )
    return with_overrides(config, {"mode": "full"})


def _joined(request: Request, if_changed: Callable[[Request, JobDir], None]) -> JobDir | None:
    """Return the run's active job; None if no job is active.

    Warns about every requested change that the active job does not apply. A paused job continues if its
    settings are unchanged; otherwise `if_changed` refuses the request, or ends the job so that a new job can
    start. Raises SubmitError if the request is refused or the job is on another backend.
    """
    active, record = request.existing.active, request.existing.record
    if active is None or end_cut_off(active):
        return None
    if not (asked_pause(active) or (record and at_rest(record))):
        refuse_submission(request, backend_is_the_same)
        _tell_changes(request, "is active")
        _tell_silence(active, record)
        return active
    if not request.changes:
        refuse_run_over_limits(request.config)
        unpause(active)
        return active
    refuse_submission(request, *CONTINUES)
    if_changed(request, active)
    return None


def _tell_silence(job: JobDir, record: JobRecord | None) -> None:
    """Warn if the job's supervisor is on another host and has given no sign of life lately."""
    silent = time.time() - job.job_json.stat().st_mtime
    if record and record.supervisor and record.supervisor.elsewhere() and silent > SILENT_SECONDS:
        name, host = job.run.name, record.supervisor.host
        logger.warning(
            "%s: its supervisor last reported %s ago, on %s. If that machine or container is gone, run "
            "`nbtrain cancel --now %s` to end the job, then `nbtrain resume %s` to continue the run.",
            *(name, amounts.elapsed(silent), host, name, name),
        )


def _keep_paused(request: Request, job: JobDir) -> None:
    """Raise SubmitError, because the submission's settings differ from the paused job's."""
    refuse_submission(request, pause_keeps_its_settings)


def _end_paused(request: Request, job: JobDir) -> None:
    """End a paused job, so that a new job can continue with other settings."""
    # All checks run first: if the new job cannot start, the paused job must stay.
    _checked_launch(request, preflight)
    sentence = f"resumed with other settings while it was paused: {'; '.join(map(str, request.changes))}"
    EventWriter(job, "submit").write("state", f"{sentence}. This job ends, and a new job continues the run")
    cancel(job)


def _tell_changes(request: Request, why: str, before: RunConfig | None = None) -> None:
    """Warn about every requested change that the run's newest job does not apply.

    `before` is that job's configuration, if the job is newer than the request.
    """
    name = request.run.name
    changes = request.changes if before is None else changes_between(before, request.config)
    for change in (change for change in changes if request.config.sets(change.key)):
        logger.warning("%s %s; this change is not applied: %s", name, why, change)
        if change.key == "backend.priority":
            logger.warning(
                "To change the priority of a waiting job, run `nbtrain queue %s --priority %s`.",
                *(shlex.quote(name), change.now),
            )
        elif not change.bound:
            logger.warning(
                "To apply the change, run `nbtrain cancel %s`, then `nbtrain resume %s %s=VALUE`.",
                *(shlex.quote(name), shlex.quote(name), change.key),
            )


def _quicker(request: Request) -> JobDir | None:
    """Return the job that another process submitted after the request was read; None if there is none."""
    run, known = request.run, request.existing.newest
    newest = run.newest_job()
    if newest is None or not newest.job_json.exists():
        return None
    if known is not None and newest.job_id == known.job_id and status_of(newest)[0] not in ACTIVE:
        return None
    _tell_changes(request, "was submitted by another process meanwhile", load_resolved(run.config_yaml))
    return newest


def _checked_launch(
    request: Request,
    checks: Callable[[Launch], list[Finding]],
    started: bool = False,
    same_data: bool = True,
) -> tuple[Launch, Plan]:
    """Read what the next job depends on, check it and plan the job. Raises SubmitError if it cannot start.

    `checks` returns the problems of a launch. `started` is True inside an allocation that has started. With
    `same_data`, the dataset must be the one on which the newest checkpoint was trained.
    """
    launch = read_launch(request.config, request.weights)
    refuse_submission(request, *CONTINUES, code_is_the_same, data=launch.data if same_data else None)
    refuse_to_start(launch, checks(launch), started=started)
    plan = make_plan(launch.config, needs=launch.needs)
    refuse_over_limits(plan)
    return launch, plan


def _launch(
    request: Request,
    parent: str | None,
    command: tuple[str, ...],
    wanted: Callable[[], bool] = lambda: True,
    started: tuple[JobDir, str] | None = None,
    new_priority: bool = False,
    reads_data: bool = True,
    tries_code: bool = True,
    code_tried: str = "",
) -> JobDir:
    """Write the run directory and start the job, under the run's lock.

    `started` is (job, run id) of a job that its scheduler has already started. With `new_priority`, the
    priority that the previous job had in the queue is not kept. Without `reads_data`, the checks of data,
    weights and disk space are skipped.
    """
    run, known = request.run, request.existing.newest
    if started and known and known.job_id > started[0].job_id:
        raise SubmitError(
            f"{display(run.path)}: the submitted file starts job {started[0].job_id}, but the run has a "
            f"newer job, {known.job_id}, and only the newest job may train. To continue the run, {AGAIN}."
        )
    checks: Callable[[Launch], list[Finding]] = functools.partial(preflight, reads_data=reads_data)
    if started:
        checks = preflight_in_allocation
    launch, plan = _checked_launch(request, checks, started=started is not None)
    if started and launch.code:
        launch = replace(launch, code_tried="not tried: the scheduler had already started the job")
    elif reads_data:
        block = read_own_block(launch.config)
        tried = code_tried or try_code(launch.config, launch.code, tries_code)
        if read_own_block(launch.config) != block:
            # The trial has counted the parameters of the run's own blocks, which changes the plan.
            launch, plan = _checked_launch(request, checks)
        launch = replace(launch, code_tried=tried)
    backend = backend_of(launch.config.backend.kind)
    backend.make_ready(launch.config)
    make_folder(run)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with run.locked(blocking=False) as taken:
            if job := _quicker(request):
                return job
            if taken:
                if not wanted():
                    raise SubmitError(
                        f"{display(run.path)}: the run was cancelled before it could restart. To continue "
                        f"it, run `nbtrain resume {run.name}`."
                    )
                # Another process may have trained the run before this process got its lock.
                request = read_run_again(request)
                refuse_submission(request, training_is_the_same, code_is_the_same)
                launch = replace(launch, weights=read_weights_again(launch.config, launch.weights))
                priority = asked_priority(known) if known and not new_priority else None
                job = write_job(request, launch, plan, parent, command, started, priority)
                if started:
                    backend.was_started(*started)
                else:
                    backend.submit(job)
                break
        if time.monotonic() > deadline:
            raise SubmitError(
                f"{display(run.path)}: another process has held the run's lock for {LOCK_SECONDS:g} s, and "
                f"the run has no active job. Run `fuser {run.path}` to find that process, then submit again."
            )
        time.sleep(0.1)
    # The supervisor starts its work only once the run's lock is free.
    backend.await_first_word(job)
    return job
