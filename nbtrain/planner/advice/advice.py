"""Advice for a run: ranked changes of its settings, each with its predicted effect.

    advise(config, observations) -> Advice    shown as a table; .use(1, "new.yaml") writes a changed run

`Observations` are plain numbers that jobs/observe.py reads from a run's records. Each observation may suggest
changes (advice_rules.py). Every suggested change is applied to a copy of the run, and dropped if it breaks a
configuration rule. The predicted memory and step time come from the plan. The memory is scaled by the run's
own measurements: a run that needed 1.1 times the planned memory is expected to need 1.1 times as much after a
change too.
"""

import difflib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import Facts, Findings, Report, Result, Sentence
from nbtrain.base.text import amounts
from nbtrain.config.load import flatten
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.schema import RunConfig
from nbtrain.planner.advice.advice_rules import Proposal, proposals
from nbtrain.planner.advice.observations import Observations, needed_bytes
from nbtrain.planner.memory import estimate_memory
from nbtrain.planner.run_file import write_run
from nbtrain.planner.time.duration import estimate_duration

# A change that is predicted to save less than this fraction of a step is not worth a restart.
LEAST_GAIN = 0.02
# Largest factor by which planned memory is scaled to match measured memory.
_MOST_FACTOR = 3.0
# A change fits if it uses at most this fraction of the device's memory. Planned memory is within 10 % of the
# measured memory in most cases (docs/evidence/plan-accuracy.md).
ROOM_FRACTION = 0.95


@dataclass(frozen=True)
class Change:
    """A suggested change: the fields to set, the reason, and the predicted effect."""

    title: str
    overrides: dict[str, Any]
    reason: str
    memory_bytes: int | None = None
    """Estimated memory of one rank after the change, in bytes."""
    memory_fraction: float | None = None
    step_seconds: float | None = None
    gain: float | None = None
    """Fraction by which a step gets shorter, e.g. 0.1 for 10 % less time; negative if a step gets longer."""
    fits: bool | None = None

    @property
    def settings(self) -> str:
        """Overrides that make the change, as text, e.g. "batch.micro_batch_size=8"."""
        return ", ".join(f"{key}={_value(value)}" for key, value in self.overrides.items())

    @property
    def effect(self) -> str:
        """The prediction as text, e.g. "memory 30.2 GiB (76%), step 1.2 s, 8% faster"."""
        words = []
        if self.memory_bytes is not None:
            share = f" ({self.memory_fraction:.0%})" if self.memory_fraction is not None else ""
            words.append(f"memory {amounts.size(self.memory_bytes)}{share}")
        if self.step_seconds is not None:
            words.append(f"step {amounts.step(self.step_seconds)}")
        if self.gain is not None and abs(self.gain) >= 0.005:
            words.append(f"{self.gain:.0%} faster" if self.gain > 0 else f"{-self.gain:.0%} slower")
        if self.fits is False:
            is_larger = self.memory_fraction is not None and self.memory_fraction > 1
            words.append("does not fit" if is_larger else "leaves too little memory free")
        return ", ".join(words) or "not predicted by the plan"


class Diff(str):
    """A diff that notebooks and IPython show without quotes or escapes."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the diff at IPython's prompt."""
        printer.text(str(self))


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """Suggested changes to a run, most useful first."""

    config: RunConfig
    observations: Observations
    changes: list[Change]
    notes: list[str] = field(default_factory=list)
    """Notes next to the changes, e.g. about a failure for which no change of the settings is suggested."""

    def as_report(self) -> Report:
        """Return a report of each change with its reason and predicted effect, followed by the notes."""
        changes = [
            Facts(
                {"why": change.reason, "then": change.effect}, f"{number}  {change.title}: {change.settings}"
            )
            for number, change in enumerate(self.changes, start=1)
        ]
        notes = Findings([Finding("note", "advice", "", "", note) for note in self.notes])
        use = Sentence(
            f"To write the run with change 1, run `nbtrain advise {self.config.name} --use 1 -o new.yaml`.",
            'To write the run with change 1 and show the diff, call `.use(1, "new.yaml")`.',
        )
        return Report(self.title, [*changes, notes, *([use] if self.changes else [])])

    @property
    def title(self) -> str:
        """Title of the advice: the run's name and a summary of the observations."""
        return f"Advice for {self.config.name}: {self.observations.summary}"

    def to_dict(self) -> dict[str, Any]:
        changes = [{**asdict(change), "effect": change.effect} for change in self.changes]
        return {
            "name": self.config.name,
            "observations": asdict(self.observations),
            "changes": changes,
            "notes": self.notes,
        }

    def changed(self, number: int) -> RunConfig:
        """Return the run with change `number`, counted from 1.

        Raises ConfigError if there is no such change.
        """
        if not 1 <= number <= len(self.changes):
            if not self.changes:
                raise ConfigError(
                    f"There is no change {number}: the advice for {self.config.name} has no changes."
                )
            known = "only change 1" if len(self.changes) == 1 else f"changes 1 to {len(self.changes)}"
            raise ConfigError(f"There is no change {number}: the advice for {self.config.name} has {known}.")
        return with_overrides(self.config, self.changes[number - 1].overrides)

    def diff(self, number: int) -> Diff:
        """Return a diff of the fields that change `number`, counted from 1, modifies."""
        before, after = (
            [f"{key}: {_value(value)}" for key, value in flatten(config.model_dump())]
            for config in (self.config, self.changed(number))
        )
        lines = difflib.unified_diff(before, after, self.config.name, "changed", lineterm="", n=0)
        return Diff("\n".join(line for line in lines if not line.startswith("@@")))

    def use(self, number: int, path: str | Path) -> Diff:
        """Write the run with change `number` to a new YAML, and return the diff.

        Raises ConfigError, without writing the file, if the file exists or the changed run breaks a rule.
        """
        change = self.changes[number - 1] if 1 <= number <= len(self.changes) else None
        note = f"{change.title}: {change.reason}" if change else ""
        write_run(self.changed(number), path, note)
        return self.diff(number)


