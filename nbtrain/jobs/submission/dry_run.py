"""Dry run: write a submission to a file, which any user with access to the scheduler can submit."""

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

# First line of every text from request_text(alone=True); in a script, the second line, after the shebang.
HEADING = re.compile(rb"(?:#!.*\n)?# .*\bjob \S.*, written by nbtrain\.")
HEADING_BYTES = 4096


def request_text(config: RunConfig, alone: bool = False) -> str:
    """Return the batch script, manifest or commands that would start a run; "" for backend local.

    No scheduler is contacted. With `alone`, the text starts the run without `nbtrain submit`. Raises
    ConfigError if the configuration breaks a rule.
    """
    check_config(config)
    run = RunDir.named(config.name)
    return backend_of(config.backend.kind).request_text(run.job(run.unused_job_id()), config, alone)


def dry_run(config: RunConfig, path: str | Path) -> Path:
    """Write a file that can start the run by itself, and return its path.

    An existing file is replaced only if a dry run wrote it. A relative path starts at the current folder, as
    for every output file. Warns if pods would be killed before they have saved. Raises ConfigError if the
    backend has no scheduler or the path does not name a file, and SubmitError if the file cannot be written.
    """
    path = typed_path(path_of(path)).absolute()
    text = request_text(config, alone=True)
    if not text:
        raise ConfigError(
            f"{config.where('backend.kind')}: backend.kind = {config.backend.kind} has no scheduler, so "
            "a dry run has nothing to write. Set backend.kind to hosts, slurm or kubernetes."
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
    """Log a warning if the plan finds that the pods' grace period, which the file sets, is too short."""
    from nbtrain.planner.lint.machine import pods_have_time_to_save
    from nbtrain.planner.plan import plan

    for finding in plan(config).findings:
        if finding.rule == pods_have_time_to_save.__name__:
            logger.warning("%s: %s", finding.head, finding.text)


def _refuse_to_overwrite(path: Path) -> None:
    """Raise SubmitError if the file exists and was not written by a dry run, such as the run's own YAML."""
    if not path.is_file():
        return
    with path.open("rb") as stream:
        head = stream.read(HEADING_BYTES)
    if head and not HEADING.match(head):
        raise SubmitError(
            f"{path} already exists and was not written by a dry run; nothing was written. Choose another "
            "file, or delete this one if you do not need it."
        )
