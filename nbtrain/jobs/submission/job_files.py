"""Write the files of a new job, from a checked Launch and its plan: everything that its supervisor needs.

The files of a run, and of each of its jobs:

    output/<run>/              run.json config.yaml plan.json init_from.json own_code.json own_code/
    output/<run>/jobs/<id>/    config.yaml origins.json environment.json deepspeed.json events/ job.json
"""

import logging
import shutil
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.checkpoint_files import saved_progress
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import QUEUED
from nbtrain.base.run_directory.records import DevicePrice, JobRecord, TrainingProgress
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, JobDir, RunDir, new_run_id, time_of_job
from nbtrain.base.text import amounts
from nbtrain.base.text.addresses import without_secrets
from nbtrain.base.workspace import display
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import autotune, to_shown_yaml, to_yaml
from nbtrain.config.sections.schedule_section import UNITS, given_unit
from nbtrain.jobs.attempt.backend import backend_of
from nbtrain.jobs.control.control import ask_priority
from nbtrain.jobs.machine.environment import environment_record
from nbtrain.jobs.request.initial_weights import record_initial
from nbtrain.jobs.request.launch import Launch
from nbtrain.jobs.request.own_code import write_code
from nbtrain.jobs.request.request import Request
from nbtrain.jobs.submission.origins import origins
from nbtrain.planner.plan import Plan

logger = logging.getLogger(__name__)

# Seconds by which the clocks of two machines may differ before a warning is written.
CLOCK_SECONDS = 60.0


def make_folder(run: RunDir) -> None:
    """Create the run directory. Raises SubmitError if it cannot be created."""
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmitError(
            f"{display(run.path)} cannot be created: {error.strerror}. Set NBTRAIN_OUTPUT to a writable "
            "folder."
        ) from error


def write_identity(run: RunDir, parent: str | None = None, **more: str) -> str:
    """Write run.json, with the keys in `more`, unless it exists; return the run id."""
    if existing := run.record():
        return existing["run_id"]
    identity: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "run_id": new_run_id(), "name": run.name}
    identity |= {"parent": parent, "created_at": time.time(), **more}
    files.write_json(run.run_json, identity)
    return identity["run_id"]


def write_job(
    request: Request,
    launch: Launch,
    plan: Plan,
    parent: str | None,
    command: tuple[str, ...],
    started: tuple[JobDir, str] | None = None,
    priority: int | None = None,
) -> JobDir:
    """Write everything that the job's supervisor needs, and return the job.

    job.json is written last, so a job folder without job.json is an interrupted submission.
    """
    run, config, changes = request.run, launch.config, request.changes
    backend = backend_of(config.backend.kind)
    checkpoints = request.existing.checkpoints
    job: JobDir | None = None
    try:
        run_id = write_identity(run, parent, **({"run_id": started[1]} if started else {}))
        files.write_text(run.config_yaml, to_yaml(config))
        files.write_json(run.plan_json, planned := plan.to_dict())
        for folder in (run.model, run.tensorboard):
            folder.mkdir(exist_ok=True)
        write_code(run, config, launch.code, launch.code_tried)
        differences, places = record_initial(run, config, launch.weights), origins(config, run)
        job = started[0] if started else run.job(run.unused_job_id())
        job.make_folders()
        files.write_text(job.config_yaml, to_shown_yaml(config))
        files.write_json(job.origins_json, places)
        files.write_json(job.environment_json, environment_record(config, job, launch.machine, launch.data))
        files.write_json(job.deepspeed_json, deepspeed_config(config))
        autotune.write_files(job, config)
        events = EventWriter(job, "submit")
        step, schedule = checkpoints.saved_step, config.batch_schedule
        start = f"from the checkpoint of step {step:,}" if step else "from the beginning"
        if checkpoints.on_nodes:
            start += ", if the nodes that hold it are available again"
        events.write("state", f"submitted; trains {start}", state=QUEUED, step=step or 0)
        if (ahead := time_of_job(job.job_id) - time.time()) > CLOCK_SECONDS:
            said = (
                f"the previous job's id comes from a clock that is {amounts.elapsed(ahead)} ahead of this "
                f"machine's clock; this job gets the id {job.job_id}, so that it sorts after the previous "
                "job. Synchronize the clocks of the machines"
            )
            logger.warning("%s: %s.", run.name, said)
            events.write("warning", said)
        for finding in plan.findings:
            if finding.cost.fatal:
                events.write("warning", finding.text)
        if changes:
            lines = "".join(f"\n  {without_secrets(str(change))}  ({change.where})" for change in changes)
            logger.warning("%s: trains %s with changed settings:%s", run.name, start, lines)
        for change in changes:
            now = without_secrets(change.now)
            events.write("config", f"changed on resume: {change}", key=change.key, now=now)
            unit = change.key.removeprefix("batch.train_")
            follows = step and given_unit(config.lr_schedule, "lr_decay") is None
            # If the unit changed, two settings changed. Only the setting in the old unit has a value from
            # before the change, and this value is the previous training length.
            if follows and unit in UNITS and change.before is not None:
                before = config.in_tokens(unit, change.before)
                words = "lr_schedule.lr_decay_tokens is null and follows train_tokens: the learning rate"
                fell = f"now falls over {config.train_tokens:,} tokens; before the change, over {before:,}"
                events.write("warning", f"{words} {fell}")
        if priority is not None:
            ask_priority(job, priority)
            events.write("config", f"the job keeps the priority {priority} that was set with `nbtrain queue`")
        for warning in (*differences, *backend.warnings(config, launch.machine)):
            logger.warning("%s: %s.", run.name, warning.rstrip("."))
            events.write("warning", warning)
        record = JobRecord(job.job_id, run_id, config.name, QUEUED, time.time(), config.world_size)
        record.backend, record.command = config.backend.kind, list(command)
        record.labels, record.autotune = config.all_labels, autotune.mode_of(config)
        record.price = DevicePrice.of_plan(planned)
        if step:
            counts = schedule.tokens_after(step), schedule.samples_after(step)
            reached = TrainingProgress(config.train_steps, config.train_tokens, *counts)
            reached.checkpoint_step, reached.target_tokens = step, config.target_tokens
            record.goes_on_from = saved_progress(run, reached)
        record.mark("created_at")
        record.write(job.job_json)
    except OSError as error:
        if job and not started:
            # A half-written job would look, for a while, like a job that is being submitted.
            shutil.rmtree(job.path, ignore_errors=True)
        raise unwritable(run, error) from error
    return job


def unwritable(run: RunDir, error: OSError) -> SubmitError:
    """Return the error for a run directory that is not writable."""
    return SubmitError(
        f"{display(run.path)} cannot be written: {error.strerror}. Nothing was started. Free up space, "
        "change the permissions, or set NBTRAIN_OUTPUT to another folder."
    )
