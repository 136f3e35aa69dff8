"""Starting a run: everything that can be known is checked, then the run directory is written, then it starts.

    check -> preflight -> plan -> [run's lock: decide -> config.yaml plan.json run.json jobs/<id>/ -> supervisor]

What the decision finds under output/<run>/, and what it does:

    nothing, or a folder that holds no more than notebooks/     a new run
    this run, active                                            that job
    this run, failed, cancelled or lost                         a new job, from the newest whole checkpoint
    this run, succeeded                                         refused: resume with more tokens, or clone
    anything else                                               refused
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nbtrain import amounts, files
from nbtrain.addresses import without_secrets
from nbtrain.config.check import check_config
from nbtrain.config.deepspeed import deepspeed_config
from nbtrain.config.load import Overrides, load, load_resolved, override_layer, to_yaml
from nbtrain.config.schema import UNITS, RunConfig, given_unit
from nbtrain.errors import SubmitError
from nbtrain.jobs import leftovers
from nbtrain.jobs.changes import Change, changes_between
from nbtrain.jobs.environment import dataset_sha256, environment_record, supervisor_environment
from nbtrain.jobs.preflight import preflight
from nbtrain.jobstate import ACTIVE, QUEUED, SUCCEEDED, read_state
from nbtrain.rundir import (
    SCHEMA_VERSION,
    EventWriter,
    Heartbeat,
    JobDir,
    JobRecord,
    RunDir,
    checkpoint_problem,
    new_job_id,
    new_run_id,
)
from nbtrain.workspace import display, workspace

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan

logger = logging.getLogger(__name__)

# What a rank runs: arguments of Python, the run directory is added. Tests put another program here.
TRAINER = ("-m", "nbtrain.train")
# Papermill may have put its executed notebooks there before anything was submitted.
HARMLESS_ENTRIES = frozenset({"notebooks"})
SUPERVISOR_START_SECONDS = 60.0
LOCK_SECONDS = 10.0


def submit(config: RunConfig, *, parent: str | None = None, command: tuple[str, ...] = TRAINER) -> JobDir:
    """Start a run as a detached job, or join it, or resume it; see the table above.

    `parent` is the run id of the run this one was made from. Raises ConfigError where the configuration breaks
    a rule, and SubmitError, with every problem found, where it cannot start here or may not start there.
    """
    check_config(config)
    run = RunDir.named(config.name)
    refuse_foreign(run)
    if active := active_job(run):
        _tell_ignored_changes(run, config)
        return active
    refuse_finished(run, config)
    return _launch(run, config, parent, command)


def resume(run: RunDir, overrides: Overrides = None, *, command: tuple[str, ...] = TRAINER) -> JobDir:
    """Go on from the newest whole checkpoint as a new job, with `overrides` over its own configuration.

    An active run gives its job. A run that has succeeded needs more to train: batch.train_tokens (or what
    says its length), or batch.max_steps after a trial. To go on is to train: after a job with mode: eval it is mode: full
    again, and after one with mode: perf the mode must be said. Raises ConfigError and SubmitError as submit does.
    """
    refuse_foreign(run)
    if not run.exists():
        raise SubmitError(
            f"{display(run.path)}: there is no run to resume. `nbtrain runs` lists the runs; "
            "`nbtrain submit RUN.yaml` starts one."
        )
    before = load_resolved(run.config_yaml)
    given = override_layer(overrides).value
    config = load(before, given)
    if active := active_job(run):
        _tell_ignored_changes(run, config)
        return active
    if "mode" not in given and before.mode != "full":
        config = _mode_of_resume(run, before, config)
    newest = run.newest_job()
    if (
        newest
        and read_state(newest, time.time())[0] == SUCCEEDED
        and config.mode == "full"
        and config.train_steps <= (done := _steps_done(run, before))
    ):
        again = f" To evaluate again: `nbtrain resume {run.name} mode=eval`." if before.mode == "eval" else ""
        raise SubmitError(
            f"{display(run.path)}: all {amounts.counted(done, 'step')} are done, and the run asks for "
            f"{config.train_steps:,}. To train on: {more_to_train(run, before)}.{again}"
        )
    return _launch(run, config, None, command)


def _mode_of_resume(run: RunDir, before: RunConfig, config: RunConfig) -> RunConfig:
    """`config` with the mode that is meant where none is said, after a job that did not train. Raises SubmitError."""
    if before.mode == "perf":
        raise SubmitError(
            f"{display(run.path)}: its last job only measured (mode: perf), and left no checkpoint to go on from. "
            f"`nbtrain resume {run.name} mode=full` trains it from the beginning; `nbtrain resume {run.name} mode=perf` "
            "measures again."
        )
    logger.info(
        "%s: its last job evaluated (mode: eval); this one trains on, with mode: full. `nbtrain resume %s mode=eval` "
        "evaluates again.",
        run.name,
        run.name,
    )
    return load(config, {"mode": "full"})


def _steps_done(run: RunDir, before: RunConfig) -> int:
    """Steps of a run whose last job has succeeded; other modes than full leave them as they were."""
    return before.train_steps if before.mode == "full" else leftovers.newest_checkpoint_step(run) or 0


def clone(run: RunDir, name: str, overrides: Overrides = None) -> RunConfig:
    """A new run directory `name` with the configuration of `run` and `overrides`; nothing is started.

    It trains from the beginning; its run.json names `run` as parent. Returns the configuration, to be submitted.
    Raises SubmitError where the name is taken, ConfigError where the overrides break a rule.
    """
    refuse_foreign(run)
    if not run.exists():
        raise SubmitError(f"{display(run.path)}: there is no run to clone. `nbtrain runs` lists the runs.")
    config = load(load(load_resolved(run.config_yaml), overrides, check=False), {"name": name})
    if config.mode == "eval":
        # Of the last job, not of the run: there is nothing yet to evaluate.
        config = load(config, {"mode": "full"})
    target = RunDir.named(name)
    if target.path.exists() and set(os.listdir(target.path)) - HARMLESS_ENTRIES:
        raise SubmitError(f"{display(target.path)} is there already. Choose another name for the clone.")
    identity = run.record() or {}
    _make_folder(target)
    with target.locked():
        _write_identity(target, config, identity.get("run_id"))
        files.write_text(target.config_yaml, to_yaml(config))
    return config


# --- what is found there -------------------------------------------------------------------------------------


def refuse_foreign(run: RunDir) -> None:
    """Raises SubmitError where the folder is something else than a run of this name."""
    where = display(run.path)
    if run.path.exists() and not run.path.is_dir():
        raise SubmitError(f"{where} is a file, not a run directory. Choose another name, or move it away.")
    try:
        identity = run.record()
    except (ValueError, OSError) as error:
        raise SubmitError(
            f"{where}/run.json cannot be read: {error}. Mend it, or choose another name."
        ) from error
    if identity is None:
        entries = set(os.listdir(run.path)) - HARMLESS_ENTRIES if run.path.is_dir() else set()
        if entries:
            shown = ", ".join(sorted(entries)[:5]) + (", ..." if len(entries) > 5 else "")
            raise SubmitError(
                f"{where} is not a run directory of nbtrain: it has no run.json but holds {shown}. Nothing was "
                "written. Choose another `name:`, or move that folder away."
            )
        return
    if identity.get("schema_version") != SCHEMA_VERSION:
        raise SubmitError(
            f"{where}/run.json has schema_version {identity.get('schema_version')}; this nbtrain reads "
            f"{SCHEMA_VERSION}. Choose another `name:`, or use the nbtrain that wrote it."
        )
    if identity.get("name") != run.name:
        raise SubmitError(
            f"{where} is the directory of another run, {identity.get('name')!r} (run.json). "
            f"`nbtrain resume` continues a run under its own name: rename the folder to {identity.get('name')!r}. "
            f"`nbtrain clone {run.name} NEWNAME` makes a new one from it."
        )


def active_job(run: RunDir) -> JobDir | None:
    """The run's newest job where it is active."""
    newest = run.newest_job()
    return newest if newest and read_state(newest, time.time())[0] in ACTIVE else None


