"""Start a run: check everything that can be known, write the run directory, and start the job.

    check -> preflight -> plan -> [run's lock: decide -> config.yaml plan.json run.json jobs/<id>/ ->
    supervisor]

What the decision finds under output/<run>/, and what it does:

    nothing, or a folder that holds no more than notebooks/     a new run
    this run, active                                            that job
    this run, paused                                            that job; other settings: resume() alone
    this run, failed, cancelled or lost                         a new job, from the newest complete checkpoint
    this run, succeeded                                         refused: resume with more tokens, or clone
    anything else                                               refused

If several processes submit the same run at once, one job starts: the process that gets the run's lock writes
it, and the others return it, even if it has ended meanwhile.
"""

import logging
import shlex
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbtrain.base import amounts, files
from nbtrain.base.addresses import without_secrets
from nbtrain.base.checkpoint_files import (
    only_on_nodes,
    saved_progress,
)
from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.events import EventWriter
from nbtrain.base.jobstate import ACTIVE, QUEUED, SUCCEEDED
from nbtrain.base.observed_state import at_rest
from nbtrain.base.records import JobRecord, TrainingProgress
from nbtrain.base.rundir import SCHEMA_VERSION, JobDir, RunDir, new_run_id, runs_like, time_of_job
from nbtrain.base.workspace import display
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import (
    Overrides,
    autotune,
    load,
    load_resolved,
    override_layer,
    to_shown_yaml,
    to_yaml,
)
from nbtrain.config.rules.check import check_config
from nbtrain.config.schedule_section import UNITS, given_unit
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import backend_of, status_of
from nbtrain.jobs.changes import changes_between, typed_changes
from nbtrain.jobs.control import ask_priority, asked_pause, asked_priority, cancel, end_cut_off, unpause
from nbtrain.jobs.existing_run import (
    CONTINUES,
    RunFacts,
    backend_is_the_same,
    data_is_the_same,
    is_not_finished,
    more_to_train,
    pause_keeps_its_settings,
    refuse_foreign,
    refuse_submission,
    training_is_the_same,
)
from nbtrain.jobs.initial_weights import record_initial, with_new_tokens
from nbtrain.jobs.limits import refuse_over_limits, refuse_run_over_limits
from nbtrain.jobs.machine.device_needs import warnings_here
from nbtrain.jobs.machine.environment import environment_record
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.origins import origins
from nbtrain.jobs.preflight import preflight, preflight_in_allocation, refuse_to_start

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan

logger = logging.getLogger(__name__)

# Arguments of Python for a rank, to which the run directory is added. Tests run another program.
TRAINER = ("-m", "nbtrain.train")
LOCK_SECONDS = 10.0
# Clocks of two machines that differ by less are not reported.
CLOCK_SECONDS = 60.0
AGAIN = "write a new file (`nbtrain submit RUN --dry-run FILE`) and start that one"


def submit(config: RunConfig, *, parent: str | None = None, command: tuple[str, ...] = TRAINER) -> JobDir:
    """Start a run as a detached job, or join it, or resume it; see the table above.

    `parent` is the run id of the run this one was made from. Raises ConfigError if the configuration breaks
    a rule, and SubmitError with every problem found if the run cannot or may not start.
    """
    check_config(config)
    run = RunDir.named(config.name)
    refuse_foreign(run)
    if active := _joined(facts := RunFacts(run), config := with_new_tokens(config)):
        return active
    refuse_submission(facts, config, is_not_finished)
    return _launch(run, config, parent, command, new_priority=config.sets("backend.priority"))


def prepare_job(config: RunConfig, job: JobDir, run_id: str) -> None:
    """Write what `submit` writes, for a job that its scheduler has already started from a dry run's text.

    Nothing is started. Raises ConfigError and SubmitError as submit does, and if another job is in the way.
    """
    check_config(config)
    run = job.run
    if run.name != config.name:
        raise ConfigError(
            f"{run.path}: is not the directory of the run {config.name}. The file's command names the "
            f"directory of its run: {AGAIN}."
        )
    refuse_foreign(run)
    config, facts = with_new_tokens(config), RunFacts(run)
    in_the_way = facts.active
    if in_the_way is None or end_cut_off(in_the_way):
        refuse_submission(facts, config, is_not_finished)
        in_the_way = _launch(run, config, None, TRAINER, started=(job, run_id))
    else:
        _tell_changes(run, config, "is active")
    if in_the_way.job_id != job.job_id:
        raise SubmitError(
            f"{display(run.path)}: its job {in_the_way.job_id} is {status_of(in_the_way)[0]}, and a run has "
            f"one job at a time. Wait for its end, or `nbtrain cancel {run.name}`; then {AGAIN}."
        )


