"""Drive a sweep: start its runs as there is room, stop those that cannot win, and wait for the last one.

    drive(sweep) -> {name: state}

The driver keeps no state of its own but the sentences of stopped runs (sweep.json): each turn reads the runs'
records. So it can be killed and started again at any moment, on the same or another machine. What it finds,
and what it does:

    a run without a job                          submits it, if fewer than at_once are active
    LOST: its processes are gone                 resumes it from its newest checkpoint
    FAILED or CANCELLED                          leaves it; resumes it once with `again`
    active                                       waits; the stop rule may stop it
    paused by a user                             waits, and counts it as active
    SUCCEEDED                                    done
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.errors import ConfigError, JobError, NbtrainError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    CANCELLED,
    FAILED,
    FAILURES,
    LOST,
    NO_JOB,
)
from nbtrain.base.run_directory.records import Record
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.config.load import load_resolved
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.changes import changes_between
from nbtrain.jobs.control import cancel
from nbtrain.jobs.submit import TRAINER, resume, submit
from nbtrain.jobs.sweep.stop_rule import read_curve, verdict
from nbtrain.jobs.sweep.sweep_file import LABEL, Sweep, SweepRun, sweep_folder
from nbtrain.monitor.status.notes import change_notes, notes_of

POLL_SECONDS = 2.0
SCHEMA_VERSION = 1

Say = Callable[[str], None]


@dataclass
class SweepRecord(Record):
    """sweep.json: the runs of a sweep, for readers without its file, and those that the rule has stopped."""

    name: str
    file: str
    runs: list[str]
    settings: list[dict[str, Any]]
    stopped: dict[str, str] = field(default_factory=dict)
    """Why a run was stopped, by its name."""
    schema_version: int = SCHEMA_VERSION


def read_record(name: str) -> SweepRecord | None:
    """Return the record of a sweep; None if it was never started. Raises RecordError for a damaged one."""
    return SweepRecord.read(sweep_folder(name) / "sweep.json")


@dataclass
class Turn:
    """The states of a sweep's runs at one moment."""

    states: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    """Why a run could not be submitted, by its name."""

    def count(self, *states: str) -> int:
        return sum(state in states for state in self.states.values())

    @property
    def active(self) -> int:
        return sum(state in ACTIVE for state in self.states.values())

    @property
    def to_start(self) -> int:
        """Number of runs that are still to be submitted."""
        return sum(state == NO_JOB and name not in self.errors for name, state in self.states.items())

    @property
    def words(self) -> str:
        """Numbers of runs by state, e.g. "4 of 6 ended, 2 active"."""
        waiting = self.to_start
        ended = len(self.states) - self.active - waiting
        parts = [f"{ended} of {len(self.states)} ended", f"{self.active} active"]
        parts += [f"{waiting} to start"] if waiting else []
        bad = self.count(*FAILURES) + len(self.errors)
        return ", ".join([*parts, f"{bad} failed"] if bad else parts)


def drive(
    sweep: Sweep,
    *,
    at_once: int | None = None,
    again: bool = False,
    say: Say = lambda line: None,
    command: tuple[str, ...] = TRAINER,
    prepare: Callable[[SweepRun], None] = lambda run: None,
    turn_done: Callable[[Turn], None] = lambda turn: None,
) -> Turn:
    """Run a sweep to its end; return the runs' last states.

    `at_once` replaces the file's. With `again`, each failed or cancelled run is resumed once. `prepare` is
    called before a run's first submission. Raises JobError if another process drives this sweep, and
    ConfigError if a run of that name exists and is not of this sweep.
    """
    refuse_other_runs(sweep)
    folder = sweep_folder(sweep.name)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(folder, blocking=False)
    if descriptor is None:
        raise JobError(f"{display(folder)}: another process drives the sweep {sweep.name}. Wait for it.")
    try:
        return _drive(sweep, at_once or sweep.config.at_once, again, say, command, prepare, turn_done)
    finally:
        os.close(descriptor)


