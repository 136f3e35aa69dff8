"""Reasons that a run may not be submitted or resumed, one function each."""

import contextlib
import os
import re
from collections.abc import Iterable

from nbtrain.base import amounts, files
from nbtrain.base.checkpoint_files import checkpoint_problem, newest_checkpoint_step, newest_saved_step
from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.locks import LOCK_FILE
from nbtrain.base.records import Heartbeat
from nbtrain.base.rundir import SCHEMA_VERSION, JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.config.load import load, load_resolved
from nbtrain.config.resume import is_bound, within
from nbtrain.config.schedule_section import UNITS
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.changes import Change, as_overrides, changes_between
from nbtrain.jobs.machine.environment import dataset_sha256

# Papermill may have written its executed notebooks there before anything was submitted.
HARMLESS_ENTRIES = frozenset({"notebooks", LOCK_FILE})
# The first file of a new run (base/files.py).
BEING_WRITTEN = re.compile(r"\.run\.json\.\w+\.tmp")

# Fields that a resume of a finished run may set again: how long to train.
LENGTH = ("mode", "batch.max_steps", *(f"batch.train_{unit}" for unit in UNITS))
# Fields that say where and how a run is started and what is reported of it; training does not depend on them.
NOT_TRAINED = ("schema_version", "name", "labels", "backend", "logging", "profile", "notify")


def refuse_foreign(run: RunDir) -> None:
    """Raise SubmitError if the folder is anything but a run of this name."""
    where = display(run.path)
    if run.path.exists() and not run.path.is_dir():
        raise SubmitError(f"{where} is a file, not a run directory. Choose another name, or move it away.")
    try:
        identity = run.record()
    except (ValueError, OSError) as error:
        raise SubmitError(
            f"{where}/run.json cannot be read: {error}. Correct it, or choose another name."
        ) from error
    if identity is None:
        entries = set(os.listdir(run.path)) - HARMLESS_ENTRIES if run.path.is_dir() else set()
        # Another process is submitting the run right now.
        entries = {name for name in entries if not BEING_WRITTEN.fullmatch(name)}
        if run.run_json.name in entries:
            return refuse_foreign(run)
        if entries:
            shown = ", ".join(sorted(entries)[:5]) + (", ..." if len(entries) > 5 else "")
            raise SubmitError(
                f"{where} is not a run directory of nbtrain: it has no run.json but holds {shown}. Nothing "
                "was written. Choose another `name:`, or move that folder away."
            )
        return
    if identity.get("schema_version") != SCHEMA_VERSION:
        raise SubmitError(
            f"{where}/run.json has schema_version {identity.get('schema_version')}; this nbtrain reads "
            f"{SCHEMA_VERSION}. Choose another `name:`, or use the nbtrain that wrote it."
        )
    if identity.get("name") != run.name:
        raise SubmitError(
            f"{where} is the directory of another run, {identity.get('name')!r} (run.json). `nbtrain resume` "
            f"continues a run under its own name: rename the folder to {identity.get('name')!r}. `nbtrain "
            f"clone {run.name} NEWNAME` makes a new one from it."
        )


def active_job(run: RunDir) -> JobDir | None:
    """Return the run's newest job, if it is active and its submission is completely written."""
    newest = run.newest_job()
    return newest if newest and newest.job_json.exists() and status_of(newest)[0] in ACTIVE else None


def finished_config(run: RunDir) -> RunConfig | None:
    """Return the configuration that the run was fully trained with; None if it was not trained to its end."""
    newest = run.newest_job()
    if newest is None or status_of(newest)[0] != SUCCEEDED:
        return None
    before = load_resolved(run.config_yaml)
    if before.mode == "eval" and (newest_checkpoint_step(run) or 0) >= before.train_steps:
        # mode: eval belonged to the last job only.
        before = load(before, {"mode": "full"}, check=False)
    return before if before.mode == "full" else None