def refuse_hopeless(config: RunConfig) -> None:
    """Raise, before data is prepared, the errors that `submit` will raise whatever the data is; nothing is
    written.
    """
    check_config(config)
    run = RunDir.named(config.name)
    refuse_foreign(run)
    config = with_new_tokens(config)
    refuse_submission(RunFacts(run), config, is_not_finished, *CONTINUES)
    refuse_to_start(config, [finding for finding in preflight(config) if finding.lacks != "data"])
    refuse_run_over_limits(config)


def resume(
    run: RunDir,
    overrides: Overrides = None,
    *,
    command: tuple[str, ...] = TRAINER,
    wanted: Callable[[], bool] = lambda: True,
) -> JobDir:
    """Continue from the newest complete checkpoint as a new job, with `overrides` to the run's settings.

    For an active run, its job is returned. A run that has succeeded needs more to train: batch.train_tokens
    (or another field of its length), or batch.max_steps after a trial. Resuming means training: after a job
    with mode: eval the mode becomes full again, and after a job with mode: perf the mode must be given.
    `wanted` is called last, under the run's lock, and says whether the job is still to start. Raises
    ConfigError and SubmitError as submit does.
    """
    refuse_foreign(run)
    if not run.exists():
        raise SubmitError(
            f"{display(run.path)}: there is no run to resume. {runs_like(run.name)} "
            "`nbtrain submit RUN.yaml` starts one."
        )
    facts = RunFacts(run)
    before = facts.config or load_resolved(run.config_yaml)
    given = override_layer(overrides).value
    config = load(before, given)
    if given.get("name", run.name) != run.name:
        raise ConfigError(
            f"{config.where('name')}: a run keeps its name on resume, and this one is {run.name}. `nbtrain "
            f"clone {run.name} {config.name}` makes a new run of it, which trains from the beginning."
        )
    if active := _joined(facts, config, new_job=True):
        return active
    # A paused job that was ended for a new one may have saved, or succeeded.
    facts = RunFacts(run)
    if "mode" not in given and before.mode != "full":
        config = _mode_of_resume(run, before, config)
    # The steps of a run whose last job has succeeded; other modes than full leave them as they were.
    done = before.train_steps if before.mode == "full" else facts.checkpoint_step or 0
    if facts.state == SUCCEEDED and config.mode == "full" and config.train_steps <= done:
        again = f" To evaluate again: `nbtrain resume {run.name} mode=eval`." if before.mode == "eval" else ""
        raise SubmitError(
            f"{display(run.path)}: all {amounts.counted(done, 'step')} are done, and the run ends at step "
            f"{config.train_steps:,}. To train on: {more_to_train(run, before, config)}.{again}"
        )
    new_priority = "backend.priority" in override_layer(overrides).origins
    return _launch(run, config, None, command, wanted, new_priority=new_priority)


def _mode_of_resume(run: RunDir, before: RunConfig, config: RunConfig) -> RunConfig:
    """Return `config` with the mode to use after a job that did not train. Raises SubmitError."""
    if before.mode == "perf":
        raise SubmitError(
            f"{display(run.path)}: its last job only measured (mode: perf), and left no checkpoint to "
            f"continue from. `nbtrain resume {run.name} mode=full` trains it from the beginning; `nbtrain "
            f"resume {run.name} mode=perf` measures again."
        )
    logger.info(
        "%s: its last job evaluated (mode: eval); this one trains on, with mode: full. `nbtrain resume %s "
        "mode=eval` evaluates again.",
        run.name,
        run.name,
    )
    return load(config, {"mode": "full"})


def _joined(facts: RunFacts, config: RunConfig, new_job: bool = False) -> JobDir | None:
    """Return the run's active job, warning about every change that it ignores; None if no job is active.

    A paused job continues. If `config` has other settings, a paused job is ended for a new one if `new_job`,
    and refused otherwise. Raises SubmitError then, and for a job on another backend.
    """
    active = facts.active
    if active is None or end_cut_off(active):
        return None
    record = JobRecord.read(active.job_json)
    if asked_pause(active) or (record and at_rest(record)):
        return _after_pause(facts, active, config, new_job)
    refuse_submission(facts, config, backend_is_the_same)
    _tell_changes(facts.run, config, "is active")
    _tell_silence(active)
    return active


