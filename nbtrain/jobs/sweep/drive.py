"""Drive a sweep: start its runs when there is room, stop runs that cannot win, and wait until all have ended.

    drive(sweep) -> Turn

Each turn reads the runs' records. The driver itself records only why it stopped or could not start a run
(sweep.json), so it can be killed and started again at any time, on the same or another machine. What it does
with a run depends on the run's state:

    no job yet                                   submit it, if fewer than at_once runs are active
    LOST (its processes are gone)                resume it from its newest checkpoint, but leave it alone
                                                 if it is LOST again without a new checkpoint
    FAILED or CANCELLED                          leave it alone, or with `again` resume it once
    SUCCEEDED, but only evaluated (mode: eval)   leave it alone, or with `again` resume it once
    before its last step
    active                                       wait; the stop rule may stop it
    paused by a user                             wait; the run counts as active
    SUCCEEDED otherwise, or stopped by the rule  nothing; the run is done
    DAMAGED (a record cannot be read)            leave it alone
"""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from nbtrain.base.errors import ConfigError, JobError, NbtrainError, RecordError
from nbtrain.base.files import read_json
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.checkpoint_files import newest_saved_step
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    CANCELLED,
    DAMAGED,
    FAILED,
    LOST,
    NO_JOB,
)
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.config.code_file import PASSED, code_sha256
from nbtrain.config.load import load_resolved
from nbtrain.config.sections.sweep_section import LABEL
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.control.control import cancel
from nbtrain.jobs.request.request import submitted_changes
from nbtrain.jobs.submission.submit import TRAINER, resume, submit
from nbtrain.jobs.sweep.stop_rule import TokenCurve, read_curve, verdict
from nbtrain.jobs.sweep.sweep_file import Sweep, SweepRun
from nbtrain.jobs.sweep.sweep_record import (
    SEED_KEYS,
    SweepRecord,
    has_ended,
    is_to_start,
    read_record,
    sweep_folder,
)
from nbtrain.monitor.status.notes import change_notes, notes_of
from nbtrain.monitor.status.steps_left import has_steps_left

POLL_SECONDS = 2.0
# Seeds as {section: fields}, and the sections of a run that affect the trial of its `code`.
SEEDS = {key.partition(".")[0]: {key.partition(".")[2]} for key in SEED_KEYS}
TRIED_SECTIONS = {"model", "tokenizer", "precision", "parallel", "data", "lora", "dpo"}

Say = Callable[[str], None]


