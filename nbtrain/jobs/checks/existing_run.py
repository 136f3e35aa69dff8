"""Checks that compare a submission with the run already in its directory.

refuse_submission() raises SubmitError with all their findings.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, SubmitError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.process.locks import LOCK_FILE
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.findings import mistake, run_checks
from nbtrain.config.load import load_resolved
from nbtrain.config.load.changes import Change, as_overrides, changes_between
from nbtrain.config.rules.resume import is_bound, within
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import UNITS
from nbtrain.config.yaml_source import show
from nbtrain.dataset.of_run import RunData
from nbtrain.jobs.request.request import Request, read_run, submitted_changes

# Papermill may have written its executed notebooks to the run directory before anything was submitted.
HARMLESS_ENTRIES = frozenset({"notebooks", LOCK_FILE})
# Temporary name of a new run's first file while it is being written (base/files.py).
BEING_WRITTEN = re.compile(r"\.run\.json\.\w+\.tmp")

# Training length and mode: the fields that a resume of a finished run may change.
LENGTH = ("mode", "batch.max_steps", *(f"batch.train_{unit}" for unit in UNITS))
# Fields that do not affect training: where the run came from, where and how it is started, and what it
# reports.
NOT_TRAINED = (
    "schema_version",
    "name",
    "imported_from",
    "labels",
    "backend",
    "logging",
    "profile",
    "notify",
    "limits",
)


Checks = Iterator[Finding]
Check = Callable[[Request], Checks]


def refuse_submission(request: Request, *checks: Check, data: RunData | None = None) -> None:
    """Run the checks, and data_is_the_same if `data` is given; raise SubmitError with all their findings."""
    findings = run_checks(checks, request)
    findings += run_checks([data_is_the_same], request, data) if data is not None else []
    refuse(findings, SubmitError)


def _about_run(run: RunDir, message: str, fix: str = "") -> Finding:
    return Finding("error", "", "", display(run.path), message, fix, FATAL)


def _about_folder(message: str, fix: str) -> Finding:
    """Return an error about the run directory; `message` itself names the directory."""
    return Finding("error", "", "", "", message, fix, FATAL)


def folder_is_this_run(run: RunDir) -> Checks:
    """Check that the run directory is absent, empty, or already contains a run with this name."""
    where = display(run.path)
    if run.path.exists() and not run.path.is_dir():
        yield _about_folder(
            f"{where} is a file, not a run directory.", "Choose another name, or move the file away."
        )
        return
    try:
        identity = run.record()
    except (ValueError, OSError) as error:
        fix = "Correct the file, or choose another name."
        yield _about_folder(f"{where}/run.json cannot be read: {error}.", fix)
        return
    if identity is None:
        entries = set(os.listdir(run.path)) - HARMLESS_ENTRIES if run.path.is_dir() else set()
        # Another process is submitting the run right now.
        entries = {name for name in entries if not BEING_WRITTEN.fullmatch(name)}
        if run.run_json.name in entries:
            yield from folder_is_this_run(run)
        elif entries:
            shown = ", ".join(sorted(entries)[:5]) + (", ..." if len(entries) > 5 else "")
            yield _about_folder(
                f"{where} is not an nbtrain run directory: it has no run.json, but it contains {shown}. "
                "Nothing was written.",
                "Choose another `name:`, or move that folder away.",
            )
    elif identity.get("schema_version") != SCHEMA_VERSION:
        yield _about_folder(
            f"{where}/run.json has schema_version {identity.get('schema_version')}, but this version of "
            f"nbtrain reads {SCHEMA_VERSION}.",
            "Choose another `name:`, or use the nbtrain version that wrote the file.",
        )
    elif identity.get("name") != run.name:
        yield _about_folder(
            f"{where} is the directory of another run: its run.json has the name "
            f"{identity.get('name')!r}. A run keeps its name, so rename the folder to "
            f"{identity.get('name')!r} before you resume the run.",
            f"To train it under a new name, run `nbtrain clone {identity.get('name')} NEWNAME` after that.",
        )


def refuse_foreign(run: RunDir) -> None:
    """Raise SubmitError if the run directory contains anything other than a run with this name."""
    refuse(folder_is_this_run(run), SubmitError)


def is_not_finished(request: Request) -> Checks:
    """Check that the run has not finished training. A submission with mode: eval always passes."""
    run, config, before = request.run, request.config, request.existing.finished_config
    if before is None or config.mode == "eval":
        return
    yield _about_run(
        run,
        f"this run has succeeded ({amounts.counted(before.train_steps, 'step')}). To continue training: "
        f"{more_to_train(run, before, config)}. To train again under another name: "
        f"{_clone(run, before, config)}.{_differs(before, config)}",
    )


def pause_keeps_its_settings(request: Request) -> Checks:
    """Check that the submission does not change the settings of a paused job."""
    run, config, before = request.run, request.config, request.existing.config
    if before is None or not request.changes:
        return
    yield _about_run(
        run,
        f"its job is paused, and the submission would change its settings:{_lines(request.changes)}\n"
        "Nothing was submitted, and the job stays paused. Choose:\n"
        f"  `nbtrain resume {run.name}` continues the job unchanged.\n"
        f"  `nbtrain resume {run.name}{as_overrides(before, config)}` ends the job; a new job continues from "
        "its checkpoint with these settings.\n"
        f"  `nbtrain cancel {run.name}` ends the job; if you then submit again, a new job continues from its "
        "checkpoint with these settings.\n"
        f"  {_clone(run, before, config)} trains a new run with these settings from the beginning; the job "
        "stays paused.",
    )


def training_is_the_same(request: Request) -> Checks:
    """Check that no setting on which the training depends changes once the run has trained."""
    run = request.run
    bound = [change for change in request.changes if change.bound]
    if bound and request.existing.has_trained:
        lines = "\n".join(f"  {change}  ({change.where})" for change in bound)
        yield _about_folder(
            f"{display(run.path)} contains a run that was trained with other settings, and these cannot "
            f"change on resume:\n{lines}\nNothing was written.",
            f"To continue the run with its own settings, run `nbtrain resume {run.name}`. To train with the "
            "new settings, set another `name:`.",
        )


def backend_is_the_same(request: Request) -> Checks:
    """Check that the run's active job is on the backend of `config`."""
    run, config, record = request.run, request.config, request.existing.record
    if request.existing.active and record and record.backend != config.backend.kind:
        yield mistake(
            config,
            "backend.kind",
            f"backend.kind = {config.backend.kind}, but the job of {display(run.path)} is "
            f"{request.existing.state} on backend {record.backend}, and a run can have only one job at a "
            "time. Nothing was submitted.",
            f"To move the run to {config.backend.kind}, run `nbtrain cancel {run.name}` and submit again; it "
            "continues from its newest checkpoint. To train a separate run there, set another `name:`. To "
            "see what would be sent, use a dry run.",
        )