def _tell_silence(job: JobDir) -> None:
    """Warn if the job's supervisor is on another host and has given no sign of life lately."""
    record, written_at = JobRecord.read(job.job_json), job.job_json.stat().st_mtime
    silent = time.time() - written_at
    if record and record.supervisor and record.supervisor.elsewhere() and silent > CLOCK_SECONDS:
        name, host = job.run.name, record.supervisor.host
        logger.warning(
            "%s: its supervisor last gave a sign of life %s ago, on %s. If that machine or container is "
            "gone, `nbtrain cancel --now %s` ends the job, and `nbtrain resume %s` continues.",
            *(name, amounts.elapsed(silent), host, name, name),
        )


def _after_pause(facts: RunFacts, job: JobDir, config: RunConfig, new_job: bool) -> JobDir | None:
    """Continue a paused job if its settings are unchanged. If they changed, end it if `new_job`, else raise
    SubmitError.
    """
    changes = changes_between(facts.config or load_resolved(facts.run.config_yaml), config)
    if not changes:
        unpause(job)
        return job
    refuse_submission(facts, config, *CONTINUES)
    if not new_job:
        refuse_submission(facts, config, pause_keeps_its_settings)
    # Every check runs before the paused job is ended for a new one.
    refuse_submission(facts, config, data_is_the_same)
    refuse_to_start(config, preflight(config))
    refuse_run_over_limits(config)
    said = f"resumed with other settings while it was paused: {'; '.join(map(str, changes))}"
    EventWriter(job, "submit").write("state", f"{said}. This job ends, and a new one follows")
    cancel(job)
    return None


def _tell_changes(run: RunDir, config: RunConfig, why: str) -> None:
    """Warn about every requested change that the run's newest job does not apply."""
    for change in typed_changes(load_resolved(run.config_yaml), config):
        logger.warning("%s %s; this change is not applied: %s", run.name, why, change)
        if change.key == "backend.priority":
            logger.warning(
                "While it waits, `nbtrain queue %s --priority %s` changes its place in the queue.",
                *(shlex.quote(run.name), change.now),
            )


def _quicker(run: RunDir, known: JobDir | None, config: RunConfig) -> JobDir | None:
    """Return the job that another process has submitted since the caller saw `known` as the newest job; None
    if there is none.
    """
    newest = run.newest_job()
    if newest is None or not newest.job_json.exists():
        return None
    if known is not None and newest.job_id == known.job_id and status_of(newest)[0] not in ACTIVE:
        return None
    _tell_changes(run, config, "was submitted by another process meanwhile")
    return newest


def _launch(
    run: RunDir,
    config: RunConfig,
    parent: str | None,
    command: tuple[str, ...],
    wanted: Callable[[], bool] = lambda: True,
    started: tuple[JobDir, str] | None = None,
    new_priority: bool = False,
) -> JobDir:
    """Write the run directory and start the job, under the run's lock.

    `started` is the job that a scheduler has started, and its run id. `new_priority` ignores the queue's
    priority.
    """
    from nbtrain.planner.plan import plan as make_plan

    # The job that _joined found active may have ended since.
    facts = RunFacts(run)
    known = facts.newest
    refuse_submission(facts, config, *CONTINUES, data_is_the_same)
    if started and known and known.job_id > started[0].job_id:
        raise SubmitError(
            f"{display(run.path)}: its newest job is {known.job_id}, made after {started[0].job_id}, and "
            f"only the newest may train. To continue the run, {AGAIN}."
        )
    problems = preflight_in_allocation(config) if started else preflight(config)
    refuse_to_start(config, problems, started=started is not None)
    plan = make_plan(config)
    refuse_over_limits(plan)
    if config.backend.kind == "local" and not config.backend.share_devices:
        Queue().make()
    make_folder(run)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with run.locked(blocking=False) as taken:
            if job := _quicker(run, known, config):
                return job
            if taken:
                if not wanted():
                    raise SubmitError(f"{display(run.path)}: it was cancelled before it was started again.")
                priority = asked_priority(known) if known and not new_priority else None
                job = _write_job(run, config, plan, parent, command, started, priority)
                backend = backend_of(config.backend.kind)
                if started:
                    backend.was_started(*started)
                else:
                    backend.submit(job)
                break
        if time.monotonic() > deadline:
            raise SubmitError(
                f"{display(run.path)}: another process has held this run for {LOCK_SECONDS:g} s, and no job "
                f"of it is active. Look for it with `fuser {run.path}`, and submit again."
            )
        time.sleep(0.1)
    # The supervisor continues once the run's lock is free.
    backend.await_first_word(job)
    return job


def make_folder(run: RunDir) -> None:
    """Create the run directory. Raises SubmitError."""
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmitError(
            f"{display(run.path)} cannot be made: {error.strerror}. Set NBTRAIN_OUTPUT to a folder that can "
            "be written."
        ) from error