@dataclass
class Turn:
    """The states of a sweep's runs at one moment, as {name: state}."""

    states: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    """{name: why the run could not be submitted or resumed}."""
    stopped: Collection[str] = ()
    """Names of the runs that the stop rule has stopped."""

    @property
    def active(self) -> int:
        return sum(state in ACTIVE for state in self.states.values())

    @property
    def to_start(self) -> int:
        """Number of runs that still have to be submitted or resumed."""
        return sum(self.is_to_start(name) for name in self.states)

    @property
    def ended(self) -> int:
        """Number of runs that are not active and will not be started."""
        return sum(has_ended(state, self._is_left(name)) for name, state in self.states.items())

    @property
    def words(self) -> str:
        """Numbers of runs by state, such as "4 of 6 ended, 2 active"."""
        waiting = self.to_start
        parts = [f"{self.ended} of {len(self.states)} ended", f"{self.active} active"]
        parts += [f"{waiting} to start"] if waiting else []
        bad = sum(state == FAILED or name in self.errors for name, state in self.states.items())
        return ", ".join([*parts, f"{bad} failed"] if bad else parts)

    def is_to_start(self, name: str) -> bool:
        """Return whether a run will be submitted or resumed once fewer than at_once runs are active."""
        return is_to_start(self.states[name], self._is_left(name))

    def _is_left(self, name: str) -> bool:
        return name in self.errors or name in self.stopped


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
    """Run a sweep to its end, and return the runs' last states.

    `at_once` overrides the value in the sweep file. With `again`, each run that failed, was cancelled or was
    only evaluated before its last step is resumed once. `say` gets each line of progress, and `turn_done` the
    states after each turn. `prepare` is called before a run's first submission. Raises JobError if another
    process is running this sweep, and ConfigError if a run with one of the names exists but does not belong
    to this sweep.
    """
    refuse_other_runs(sweep)
    folder = sweep_folder(sweep.name)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(folder, blocking=False)
    if descriptor is None:
        raise JobError(
            f"{display(folder)}: another process is already running the sweep {sweep.name}. Wait until it "
            "ends."
        )
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
    code = _pinned(sweep, record.code if record else {})
    record = SweepRecord(
        sweep.name,
        display(sweep.path),
        [run.name for run in sweep.runs],
        [dict(run.settings) for run in sweep.runs],
        known,
        code,
    )
    record.write(sweep_folder(sweep.name) / "sweep.json")
    retried: set[str] = set()
    tried: dict[str, str] = {}
    lost_at: dict[str, int | None] = {}
    curves: dict[str, tuple[str, TokenCurve]] = {}

    def may_retry(turn: Turn, name: str) -> bool:
        is_left = name not in retried and name not in record.errors and name not in turn.stopped
        state = turn.states[name]
        if not again or not is_left:
            return False
        return state in (FAILED, CANCELLED) or has_steps_left(RunDir.named(name), state)

    while True:
        turn = Turn({run.name: state_of(run.name) for run in sweep.runs}, record.errors, record.stopped)
        for run in sweep.runs:
            if turn.active >= at_once:
                break
            state, name = turn.states[run.name], run.name
            if may_retry(turn, name):
                retried.add(name)
            elif not turn.is_to_start(name):
                continue
            resumes = state != NO_JOB
            try:
                if state == LOST:
                    _refuse_lost_again(name, lost_at)
                if resumes:
                    resume(RunDir.named(name), command=command)
                else:
                    prepare(run)
                    _pinned(sweep, record.code)
                    _submit(run, command, tried)
            except NbtrainError as error:
                record.errors[name] = str(error)
                record.write(sweep_folder(sweep.name) / "sweep.json")
                say(f"{name}: {error}")
                continue
            turn.states[name] = state_of(name)
            say(f"{name}: {'resumed' if resumes else 'started'}")
        _stop(sweep, turn, record, curves, say)
        turn_done(turn)
        if not turn.active and not turn.to_start and not any(may_retry(turn, name) for name in turn.states):
            return turn
        time.sleep(POLL_SECONDS)


def _pinned(sweep: Sweep, known: dict[str, str]) -> dict[str, str]:
    """Return {path: SHA-256} of the files that `code` names in a sweep's runs.

    `known` are the hashes from the sweep's first start. Raises ConfigError if a file has changed since then,
    because the runs would not be comparable.
    """
    found = dict(known)
    for run in sweep.runs:
        path, sha256 = run.config.code, code_sha256(run.config)
        if path is None or sha256 is None:
            continue
        if found.setdefault(path, sha256) != sha256:
            raise ConfigError(
                f"{display(sweep.path)}: code = {path} has changed since the sweep was first started: its "
                f"SHA-256 is {sha256[:12]}..., and it was {found[path][:12]}... before. All runs of a sweep "
                "must use the same file. Restore the file, or give the sweep another name."
            )
    return found


def _submit(run: SweepRun, command: tuple[str, ...], tried: dict[str, str]) -> None:
    """Submit a run. The file that its `code` names is not tried again if an earlier run had the same trial.

    `tried` contains the results of the earlier trials, as {settings that the trial depends on: result}.
    """
    config = run.config
    depends = f"{config.code} {config.model_dump_json(include=TRIED_SECTIONS, exclude=SEEDS)}"
    job = submit(config, command=command, code_tried=tried.get(depends, ""))
    record = read_json(job.run.own_code_json)
    if record is not None and record["tried"] == PASSED:
        tried[depends] = PASSED