def length_is_not_reached(request: Request) -> Checks:
    """Check that the newest checkpoint fits the run's length and mode.

    It must not be beyond the run's last step. mode: eval needs a checkpoint; mode: perf must start without
    one.
    """
    run, config, checkpoints = request.run, request.config, request.existing.checkpoints
    # mode: eval and perf also count checkpoints on the nodes' own disks, whether or not they still exist.
    step = checkpoints.complete_step if config.mode == "full" else checkpoints.saved_step
    if step is None and config.mode == "eval" and not checkpoints.incomplete:
        yield mistake(
            config,
            "mode",
            f"mode = eval needs a checkpoint, and {display(run.path)} has none.",
            "Train the run first, with mode: full.",
        )
    elif step is not None and config.mode == "perf":
        yield mistake(
            config,
            "mode",
            f"mode = perf measures from the first step and saves nothing, but {display(run.path)} has been "
            f"trained to step {step:,}.",
            "Set another `name:` for the measurement.",
        )
    elif step is not None and step > config.train_steps:
        unit, _ = config.batch.train_amount
        key = "batch.max_steps" if config.train_steps < config.scheduled_steps else f"batch.train_{unit}"
        yield mistake(
            config,
            key,
            f"{key} ends the run after {amounts.counted(config.train_steps, 'step')}, but "
            f"{display(run.path)} has reached step {step:,}.",
            f"Raise {key}, or train from the beginning under another `name:`.",
        )