def _drive(
    sweep: Sweep,
    at_once: int,
    again: bool,
    say: Say,
    command: tuple[str, ...],
    prepare: Callable[[SweepRun], None],
    turn_done: Callable[[Turn], None],
) -> Turn:
    record = read_record(sweep.name)
    known = record.stopped if record else {}
    record = SweepRecord(
        sweep.name,
        display(sweep.path),
        [run.name for run in sweep.runs],
        [dict(run.settings) for run in sweep.runs],
        known,
    )
    record.write(sweep_folder(sweep.name) / "sweep.json")
    retried: set[str] = set()
    errors: dict[str, str] = {}
    while True:
        turn = Turn({run.name: state_of(run.name) for run in sweep.runs}, errors)
        for run in sweep.runs:
            if turn.active >= at_once:
                break
            state, name = turn.states[run.name], run.name
            resumes = state == LOST
            if again and state in (FAILED, CANCELLED) and name not in retried and name not in record.stopped:
                retried.add(name)
                resumes = True
            if name in errors or not (resumes or state == NO_JOB):
                continue
            try:
                if resumes:
                    resume(RunDir.named(name), command=command)
                else:
                    prepare(run)
                    submit(run.config, command=command)
            except NbtrainError as error:
                errors[name] = str(error)
                say(f"{name}: {error}")
                continue
            turn.states[name] = state_of(name)
            say(f"{name}: {'resumed' if resumes else 'started'}")
        _stop(sweep, turn, record, say)
        turn_done(turn)
        if not turn.active and not _startable(turn, record, again, retried):
            return turn
        time.sleep(POLL_SECONDS)


def _startable(turn: Turn, record: SweepRecord, again: bool, retried: set[str]) -> bool:
    """Return whether the next turn has a run to start."""
    for name, state in turn.states.items():
        if name in turn.errors:
            continue
        if state in (NO_JOB, LOST):
            return True
        if again and state in (FAILED, CANCELLED) and name not in retried and name not in record.stopped:
            return True
    return False


def state_of(name: str) -> str:
    """Return the state of a run's newest job; NO_JOB before the first."""
    run = RunDir.named(name)
    newest = run.newest_job() if run.path.is_dir() else None
    return status_of(newest)[0] if newest is not None else NO_JOB


def refuse_other_runs(sweep: Sweep) -> None:
    """Raise ConfigError if a run of one of the sweep's names is not of this sweep, or has other settings."""
    where, foreign = display(sweep.path), []
    for run in sweep.runs:
        directory = RunDir.named(run.name)
        if not directory.exists() or not directory.config_yaml.is_file():
            continue
        before = load_resolved(directory.config_yaml)
        if before.all_labels.get(LABEL) != sweep.name:
            foreign.append(run.name)
        elif changes := changes_between(before, run.config):
            raise ConfigError(
                f"{where}: the run {run.name} was submitted with other settings: "
                f"{'; '.join(map(str, changes))}. Restore them in the file, or give the sweep another name."
            )
    if foreign:
        raise ConfigError(
            f"{where}: runs of these names exist and are not of this sweep: {', '.join(foreign)}. Give the "
            "sweep another name."
        )


def _stop(sweep: Sweep, turn: Turn, record: SweepRecord, say: Say) -> None:
    """Stop the active runs that the rule rules out. The reason is written before the run is stopped."""
    rule = sweep.config.stop
    if rule is None:
        return
    curves = {
        name: read_curve(RunDir.named(name), rule.metric)
        for name, state in turn.states.items()
        if state != NO_JOB
    }
    for name, state in turn.states.items():
        if state not in ACTIVE:
            continue
        reason = record.stopped.get(name) or verdict(rule, curves, name)
        if not reason:
            continue
        run = RunDir.named(name)
        if name not in record.stopped:
            record.stopped[name] = reason
            record.write(sweep_folder(sweep.name) / "sweep.json")
            told = f"Stopped by the sweep {sweep.name} ({rule.rule}): {reason}."
            notes = notes_of(run).notes
            change_notes(run, notes=f"{notes}\n{told}".strip())
            newest = run.newest_job()
            assert newest is not None
            EventWriter(newest, "sweep").write("stop_rule", told)
            say(f"{name}: stopped, because {reason}")
        newest = run.newest_job()
        if newest is not None:
            turn.states[name] = cancel(newest)[0]