def refuse_finished(run: RunDir, config: RunConfig) -> None:
    """Raises SubmitError where the run has been trained to its end and `config` asks for that again."""
    newest = run.newest_job()
    if newest is None or read_state(newest, time.time())[0] != SUCCEEDED:
        return
    before = load_resolved(run.config_yaml)
    if before.mode != "full" or config.mode == "eval":
        return
    raise SubmitError(
        f"{display(run.path)}: this run has succeeded ({amounts.counted(before.train_steps, 'step')}). "
        f"To train on: {more_to_train(run, before)}. "
        f"To train again under another name: `nbtrain clone {run.name} NEWNAME`."
    )


def more_to_train(run: RunDir, config: RunConfig) -> str:
    """The command that gives a finished run more to do."""
    if config.train_steps < config.scheduled_steps:
        return f"`nbtrain resume {run.name} batch.max_steps=null`"
    unit, amount = config.batch.train_amount
    return f"`nbtrain resume {run.name} batch.train_{unit}={2 * amount}`"


def refuse_other_training(run: RunDir, config: RunConfig) -> list[Change]:
    """The changes against the run's own configuration; raises SubmitError where one makes it another run.

    Before anything was trained there is nothing to be bound to, and every change is allowed.
    """
    if not run.config_yaml.is_file():
        return []
    changes = changes_between(load_resolved(run.config_yaml), config)
    bound = [change for change in changes if change.bound]
    if bound and _has_trained(run):
        lines = "\n".join(f"  {change}  ({change.where})" for change in bound)
        raise SubmitError(
            f"{display(run.path)} holds another training; these settings cannot change on resume:\n{lines}\n"
            f"Nothing was written. `nbtrain resume {run.name}` goes on with its own settings; "
            "another `name:` trains these as a new run."
        )
    return changes