def was_trained_with(run: RunDir, config: RunConfig) -> bool:
    """Return whether a job of the run had the settings of `config`, in the fields that training depends on.

    A run that was resumed with other settings, such as more tokens, was trained with the settings of its
    earlier jobs too.
    """
    for before in (finished_config(run), load_resolved(run.config_yaml)):
        if before is not None and not trained_changes(before, config):
            return True
    for job_id in run.job_ids():
        # A job that was cut off at its start has no file; a file of an earlier nbtrain may be unreadable.
        with contextlib.suppress(ConfigError):
            path = run.job(job_id).config_yaml
            if path.is_file() and not trained_changes(load_resolved(path), config):
                return True
    return False


def refuse_finished(run: RunDir, config: RunConfig) -> None:
    """Raise SubmitError if the run was trained to its end and `config` would train no more than that."""
    before = finished_config(run)
    if before is None or config.mode == "eval":
        return
    raise SubmitError(
        f"{display(run.path)}: this run has succeeded ({amounts.counted(before.train_steps, 'step')}). "
        f"To train on: {more_to_train(run, before, config)}. "
        f"To train again under another name: {_clone(run, before, config)}.{_differs(before, config)}"
    )


def _clone(run: RunDir, before: RunConfig, config: RunConfig) -> str:
    """Return the command that trains `config` under another name."""
    return f"`nbtrain clone {run.name} NEWNAME{as_overrides(before, config)}`"


def _differs(before: RunConfig, config: RunConfig) -> str:
    """Return what `config` would change of a finished run, a field in each line; "" if nothing."""
    lines = _lines(trained_changes(before, config))
    return f"\nWhat is submitted differs from what was trained:{lines}" if lines else ""


def _lines(changes: Iterable[Change]) -> str:
    return "".join(f"\n  {change}  ({change.where})" for change in changes)


def refuse_paused(run: RunDir, config: RunConfig) -> None:
    """Raise SubmitError if the run's job is paused and `config` has other settings."""
    before = load_resolved(run.config_yaml)
    if changes := changes_between(before, config):
        resumed = f"`nbtrain resume {run.name}{as_overrides(before, config)}`"
        raise SubmitError(
            f"{display(run.path)}: its job is paused, and the submitted run has other settings:"
            f"{_lines(changes)}\n"
            "Nothing was submitted, and the job stays paused. Choose:\n"
            f"  `nbtrain resume {run.name}` continues the job unchanged.\n"
            f"  {resumed} ends it; a new job continues from its checkpoint with these settings.\n"
            f"  `nbtrain cancel {run.name}` ends it; a submission afterwards does the same.\n"
            f"  {_clone(run, before, config)} trains these settings from the beginning, next to it."
        )


def trained_changes(before: RunConfig, now: RunConfig) -> list[Change]:
    """Return the changed fields that training depends on, and backend.kind, which says where it runs."""
    return [
        change
        for change in changes_between(before, now)
        if change.key == "backend.kind" or not within(change.key, NOT_TRAINED)
    ]


def more_to_train(run: RunDir, config: RunConfig, asked: RunConfig | None = None) -> str:
    """Return the command that trains a finished run further, up to the length of `asked` if that is longer.

    The command includes the other changes in `asked`, except bound ones, which are named after it.
    """
    resume, others = f"`nbtrain resume {run.name}", "`"
    if asked:
        changes = changes_between(config, asked)
        others = f"{as_overrides(config, asked, lambda key: is_bound(key) or within(key, LENGTH))}`"
        if bound := [change.key for change in changes if change.bound]:
            others += f", without {', '.join(bound)}, which cannot change on resume"
        keys = ("batch.max_steps", f"batch.train_{config.batch.train_amount[0]}")
        wanted = [f"{change.key}={show(change.now)}" for change in changes if change.key in keys]
        if wanted and asked.train_steps > config.train_steps:
            return f"{resume} {' '.join(wanted)}{others}"
    if config.train_steps < config.scheduled_steps:
        return f"{resume} batch.max_steps=null{others}"
    unit, amount = config.batch.train_amount
    return f"{resume} batch.train_{unit}={2 * amount}{others}"


