"""Checks of a draft's name against an existing run of that name. They change nothing."""

from typing import Any

from nbtrain.base.errors import NbtrainError, SubmitError
from nbtrain.base.jobstate import at_rest
from nbtrain.base.records import JobRecord
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.jobs.backends.base import status_of
from nbtrain.jobs.changes import Change, typed_changes
from nbtrain.jobs.control import asked_pause
from nbtrain.jobs.refusals import (
    active_job,
    refuse_finished,
    refuse_foreign,
    refuse_less_than_done,
    refuse_other_backend,
    refuse_other_training,
    refuse_paused,
    refuse_without_whole_checkpoint,
)
from nbtrain.lab.form.fields import field_at


def problems_of_name(config: RunConfig, clone_of: str = "") -> list[dict[str, Any]]:
    """Return why submit() would refuse the run, or not apply changes, because a run of this name exists."""
    run = RunDir.named(config.name)
    try:
        if clone_of:
            refuse_taken(run)
        refuse_foreign(run)
        job = active_job(run)
        if job and not _is_paused(job):
            return _of_active(job, config)
        if job is None:
            refuse_finished(run, config)
        refuse_other_training(run, config)
        refuse_without_whole_checkpoint(run, config)
        refuse_less_than_done(run, config)
        if job:
            refuse_paused(run, config)
    except NbtrainError as error:
        return [_problem(str(error))]
    return []


def refuse_taken(run: RunDir) -> None:
    """Raise SubmitError if a run with the clone's name exists."""
    if run.exists():
        raise SubmitError(f"there is already a run {run.name}. Choose another name for the clone.")


def not_applied(run: RunDir, config: RunConfig) -> list[Change]:
    """Return the changes that an already active run does not get; a start writes `config` and has none."""
    return typed_changes(load_resolved(run.config_yaml), config)


def _of_active(job: JobDir, config: RunConfig) -> list[dict[str, Any]]:
    state, record = status_of(job)[0], JobRecord.read(job.job_json)
    if record:
        refuse_other_backend(job.run, state, record.backend, config)
    changes = not_applied(job.run, config)
    if not changes:
        return []
    words = ", ".join(f"{one.key} {show(one.before)}, not {show(one.now)}" for one in changes)
    message = (
        f"{job.run.name} is {state} with other settings: {words}. Choose another name, or stop it first."
    )
    return [_problem(message, [at.key for one in changes if (at := field_at(one.key))])]


def _is_paused(job: JobDir) -> bool:
    """Return whether the job is paused: a submission then resumes it, or is refused if settings differ."""
    record = JobRecord.read(job.job_json)
    return asked_pause(job) or bool(record and at_rest(record))


def _problem(text: str, also: list[str] | None = None) -> dict[str, Any]:
    return {"key": "name", "message": " ".join(text.split()), "full": text, "also": also or []}
