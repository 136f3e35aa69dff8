"""The request of a submission: a run's configuration and the run directory that exists, each read once.

    read_run(run) -> RunFacts           what earlier submissions left in the run directory
    read_request(config) -> Request     both, with the weights that the run starts from

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
    """The contents of a run directory that a submission depends on."""

    run: RunDir
    newest: JobDir | None
    """The newest job, or None."""
    record: JobRecord | None
    """The newest job's record; None if there is none, or if its submission is not completely written."""
    state: str | None
    """The state of the newest job; None without a job."""
    config: RunConfig | None
    """The configuration of the last submission; None before the first one."""
    checkpoints: SavedCheckpoints

    @property
    def active(self) -> JobDir | None:
        """The newest job, if it is active and its submission is completely written."""
        return self.newest if self.record is not None and self.state in ACTIVE else None

    @property
    def finished_config(self) -> RunConfig | None:
        """The configuration with which the run was trained to its end; None if it was not trained to its
        end.
        """
        if self.state != SUCCEEDED:
            return None
        before = self.config or load_resolved(self.run.config_yaml)
        if before.mode == "eval" and not evaluates_early(before, self.checkpoints.complete_step):
            # mode: eval belonged to the last job only.
            before = with_values(before, {"mode": "full"})
        return before if before.mode == "full" else None

    @functools.cached_property
    def has_trained(self) -> bool:
        """Whether a checkpoint or a heartbeat shows that the run has made a step. Heartbeats are read only if
        there is no checkpoint.
        """
        if self.checkpoints.complete_step is not None or self.checkpoints.incomplete:
            return True
        beats = (Heartbeat.read(self.run.job(job_id).heartbeat(0)) for job_id in self.run.job_ids())
        return any(beat is not None and beat.step > 0 for beat in beats)


def read_run(run: RunDir) -> RunFacts:
    """Read a run directory, which need not exist. Raises ConfigError if its config.yaml is damaged, or if it
    is missing while a job is active.
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
    """Return the newest job of a run, if it is active and its submission is completely written."""
    newest = run.newest_job()
    return newest if newest and newest.job_json.exists() and status_of(newest)[0] in ACTIVE else None


@dataclass(frozen=True)
class Request:
    """A configuration to run, with the existing run directory and the initial weights."""

    config: RunConfig
    """The configuration, with the token rows filled in that adapters train (with_new_tokens)."""
    existing: RunFacts
    """The run directory before the submission."""
    changes: tuple[Change, ...]
    """The settings that differ from the last submission."""
    weights: InitialWeights
    """The weights of init_from, if the next job reads them."""

    @property
    def run(self) -> RunDir:
        return self.existing.run


def read_run_again(request: Request) -> Request:
    """Return the request with the run directory as it is now, for a decision under the run's lock."""
    existing = read_run(request.run)
    return replace(request, existing=existing, changes=_changes(existing, request.config))


def _changes(existing: RunFacts, config: RunConfig) -> tuple[Change, ...]:
    return tuple(changes_between(existing.config, config)) if existing.config else ()


def submitted_changes(before: RunConfig, config: RunConfig) -> list[Change]:
    """Return the settings that differ between an earlier submission of a run and `config`, which was not
    submitted.

    The token rows that the submission filled in (with_new_tokens) do not differ if `config` omits them. Nor
    does the mode after mode: eval, which belonged to that job only. No weights are read.
    """
    if before.mode == "eval":
        before = with_values(before, {"mode": config.mode})
    return changes_between(before, with_new_tokens(config, InitialWeights(begins=False), before))


def read_request(config: RunConfig, existing: RunFacts | None = None) -> Request:
    """Read the run directory and the initial weights of a configuration. `existing` is the run directory, if
    it has been read already.
    """
    existing = existing or read_run(RunDir.named(config.name))
    weights = read_initial_weights(config, begins=existing.checkpoints.saved_step is None)
    config = with_new_tokens(config, weights, existing.config)
    return Request(config, existing, _changes(existing, config), weights)
