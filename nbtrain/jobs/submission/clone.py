"""Make a new run from another run's configuration.

The two functions:

    clone(run, name)           write a run directory with run.json and config.yaml; start nothing
    submit_clone(run, name)    submit the new run; write nothing if it is refused
"""

import contextlib
import os

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.rundir import JobDir, RunDir, runs_like
from nbtrain.base.workspace import display
from nbtrain.config.load import Overrides, load, load_resolved, to_yaml
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.checks.existing_run import HARMLESS_ENTRIES, refuse_foreign
from nbtrain.jobs.submission.job_files import make_folder, unwritable, write_identity
from nbtrain.jobs.submission.submit import submit
from nbtrain.monitor.status.notes import own_labels_of


def clone(run: RunDir, name: str, overrides: Overrides = None) -> RunConfig:
    """Create a run directory `name` with the configuration of `run` and `overrides`; nothing is started.

    The new run trains from the beginning and has the current labels of `run`; its run.json names `run` as its
    parent. Returns the new run's configuration, for submit(). Raises SubmitError if the name is taken or the
    disk cannot be written, and ConfigError if the overrides break a rule.
    """
    config = _cloned(run, name, overrides)
    target = RunDir.named(name)
    make_folder(target)
    with target.locked():
        # Another process may have cloned to this name first.
        _refuse_taken(target)
        try:
            write_identity(target, run.run_id)
            files.write_text(target.config_yaml, to_yaml(config))
        except OSError as error:
            # A half-written clone would keep the name taken.
            for path in (target.run_json, target.config_yaml):
                with contextlib.suppress(OSError):
                    path.unlink()
            raise unwritable(target, error) from error
    return config


def submit_clone(
    run: RunDir, name: str, overrides: Overrides = None, *, tries_code: bool = True
) -> tuple[JobDir, RunConfig]:
    """Submit `run`'s configuration with `overrides` as a new run `name`; return its job and configuration.

    Nothing is written if the new run is refused. Raises the same errors as clone() and submit().
    """
    config = _cloned(run, name, overrides)
    return submit(config, parent=run.run_id, tries_code=tries_code), config


def _cloned(run: RunDir, name: str, overrides: Overrides) -> RunConfig:
    refuse_foreign(run)
    if not run.exists():
        raise SubmitError(f"{display(run.path)}: there is no run to clone. {runs_like(run.name)}")
    before = load_resolved(run.config_yaml).model_copy(update={"labels": own_labels_of(run)})
    config = load(load(before, overrides, check=False), {"name": name})
    if config.mode == "eval":
        # mode: eval was for the last job of the source run: a new run has nothing to evaluate yet.
        config = with_overrides(config, {"mode": "full"})
    _refuse_taken(RunDir.named(name))
    return config


def _refuse_taken(target: RunDir) -> None:
    if target.path.exists() and set(os.listdir(target.path)) - HARMLESS_ENTRIES:
        raise SubmitError(f"{display(target.path)} already exists. Choose another name for the clone.")