def refuse_other_training(run: RunDir, config: RunConfig) -> list[Change]:
    """Return the settings that changed. Raises SubmitError if the run has trained and a bound one changed."""
    if not run.config_yaml.is_file():
        return []
    changes = changes_between(load_resolved(run.config_yaml), config)
    bound = [change for change in changes if change.bound]
    if bound and _has_trained(run):
        lines = "\n".join(f"  {change}  ({change.where})" for change in bound)
        raise SubmitError(
            f"{display(run.path)} holds a different training; these settings cannot change on resume:\n"
            f"{lines}\nNothing was written. `nbtrain resume {run.name}` continues it with its own "
            "settings; another `name:` trains these as a new run."
        )
    return changes


def refuse_other_backend(run: RunDir, state: str, backend: str, config: RunConfig) -> None:
    """Raise SubmitError if the run's active job is on a backend other than the one in `config`."""
    if backend != config.backend.kind:
        raise SubmitError(
            f"{config.where('backend.kind')}: backend.kind = {config.backend.kind}, but {display(run.path)} "
            f"is {state} on backend {backend}, and a run has one job at a time. Nothing was submitted. "
            f"`nbtrain cancel {run.name}` stops it; submitted again, it continues from its newest checkpoint "
            f"on {config.backend.kind}. Another `name:` trains it there as a new run; a dry run shows what "
            "would be sent."
        )


def refuse_less_than_done(run: RunDir, config: RunConfig) -> None:
    """Raise SubmitError if the newest checkpoint is beyond the run's last step."""
    # mode: eval and perf also count checkpoints on the nodes' own disks, whether or not they still exist.
    step = newest_checkpoint_step(run) if config.mode == "full" else newest_saved_step(run)
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
            f"{config.where(key)}: {key} ends the run after {amounts.counted(config.train_steps, 'step')}, "
            f"but {display(run.path)} has reached step {step:,}. Set a higher limit, or train from scratch "
            "under another `name:`."
        )


def refuse_without_whole_checkpoint(run: RunDir, config: RunConfig) -> None:
    """Raise SubmitError if there are checkpoints, but none is complete by names and sizes."""
    if config.mode == "perf" or newest_saved_step(run) is not None:
        return
    torn = [
        f"{run.checkpoint(step).name}: {checkpoint_problem(run.checkpoint(step))}"
        for step in run.checkpoint_steps()
    ]
    if torn:
        raise SubmitError(
            f"{display(run.model)}: no checkpoint is complete: {'; '.join(reversed(torn))}. Remove the "
            "folder to train from the start, or put a good copy there."
        )


def refuse_other_data(run: RunDir, config: RunConfig) -> None:
    """Raise SubmitError if the dataset was rebuilt since the newest checkpoint, since its order differs."""
    step, now = newest_checkpoint_step(run), dataset_sha256(config)
    if step is None or now is None:
        return
    manifest = files.read_json(run.checkpoint_manifest(step)) or {}
    then = manifest.get("data_state", {}).get("dataset_sha256")
    if then not in (None, now):
        raise SubmitError(
            f"{display(run.path)} was trained on dataset {config.data.name} {then[:12]}..., which has been "
            f"rebuilt since then and is {now[:12]}...: the checkpoint of step {step:,} cannot continue with "
            "it. Restore the dataset, or train on the new one under another `name:`."
        )


def _has_trained(run: RunDir) -> bool:
    if run.checkpoint_steps():
        return True
    beats = (Heartbeat.read(run.job(job_id).heartbeat(0)) for job_id in run.job_ids())
    return any(beat is not None and beat.step > 0 for beat in beats)