def refuse_less_than_done(run: RunDir, config: RunConfig) -> None:
    """Raises SubmitError where the newest checkpoint lies beyond the run's last step."""
    step = leftovers.newest_checkpoint_step(run)
    if step is None and config.mode == "eval":
        raise SubmitError(
            f"{config.where('mode')}: mode = eval needs a checkpoint, and {display(run.path)} has none. "
            "Train the run first, with mode: full."
        )
    if step is not None and config.mode == "perf":
        raise SubmitError(
            f"{config.where('mode')}: mode = perf measures from the first step and saves nothing, but "
            f"{display(run.path)} has been trained to step {step:,}. Measure under another `name:`."
        )
    if step is not None and step > config.train_steps:
        unit, _ = config.batch.train_amount
        key = "batch.max_steps" if config.train_steps < config.scheduled_steps else f"batch.train_{unit}"
        raise SubmitError(
            f"{config.where(key)}: {key} ends the run after {amounts.counted(config.train_steps, 'step')}, but "
            f"{display(run.path)} has come to step {step:,}. Ask for more, or train anew under another `name:`."
        )


def refuse_without_whole_checkpoint(run: RunDir, config: RunConfig) -> None:
    """Raises SubmitError where there are checkpoints and none is whole by names and sizes: the ranks would refuse them."""
    if config.mode == "perf" or leftovers.newest_checkpoint_step(run) is not None:
        return
    torn = [
        f"{run.checkpoint(step).name}: {checkpoint_problem(run.checkpoint(step))}"
        for step in run.checkpoint_steps()
    ]
    if torn:
        raise SubmitError(
            f"{display(run.model)}: no checkpoint is whole: {'; '.join(reversed(torn))}. Remove the folder to train from "
            "the start, or put a good copy there."
        )


def refuse_other_data(run: RunDir, config: RunConfig) -> None:
    """Raises SubmitError where the dataset was made anew since the newest checkpoint: its order means other text."""
    step, now = leftovers.newest_checkpoint_step(run), dataset_sha256(config)
    if step is None or now is None:
        return
    manifest = files.read_json(run.checkpoint_manifest(step)) or {}
    then = manifest.get("data_state", {}).get("dataset_sha256")
    if then not in (None, now):
        raise SubmitError(
            f"{display(run.path)} was trained on dataset {config.data.name} {then[:12]}..., which has been made anew "
            f"since and is {now[:12]}...: the checkpoint of step {step:,} does not go on with it. Restore the "
            "dataset, or train on the new one under another `name:`."
        )


def _has_trained(run: RunDir) -> bool:
    if run.checkpoint_steps():
        return True
    beats = (Heartbeat.read(run.job(job_id).heartbeat(0)) for job_id in run.job_ids())
    return any(beat is not None and beat.step > 0 for beat in beats)


def _tell_ignored_changes(run: RunDir, config: RunConfig) -> None:
    for change in changes_between(load_resolved(run.config_yaml), config):
        logger.warning("%s is active; this change is not applied: %s", run.name, change)


# --- writing and starting ------------------------------------------------------------------------------------


def _launch(run: RunDir, config: RunConfig, parent: str | None, command: tuple[str, ...]) -> JobDir:
    from nbtrain.planner.plan import plan as make_plan

    refuse_other_training(run, config)
    refuse_without_whole_checkpoint(run, config)
    refuse_less_than_done(run, config)
    refuse_other_data(run, config)
    if problems := preflight(config):
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise SubmitError(
            f"{config.name} cannot start here:\n{lines}\nNothing was started and nothing written."
        )
    plan = make_plan(config)
    _make_folder(run)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with run.locked(blocking=False) as taken:
            # Another submission may have been quicker; what it started is what is asked for here.
            if active := active_job(run):
                return active
            if taken:
                changes = refuse_other_training(run, config)
                job = _write_job(run, config, plan, parent, command, changes)
                _start_supervisor(job)
                return job
        if time.monotonic() > deadline:
            raise SubmitError(
                f"{display(run.path)}: another process has held this run for {LOCK_SECONDS:g} s, and no job of it "
                f"is active. Look for it with `fuser {run.path}`, and submit again."
            )
        time.sleep(0.1)


