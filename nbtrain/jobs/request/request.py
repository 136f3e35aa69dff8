"""The request of a submission: a run's configuration and its existing run directory, each read once.

    read_run(run) -> RunFacts           what earlier submissions left in the run directory
    read_request(config) -> Request     the configuration, these facts, and the initial weights

jobs/checks/existing_run.py checks a Request. launch.py reads everything else that a new job depends on.
"""

import functools
from dataclasses import dataclass, replace

from nbtrain.base.run_directory.checkpoint_files import SavedCheckpoints, read_checkpoints
from nbtrain.base.run_directory.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.config.load.changes import Change, changes_between
from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.request.initial_weights import InitialWeights, read_initial_weights, with_new_tokens
from nbtrain.monitor.status.steps_left import evaluates_early


@dataclass(frozen=True)
class RunFacts:
    """The contents of a run directory on which a submission depends."""

    run: RunDir
    newest: JobDir | None
    """The newest job; None if the run has no job."""
    record: JobRecord | None
    """The newest job's record; None without a job, or if its submission is not completely written."""
    state: str | None
    """The newest job's state; None without a job."""
    config: RunConfig | None
    """The configuration of the last submission; None before the first submission."""
    checkpoints: SavedCheckpoints

    @property
    def active(self) -> JobDir | None:
        """The newest job if it is active and its submission is completely written; else None."""
        return self.newest if self.record is not None and self.state in ACTIVE else None

    @property
    def finished_config(self) -> RunConfig | None:
        """The configuration with which the run has finished training; None if it has not finished."""
        if self.state != SUCCEEDED:
            return None
        before = self.config or load_resolved(self.run.config_yaml)
        if before.mode == "eval" and not evaluates_early(before, self.checkpoints.complete_step):
            # mode: eval was only for the last job.
            before = with_values(before, {"mode": "full"})
        return before if before.mode == "full" else None

    @functools.cached_property
    def has_trained(self) -> bool:
        """Whether a checkpoint or a heartbeat shows that the run has trained a step.

        Heartbeats are read only if there is no checkpoint.
        """
        if self.checkpoints.complete_step is not None or self.checkpoints.incomplete:
            return True
        beats = (Heartbeat.read(self.run.job(job_id).heartbeat(0)) for job_id in self.run.job_ids())
        return any(beat is not None and beat.step > 0 for beat in beats)


def read_run(run: RunDir) -> RunFacts:
    """Read a run directory, which need not exist.

    Raises ConfigError if its config.yaml is damaged, or if the file is missing while a job is active.
    """
    if not run.path.is_dir():
        return RunFacts(run, None, None, None, None, SavedCheckpoints(None, (), None))
    newest = run.newest_job()
    state = status_of(newest)[0] if newest else None
    record = JobRecord.read(newest.job_json) if newest else None
    is_active = record is not None and state in ACTIVE
    config = load_resolved(run.config_yaml) if is_active or run.config_yaml.is_file() else None
    return RunFacts(run, newest, record, state, config, read_checkpoints(run))


def active_job(run: RunDir) -> JobDir | None:
    """Return a run's newest job if it is active and its submission is completely written; else None."""
    newest = run.newest_job()
    return newest if newest and newest.job_json.exists() and status_of(newest)[0] in ACTIVE else None


@dataclass(frozen=True)
class Request:
    """A configuration to run, with the existing run directory and the initial weights."""

    config: RunConfig
    """The configuration, in which with_new_tokens() has filled in the token rows that adapters train."""
    existing: RunFacts
    """The contents of the run directory before the submission."""
    changes: tuple[Change, ...]
    """Changes to settings since the last submission."""
    weights: InitialWeights
    """The weights of init_from, if the next job reads them."""

    @property
    def run(self) -> RunDir:
        return self.existing.run


def read_run_again(request: Request) -> Request:
    """Return the request with the current state of the run directory, for a decision under the run's lock."""
    existing = read_run(request.run)
    return replace(request, existing=existing, changes=_changes(existing, request.config))


def _changes(existing: RunFacts, config: RunConfig) -> tuple[Change, ...]:
    return tuple(changes_between(existing.config, config)) if existing.config else ()


def submitted_changes(before: RunConfig, config: RunConfig) -> list[Change]:
    """Return the settings that differ between a run's earlier submission and `config`, not yet submitted.

    Token rows that the submission filled in (with_new_tokens) do not count as a change if `config` omits
    them, and neither does the mode after mode: eval, which was only for that job. No weights are read.
    """
    if before.mode == "eval":
        before = with_values(before, {"mode": config.mode})
    return changes_between(before, with_new_tokens(config, InitialWeights(begins=False), before))


def read_request(config: RunConfig, existing: RunFacts | None = None) -> Request:
    """Read the run directory and the initial weights of a configuration.

    `existing` are the contents of the run directory, if they have already been read.
    """
    existing = existing or read_run(RunDir.named(config.name))
    weights = read_initial_weights(config, begins=existing.checkpoints.saved_step is None)
    config = with_new_tokens(config, weights, existing.config)
    return Request(config, existing, _changes(existing, config), weights)
