"""Checks of a draft's name against an existing run of the same name. They do not change any file."""

import os
from typing import Any

from nbtrain.base.errors import NbtrainError, SubmitError
from nbtrain.base.run_directory.observed_state import at_rest
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, free_name, valid_name
from nbtrain.config.load import load_resolved
from nbtrain.config.load.changes import Change, typed_changes
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.jobs.checks.existing_run import (
    CONTINUES,
    Check,
    a_checkpoint_is_complete,
    backend_is_the_same,
    folder_is_this_run,
    is_not_finished,
    length_is_not_reached,
    pause_keeps_its_settings,
    training_is_the_same,
)
from nbtrain.jobs.control.control import asked_pause
from nbtrain.jobs.request.request import Request, read_request
from nbtrain.lab.form.fields import field_at

# Maximum number of settings that a message lists.
MOST_CHANGES = 3


def problems_of_name(config: RunConfig, clone_of: str = "") -> list[dict[str, Any]]:
    """Return the problems that a submission would have because a run of this name exists; [] without any.

    submit() would refuse the run, or would not apply its changes. The `message` of a problem is one sentence,
    because the form has buttons for the fixes; `full` is the error message of submit(), which names commands.
    """
    run = RunDir.named(config.name)
    if clone_of and run.exists():
        return [_problem(f"There is already a run {run.name}.", full=str(_taken(run)))]
    if findings := list(folder_is_this_run(run)):
        return [_problem(f"{display(run.path)} exists and is not a run of this name.", full=str(findings[0]))]
    try:
        request = read_request(config)
        if (active := request.existing.active) and not _is_paused(active):
            return _of_active(request)
        return _of_paused(request) if active else _of_ended(request)
    except NbtrainError as error:
        return [_problem(str(error))]


def _of_ended(request: Request) -> list[dict[str, Any]]:
    before = request.existing.finished_config
    steps = f" for {amounts.counted(before.train_steps, 'step')}" if before else ""
    sentence = f"{request.run.name} has already been trained{steps}."
    return _refused(sentence, is_not_finished, request) or _of_saved(request)


def _of_paused(request: Request) -> list[dict[str, Any]]:
    differing = f"{request.run.name} is paused, with other settings{_named_changes(request, bound=False)}."
    return _of_saved(request) or _refused(differing, pause_keeps_its_settings, request)


def _of_saved(request: Request) -> list[dict[str, Any]]:
    """Return the problem that prevents a resume from the run's checkpoints, as a list; [] without one."""
    name, steps = request.run.name, amounts.counted(request.config.train_steps, "step")
    sentences: dict[Check, str] = {
        training_is_the_same: f"{name} was trained with other settings{_named_changes(request, bound=True)}.",
        a_checkpoint_is_complete: f"{name} has no complete checkpoint to continue from.",
        length_is_not_reached: f"{name} has already trained for more than {steps}.",
    }
    for check in CONTINUES:
        if problems := _refused(sentences[check], check, request):
            return problems
    return []


def _refused(sentence: str, check: Check, request: Request) -> list[dict[str, Any]]:
    """Return a list with one problem, whose message is `sentence`, if a check has findings; otherwise []."""
    return [_problem(sentence, full=str(finding)) for finding in check(request)][:1]


def _named_changes(request: Request, bound: bool) -> str:
    """Return the first settings that differ; with `bound`, only those that cannot change on resume.

    For example ": optimizer.lr = 0.1, not 0.2; and 3 more". Returns "" if no setting differs.
    """
    changes = [change for change in request.changes if change.bound or not bound]
    words = [
        f"{change.key} = {show(change.before)}, not {show(change.now)}" for change in changes[:MOST_CHANGES]
    ]
    more = f"; and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
    return f": {'; '.join(words)}{more}" if words else ""


def later_name(name: str) -> str:
    """Return the first of name-2, name-3, ... that is free, for a name that is taken."""
    stem, _, number = name.rpartition("-")
    # The number of gpt-tiny-2 is counted up if a run gpt-tiny exists. The 13 in gpt-13 is part of the name.
    is_numbered = valid_name(stem) and number.isdigit() and RunDir.named(stem).exists()
    return free_name(stem if is_numbered else name)


def name_taken(name: str) -> dict[str, Any] | None:
    """Return {"name", "is_run", "free"} if the output directory has an entry of this name, else None."""
    try:
        run = RunDir.named(name)
    except NbtrainError:
        return None
    if not os.path.lexists(run.path):
        return None
    return {"name": name, "is_run": run.exists(), "free": later_name(name)}


def refuse_taken(run: RunDir) -> None:
    """Raise SubmitError if a run with the clone's name exists."""
    if run.exists():
        raise _taken(run)


def _taken(run: RunDir) -> SubmitError:
    return SubmitError(f"there is already a run {run.name}. Choose another name for the clone.")


def not_applied(run: RunDir, config: RunConfig) -> list[Change]:
    """Return the changes that do not apply to an already active run; [] for a job that was just started."""
    return typed_changes(load_resolved(run.config_yaml), config)


def _of_active(request: Request) -> list[dict[str, Any]]:
    if findings := list(backend_is_the_same(request)):
        return [_problem(str(findings[0]))]
    changes = [change for change in request.changes if request.config.sets(change.key)]
    if not changes:
        return []
    words = ", ".join(f"{one.key} = {show(one.before)}, not {show(one.now)}" for one in changes)
    message = (
        f"{request.run.name} is {request.existing.state} with other settings: {words}. Choose another "
        "name, or stop that run first."
    )
    return [_problem(message, [at.key for one in changes if (at := field_at(one.key))])]


def _is_paused(job: JobDir) -> bool:
    """Return whether the job is paused: a submission then resumes it, or is refused if settings differ."""
    record = JobRecord.read(job.job_json)
    return asked_pause(job) or bool(record and at_rest(record))


def _problem(text: str, also: list[str] | None = None, full: str = "") -> dict[str, Any]:
    return {"key": "name", "message": " ".join(text.split()), "full": full or text, "also": also or []}