def a_checkpoint_is_complete(request: Request) -> Checks:
    """Check, by file names and sizes, that the run has a complete checkpoint or no checkpoint at all."""
    run, start = request.run, request.existing.checkpoints.resume_start(request.config.mode)
    torn = [f"{run.checkpoint(step).name}: {reason}" for step, reason in start.torn]
    if torn:
        yield _about_folder(
            f"{display(run.model)}: no checkpoint is complete: {'; '.join(torn)}.",
            "Remove the folder to train from the beginning, or restore a complete checkpoint there.",
        )


def data_is_the_same(request: Request, data: RunData) -> Checks:
    """Check that the dataset has not been rebuilt since the newest checkpoint.

    Training cannot continue on a rebuilt dataset, which has its samples in another order.
    """
    run, config = request.run, request.config
    step, now = request.existing.checkpoints.complete_step, data.dataset_sha256
    if step is None or now is None:
        return
    manifest = files.read_json(run.checkpoint_manifest(step)) or {}
    then = manifest.get("data_state", {}).get("dataset_sha256")
    if then not in (None, now):
        yield _about_folder(
            f"{display(run.path)} was trained on dataset {config.data.name} with SHA-256 {then[:12]}..., but "
            f"the dataset has since been rebuilt and its SHA-256 is now {now[:12]}...: training cannot "
            f"continue on it from the checkpoint of step {step:,}.",
            "Restore the dataset, or train on the new one under another `name:`.",
        )


# Checks of a resume that do not depend on the data, in the order in which their findings are listed.
CONTINUES: tuple[Check, ...] = (training_is_the_same, a_checkpoint_is_complete, length_is_not_reached)


def was_trained_with(run: RunDir, config: RunConfig) -> bool:
    """Return whether any job of the run had the settings of `config`, in the fields that training depends on.

    Earlier jobs count too: a run that was resumed with more tokens, for example, was also trained with its
    earlier settings.
    """
    facts = read_run(run)

    def matches(before: RunConfig) -> bool:
        return before.mode == config.mode and not trained_changes(before, config)

    for before in (facts.finished_config, facts.config or load_resolved(run.config_yaml)):
        if before is not None and matches(before):
            return True
    for job_id in run.job_ids():
        # A job that was interrupted at its start has no config.yaml, and one from an earlier version of
        # nbtrain may be unreadable.
        with contextlib.suppress(ConfigError):
            path = run.job(job_id).config_yaml
            if path.is_file() and matches(load_resolved(path)):
                return True
    return False


def _clone(run: RunDir, before: RunConfig, config: RunConfig) -> str:
    """Return the `nbtrain clone` command that trains `config` as a new run."""
    return f"`nbtrain clone {run.name} NEWNAME{as_overrides(before, config)}`"


def _differs(before: RunConfig, config: RunConfig) -> str:
    """Return the settings of a finished run that `config` would change, one per line; "" if none change."""
    lines = _lines(trained_changes(before, config))
    return f"\nThe submission would change these settings of the finished run:{lines}" if lines else ""


def _lines(changes: Iterable[Change]) -> str:
    return "".join(f"\n  {change}  ({change.where})" for change in changes)


def trained_changes(before: RunConfig, now: RunConfig) -> list[Change]:
    """Return the changes to fields that training depends on, and to backend.kind."""
    return [
        change
        for change in submitted_changes(before, now)
        if change.key == "backend.kind" or not within(change.key, NOT_TRAINED)
    ]


def more_to_train(run: RunDir, config: RunConfig, asked: RunConfig | None = None) -> str:
    """Return the command that continues training a finished run.

    The command sets the training length in `asked` if that is longer than the run's; otherwise it removes
    a trial's step limit or doubles the length. It includes the other changes in `asked`, followed by a list
    of the changes that are not allowed on resume.
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