def _make_folder(run: RunDir) -> None:
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmitError(
            f"{display(run.path)} cannot be made: {error.strerror}. Set NBTRAIN_OUTPUT to a folder that can be "
            "written."
        ) from error


def _write_identity(run: RunDir, config: RunConfig, parent: str | None) -> str:
    """run.json, written once; returns the run id."""
    if existing := run.record():
        return existing["run_id"]
    run_id = new_run_id()
    files.write_json(
        run.run_json,
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": run_id,
            "name": config.name,
            "parent": parent,
            "created_at": time.time(),
        },
    )
    return run_id


def _write_job(
    run: RunDir,
    config: RunConfig,
    plan: "Plan",
    parent: str | None,
    command: tuple[str, ...],
    changes: list[Change],
) -> JobDir:
    """Everything a supervisor needs; job.json last, because a job folder without one is a cut-off submission."""
    try:
        run_id = _write_identity(run, config, parent)
        files.write_text(run.config_yaml, to_yaml(config))
        files.write_json(run.plan_json, plan.to_dict())
        for folder in (run.model, run.tensorboard):
            folder.mkdir(exist_ok=True)
        job = run.job(_unused_job_id(run))
        job.make_folders()
        files.write_json(job.environment_json, environment_record(config, job))
        files.write_json(job.deepspeed_json, deepspeed_config(config))
        events = EventWriter(job, "submit")
        step = leftovers.newest_checkpoint_step(run)
        start = f"from the checkpoint of step {step}" if step else "from the beginning"
        events.write("state", f"submitted; trains {start}", state=QUEUED, step=step or 0)
        for change in changes:
            logger.info("%s: changed on resume: %s", run.name, change)
            events.write(
                "config", f"changed on resume: {change}", key=change.key, now=without_secrets(change.now)
            )
        if step and given_unit(config.lr_schedule, "lr_decay") is None:
            for change in changes:
                unit = change.key.removeprefix("batch.train_")
                # Where the unit changed too, two fields did: the one that was set tells the length before.
                if unit not in UNITS or change.before is None:
                    continue
                events.write(
                    "warning",
                    f"lr_schedule.lr_decay_tokens is null and follows train_tokens: the learning rate now falls over "
                    f"{config.train_tokens:,} tokens, {config.in_tokens(unit, change.before):,} before",
                )
        JobRecord(
            job_id=job.job_id,
            run_id=run_id,
            name=config.name,
            state=QUEUED,
            created_at=time.time(),
            world_size=config.world_size,
            backend=config.backend.kind,
            command=list(command),
        ).write(job.job_json)
    except OSError as error:
        raise SubmitError(
            f"{display(run.path)} cannot be written: {error.strerror}. Nothing was started. Free space or mend the "
            "rights, or set NBTRAIN_OUTPUT to another folder."
        ) from error
    return job


def _unused_job_id(run: RunDir) -> str:
    """A job id that sorts after all others of the run, even when the clock went back."""
    known = run.job_ids()
    while True:
        job_id = new_job_id()
        if not known or job_id > known[-1]:
            return job_id
        # Two jobs within one second, or a clock that was set back: ids must keep their order.
        time.sleep(0.05)
        if job_id[:15] < known[-1][:15]:
            raise SubmitError(
                f"{display(run.path)}: its newest job {known[-1]} lies in the future of this machine's clock "
                f"({job_id[:15]} UTC). Set the clock right."
            )


def _start_supervisor(job: JobDir) -> None:
    """Start the detached supervisor and wait until it has taken the job over."""
    with job.supervisor_log.open("ab") as log:
        starter = subprocess.Popen(
            [sys.executable, "-m", "nbtrain.jobs.supervisor", str(job.run.path), job.job_id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=supervisor_environment(),
            cwd=_working_directory(),
            start_new_session=True,
        )
    starter.wait()
    deadline = time.monotonic() + SUPERVISOR_START_SECONDS
    while starter.returncode == 0 and time.monotonic() < deadline:
        record = JobRecord.read(job.job_json)
        if record and record.supervisor:
            return
        time.sleep(0.02)
    last_words = job.supervisor_log.read_text(errors="replace").strip().splitlines()[-10:]
    raise SubmitError(
        f"{display(job.path)}: the supervisor did not start. Its log:\n"
        + "\n".join(f"  {line}" for line in last_words)
    )


def _working_directory() -> Path:
    return workspace() if workspace().is_dir() else Path("/")
