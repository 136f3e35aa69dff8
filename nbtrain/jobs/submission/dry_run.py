"""Text of a submission to a scheduler: written by this process, submitted by any user who may submit it."""

import logging
import re
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import typed_path
from nbtrain.config.rules.check import check_config
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import backend_of
from nbtrain.jobs.checks.limits import refuse_run_over_limits
from nbtrain.planner.run_file import path_of

logger = logging.getLogger(__name__)

# One of the first two lines of each text that request_text(alone=True) gives; a script begins with its shell.
HEADING = re.compile(rb"(?:#!.*\n)?# .*\bjob \S.*, written by nbtrain\.")
HEADING_BYTES = 4096


def request_text(config: RunConfig, alone: bool = False) -> str:
    """Return the batch script, manifest or commands that would start a run; "" if it runs here. No scheduler
    is contacted.

    With `alone`, the text starts the run without `nbtrain submit`. Raises ConfigError for a broken rule.
    """
    check_config(config)
    run = RunDir.named(config.name)
    return backend_of(config.backend.kind).request_text(run.job(run.unused_job_id()), config, alone)


def dry_run(config: RunConfig, path: str | Path) -> Path:
    """Write a file that starts the run by itself; an existing file is replaced only if a dry run wrote it.

    A relative path starts at the current folder, as for every file to write. Warns if pods would be killed
    before they have saved. Raises ConfigError if the backend has no scheduler or the path names no file,
    SubmitError if it cannot be written.
    """
    path = typed_path(path_of(path)).absolute()
    text = request_text(config, alone=True)
    if not text:
        raise ConfigError(
            f"{config.where('backend.kind')}: backend.kind = {config.backend.kind}: a dry run writes what a "
            "scheduler receives, but this backend has none. Set backend.kind to hosts, slurm or kubernetes."
        )
    refuse_run_over_limits(config)
    try:
        _refuse_to_overwrite(path)
        files.write_output(path, text)
    except OSError as error:
        raise SubmitError(f"{path} cannot be written: {error.strerror}. Name another file.") from error
    if config.backend.kind == "kubernetes":
        _warn(config)
    return path


def _warn(config: RunConfig) -> None:
    """Warn about findings of the plan on the pods' grace period, which is in the file."""
    from nbtrain.planner.lint.machine import pods_have_time_to_save
    from nbtrain.planner.plan import plan

    for finding in plan(config).findings:
        if finding.rule == pods_have_time_to_save.__name__:
            logger.warning("%s: %s", finding.head, finding.text)


def _refuse_to_overwrite(path: Path) -> None:
    """Raise SubmitError if the existing file was not written by a dry run, for example the run's own YAML."""
    if not path.is_file():
        return
    with path.open("rb") as stream:
        head = stream.read(HEADING_BYTES)
    if head and not HEADING.match(head):
        raise SubmitError(
            f"{path}: exists already, and no dry run of nbtrain wrote it; nothing was written. Name another "
            "file, or delete it first if you do not need it."
        )