def advise(config: RunConfig, observations: Observations) -> Advice:
    """Return the changes that `observations` of a run suggest, most useful first, with predicted effects."""
    memory = estimate_memory(config)
    needed = needed_bytes(observations)
    factor = min(max(needed / memory.total_bytes, 1.0), _MOST_FACTOR) if needed else 1.0
    capacity = observations.device_bytes or memory.device_bytes
    planned = estimate_duration(config, use_measured=False).step
    changes, notes, dropped, listed = [], list(observations.notes), 0, 0
    for proposal in proposals(config, observations):
        change = _predicted(config, proposal, factor, capacity, planned.seconds if planned else None)
        if change is None:
            continue
        if observations.failed or change.gain is None or change.gain >= LEAST_GAIN:
            changes.append(change)
            listed += proposal.uses_memory
        else:
            dropped += proposal.uses_memory
    if dropped:
        notes.append(_left_out(dropped) if listed else _optimal(observations, dropped))
    if not (observations.steps or observations.failed):
        name = config.name
        notes.append(
            "The run has not recorded any step, but advice needs the records of a job. Run "
            f"`nbtrain submit {name}` to start a job, or `nbtrain plan {name}` to see the planned memory and "
            "time."
        )
    if observations.failed and not changes:
        notes.extend(_unanswered(config, observations))
    changes.sort(key=lambda change: _rank(change, observations))
    return Advice(config, observations, changes, notes)


def _unanswered(config: RunConfig, seen: Observations) -> Iterator[str]:
    """Yield notes about a failure for which no change of the settings is suggested."""
    cause = "No cause was recorded, so there is no advice on the settings."
    if seen.cause:
        cause = f"{seen.cause.rstrip('.')}. There is no advice on the settings for this cause."
    yield (
        f"{cause} Run `nbtrain logs {config.name}`: the output starts with the last traceback, if there is "
        "one."
    )
    if config.backend.env and not seen.steps:
        names = ", ".join(sorted(config.backend.env))
        them = "this variable" if len(config.backend.env) == 1 else "these variables"
        yield (
            f"The job ended before its first step, and backend.env sets {names} for all ranks. Check whether "
            f"{them} caused the failure."
        )


def _predicted(
    config: RunConfig, proposal: Proposal, factor: float, capacity: int | None, before: float | None
) -> Change | None:
    """Return the change with its predicted memory and time; None if it breaks a configuration rule.

    `factor` is the run's measured memory divided by its planned memory (at least 1), `capacity` the device's
    memory in bytes, and `before` the planned seconds per step of the unchanged run.
    """
    try:
        changed = with_overrides(config, proposal.overrides)
    except ConfigError:
        return None
    if not proposal.predictable:
        return Change(proposal.title, proposal.overrides, proposal.reason)
    used = int(estimate_memory(changed).total_bytes * factor)
    step = estimate_duration(changed, use_measured=False).step
    seconds = step.seconds if step else None
    gain = None
    if seconds and before:
        tokens = changed.tokens_per_step / config.tokens_per_step
        gain = 1 - seconds / tokens / before
    return Change(
        proposal.title,
        proposal.overrides,
        proposal.reason,
        used,
        used / capacity if capacity else None,
        seconds,
        gain,
        used <= ROOM_FRACTION * capacity if capacity else None,
    )


def _rank(change: Change, observations: Observations) -> tuple[Any, ...]:
    """Return the sort key of a change: changes that fit come first, and among them the largest gain.

    Changes that do not fit come last. After an out-of-memory error, they are sorted by memory, and changes
    whose memory is unknown come after those that fit.
    """
    gain = change.gain or 0.0
    if observations.out_of_device_memory:
        unknown = change.memory_bytes is None
        return change.fits is False, unknown, -gain if change.fits else change.memory_bytes or 0
    return change.fits is False, -gain


def _optimal(observations: Observations, dropped: int) -> str:
    """Return a note that using more memory would not make the run noticeably faster.

    `dropped` is the number of changes that were tried and save less than LEAST_GAIN of a step.
    """
    others = "the change that would use more memory would save"
    if dropped > 1:
        others = f"each of the {dropped} changes that would use more memory would save"
    return (
        f"{observations.memory_fraction:.0%} of the device's memory is used, which may already be optimal: "
        f"{others} less than {LEAST_GAIN:.0%} of a step. Unused memory does not slow the run down."
    )


def _left_out(dropped: int) -> str:
    """Return a note about `dropped` changes that use more memory, but save too little time to be listed."""
    if dropped == 1:
        which = "Another change that would use more memory is not listed, because it"
    else:
        which = f"{dropped} other changes that would use more memory are not listed, because each"
    return f"{which} would save less than {LEAST_GAIN:.0%} of a step."


def _value(value: Any) -> str:
    """Return a value as YAML would show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