def write_identity(run: RunDir, parent: str | None = None, **more: str) -> str:
    """Write run.json once, with the keys in `more`; return the run id."""
    if existing := run.record():
        return existing["run_id"]
    identity: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "run_id": new_run_id(), "name": run.name}
    identity |= {"parent": parent, "created_at": time.time(), **more}
    files.write_json(run.run_json, identity)
    return identity["run_id"]


def _write_job(
    run: RunDir,
    config: RunConfig,
    plan: "Plan",
    parent: str | None,
    command: tuple[str, ...],
    started: tuple[JobDir, str] | None,
    priority: int | None,
) -> JobDir:
    """Write everything that a supervisor needs. job.json comes last, so a folder without it is an interrupted
    submission.
    """
    # Another process may have trained the run before this one had its lock.
    facts = RunFacts(run)
    refuse_submission(facts, config, training_is_the_same)
    changes = facts.changes(config)
    job: JobDir | None = None
    try:
        run_id = write_identity(run, parent, **({"run_id": started[1]} if started else {}))
        files.write_text(run.config_yaml, to_yaml(config))
        files.write_json(run.plan_json, plan.to_dict())
        for folder in (run.model, run.tensorboard):
            folder.mkdir(exist_ok=True)
        differences, places = record_initial(run, config), origins(config, run)
        job = started[0] if started else run.job(run.unused_job_id())
        job.make_folders()
        files.write_text(job.config_yaml, to_shown_yaml(config))
        files.write_json(job.origins_json, places)
        files.write_json(job.environment_json, environment_record(config, job))
        files.write_json(job.deepspeed_json, deepspeed_config(config))
        autotune.write_files(job, config)
        events = EventWriter(job, "submit")
        step, schedule = facts.saved_step, config.batch_schedule
        start = f"from the checkpoint of step {step:,}" if step else "from the beginning"
        if only_on_nodes(run):
            start += ", if the nodes that hold it are available again"
        events.write("state", f"submitted; trains {start}", state=QUEUED, step=step or 0)
        if (ahead := time_of_job(job.job_id) - time.time()) > CLOCK_SECONDS:
            said = (
                f"the previous job was numbered by a clock that is {amounts.elapsed(ahead)} ahead of this "
                f"machine's; this job is {job.job_id}, to come after it. Compare the clocks of the machines"
            )
            logger.warning("%s: %s.", run.name, said)
            events.write("warning", said)
        for finding in plan.findings:
            if finding.cost.fatal:
                events.write("warning", finding.text)
        if changes:
            lines = "".join(f"\n  {without_secrets(str(change))}  ({change.where})" for change in changes)
            logger.warning("%s: trains %s with settings that have changed:%s", run.name, start, lines)
        for change in changes:
            now = without_secrets(change.now)
            events.write("config", f"changed on resume: {change}", key=change.key, now=now)
            unit = change.key.removeprefix("batch.train_")
            follows = step and given_unit(config.lr_schedule, "lr_decay") is None
            # If the unit changed, two fields changed: the field that was set holds the previous length.
            if follows and unit in UNITS and change.before is not None:
                before = config.in_tokens(unit, change.before)
                words = "lr_schedule.lr_decay_tokens is null and follows train_tokens: the learning rate"
                events.write(
                    "warning", f"{words} now falls over {config.train_tokens:,} tokens, {before:,} before"
                )
        if priority is not None:
            ask_priority(job, priority)
            events.write("config", f"keeps priority {priority} of `nbtrain queue`")
        for warning in (*differences, *warnings_here(config, Queue())):
            logger.warning("%s: %s.", run.name, warning.rstrip("."))
            events.write("warning", warning)
        record = JobRecord(job.job_id, run_id, config.name, QUEUED, time.time(), config.world_size)
        record.backend, record.command = config.backend.kind, list(command)
        record.labels, record.autotune = config.all_labels, autotune.mode_of(config)
        if step:
            counts = schedule.tokens_after(step), schedule.samples_after(step)
            reached = TrainingProgress(config.train_steps, config.train_tokens, *counts)
            reached.checkpoint_step, reached.target_tokens = step, config.target_tokens
            record.goes_on_from = saved_progress(run, reached)
        record.mark("created_at")
        record.write(job.job_json)
    except OSError as error:
        if job and not started:
            # A half-written job would count, for a while, as one that is being submitted.
            shutil.rmtree(job.path, ignore_errors=True)
        raise unwritable(run, error) from error
    return job


def unwritable(run: RunDir, error: OSError) -> SubmitError:
    """Return the error for a run directory that is not writable."""
    return SubmitError(
        f"{display(run.path)} cannot be written: {error.strerror}. Nothing was started. Free space or "
        "change the permissions, or set NBTRAIN_OUTPUT to another folder."
    )