def _refuse_lost_again(name: str, lost_at: dict[str, int | None]) -> None:
    """Raise JobError if a run is LOST again and has not saved a checkpoint since it was resumed.

    `lost_at` contains {name: step of the newest checkpoint} for the lost runs that were resumed.
    """
    saved = newest_saved_step(RunDir.named(name))
    if name in lost_at and lost_at[name] == saved:
        raise JobError(
            "its processes ended again, and it has not saved a checkpoint since it was resumed. For the "
            f"reason, see `nbtrain logs {name}`. To resume it once more, run the sweep again."
        )
    lost_at[name] = saved


def state_of(name: str) -> str:
    """Return the state of a run's newest job.

    It is NO_JOB before the first job, and DAMAGED if a record cannot be read.
    """
    run = RunDir.named(name)
    newest = run.newest_job() if run.path.is_dir() else None
    try:
        return status_of(newest)[0] if newest is not None else NO_JOB
    except RecordError:
        return DAMAGED


def refuse_other_runs(sweep: Sweep) -> None:
    """Raise ConfigError if a run of this sweep has other settings, or if another run has its name.

    A run belongs to this sweep if it has the sweep's label.
    """
    where, foreign = display(sweep.path), []
    for run in sweep.runs:
        directory = RunDir.named(run.name)
        if not directory.exists() or not directory.config_yaml.is_file():
            continue
        before = load_resolved(directory.config_yaml)
        if before.all_labels.get(LABEL) != sweep.name:
            foreign.append(run.name)
        elif changes := submitted_changes(before, run.config):
            raise ConfigError(
                f"{where}: the run {run.name} was submitted with other settings: "
                f"{'; '.join(map(str, changes))}. Restore the earlier values in the file, or give the sweep "
                "another name."
            )
    if foreign:
        raise ConfigError(
            f"{where}: runs with these names exist and do not belong to this sweep: {', '.join(foreign)}. "
            "Give the sweep another name."
        )


def _stop(
    sweep: Sweep, turn: Turn, record: SweepRecord, kept: dict[str, tuple[str, TokenCurve]], say: Say
) -> None:
    """Stop each active run for which the stop rule gives a reason, after recording the reason.

    `kept` contains each run's state and curve from the previous turn, so that an ended run is not read again.
    """
    rule = sweep.config.stop
    if rule is None:
        return
    for name, state in turn.states.items():
        if state != NO_JOB and (state in ACTIVE or name not in kept or kept[name][0] != state):
            kept[name] = state, read_curve(RunDir.named(name), rule.metric)
    curves = {name: curve for name, (_, curve) in kept.items()}
    for name, state in turn.states.items():
        if state not in ACTIVE:
            continue
        reason = record.stopped.get(name) or verdict(rule, curves, name)
        if not reason:
            continue
        try:
            turn.states[name] = _stop_run(sweep, name, reason, record, say)
        except NbtrainError as error:
            # The run may still be saving. The next turn tries again.
            say(f"{name}: {error}")


def _stop_run(sweep: Sweep, name: str, reason: str, record: SweepRecord, say: Say) -> str:
    """Stop a run, record the reason unless it is already recorded, and return the run's state."""
    run = RunDir.named(name)
    newest = run.newest_job()
    if newest is None:
        return NO_JOB
    if name not in record.stopped:
        assert sweep.config.stop is not None
        record.stopped[name] = reason
        record.write(sweep_folder(sweep.name) / "sweep.json")
        told = f"Stopped by the sweep {sweep.name} ({sweep.config.stop.rule}): {reason}."
        EventWriter(newest, "sweep").write("stop_rule", told)
        say(f"{name}: stopped, because {reason}")
        change_notes(run, notes=f"{notes_of(run).notes}\n{told}".strip())
    return cancel(newest)[0]
