"""Filters and sorts a list of runs, as in `nbtrain runs --state failed --sort loss`.

A run's name is compared before any of its files is opened. All other conditions need the run's records.
"""

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.jobstate import ACTIVE, FINAL, RUN_MEANING
from nbtrain.base.text.nearest import nearest
from nbtrain.base.text.order import natural
from nbtrain.base.text.terminal import shortened
from nbtrain.monitor.status.run_status import RunStatus

STATES = tuple(RUN_MEANING)
GROUPS = {"active": ACTIVE, "ended": FINAL}
"""Names for groups of states."""

# {word after --sort: (field of RunStatus, whether the largest value comes first)}
SORTS = {
    "submitted": ("created_at", True),
    "ended": ("ended_at", True),
    "name": ("name", False),
    "state": ("state", False),
    "step": ("step", True),
    "loss": ("loss", False),
    "validation": ("validation_loss", False),
    "restarts": ("restarts", True),
}
# A comma between rules, not within parentheses, so that an error message quotes `key in (a, b)` in full.
RULE_END = re.compile(r",(?![^(]*\))")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@dataclass(frozen=True)
class LabelRule:
    """A condition on a run's labels."""

    key: str
    value: str | None
    """Value that the label must have; None means any value."""
    wanted: bool
    """True to list the runs with such a label, False to list the runs without it."""

    def holds(self, labels: Mapping[str, str]) -> bool:
        found = self.key in labels and self.value in (None, labels[self.key])
        return found == self.wanted


@dataclass(frozen=True)
class RunFilter:
    """Conditions that a run must meet to be listed. By default, every run that is not archived is listed."""

    name: str = ""
    """Shell pattern such as gpt-*. A text without *, ? or [ matches any part of the name."""
    states: frozenset[str] = frozenset()
    newer_seconds: float | None = None
    """Maximum age of the newest job's submission in seconds; None means any age."""
    older_seconds: float | None = None
    """Minimum age of the newest job's submission in seconds; None means any age."""
    sort: str = "submitted"
    reverse: bool = False
    limit: int | None = None
    labels: tuple[LabelRule, ...] = ()
    archived: bool = False
    """Whether to list archived runs too. An archived run with an active job is always listed."""

    def named(self, name: str) -> bool:
        """Return whether the filter accepts a run's name."""
        if not self.name:
            return True
        if any(letter in self.name for letter in "*?["):
            return fnmatch.fnmatchcase(name, self.name)
        return self.name in name

    def wants(self, run: RunStatus, now: float) -> bool:
        """Return whether the filter accepts a run's status. The name is not checked."""
        age = now - run.created_at
        return (
            (not self.states or run.state in self.states)
            and (self.archived or not run.archived or run.active)
            and (self.newer_seconds is None or age <= self.newer_seconds)
            and (self.older_seconds is None or age >= self.older_seconds)
            and all(rule.holds(run.labels) for rule in self.labels)
        )

    def ordered(self, runs: Iterable[RunStatus]) -> list[RunStatus]:
        """Return at most `limit` runs, sorted by `sort`. Runs without a value always come last."""
        field, largest_first = SORTS[self.sort]

        def value_of(run: RunStatus) -> Any:
            return natural(run.name) if field == "name" else getattr(run, field)

        known: list[RunStatus] = []
        unknown: list[RunStatus] = []
        for run in sorted(runs, key=lambda run: natural(run.name)):
            value = value_of(run)
            missing = value is None or (isinstance(value, float) and math.isnan(value))
            (unknown if missing else known).append(run)
        known.sort(key=value_of, reverse=largest_first != self.reverse)
        return [*known, *unknown][: self.limit]


EVERY_RUN = RunFilter(archived=True)


def run_filter(
    name: str = "",
    states: str | Sequence[str] = (),
    newer_than: str | float | None = None,
    older_than: str | float | None = None,
    sort: str = "submitted",
    reverse: bool = False,
    limit: int | None = None,
    label: str | Mapping[str, str] | Sequence[str] = (),
    archived: bool = False,
) -> RunFilter:
    """Build a filter from user input: states in any case, ages such as 2d, labels as in label_rules().

    Raises ConfigError if a value is invalid.
    """
    if sort not in SORTS:
        raise ConfigError(f"sort = {sort!r} must be one of {', '.join(SORTS)}.{nearest(sort, SORTS)}")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ConfigError(f"limit = {limit!r} must be a whole number of at least 0.")
    newer, older = age_seconds("newer_than", newer_than), age_seconds("older_than", older_than)
    rules = label_rules(label)
    return RunFilter(name, _states(states), newer, older, sort, reverse, limit, rules, archived)


def label_rules(given: str | Mapping[str, str] | Sequence[str]) -> tuple[LabelRule, ...]:
    """Parse label rules, which must all hold, from {key: value} or from comma-separated text as in kubectl.

    A rule is team=nlp, team!=nlp, team (the run has this label) or !team (the run does not have it). Raises
    ConfigError for any other form.
    """
    if isinstance(given, Mapping):
        return tuple(LabelRule(str(key), str(value), True) for key, value in given.items())
    words = [given] if isinstance(given, str) else given or ()
    found = []
    for word in (part.strip() for text in words for part in RULE_END.split(str(text)) if part.strip()):
        match = re.fullmatch(r"(!?)([^\s=!]+)(?:(!?==?)([^\s=!]*))?", word)
        if match is None or (match[1] and match[3]):
            raise ConfigError(
                f"label = {shortened(word)!r} must be key=value, key!=value, key or !key. Comma-separated "
                "rules must all hold. Other forms, such as kubectl's `in (a, b)`, are not supported."
            )
        wanted = not match[1] and not (match[3] or "").startswith("!")
        found.append(LabelRule(match[2], match[4], wanted))
    return tuple(found)


def _states(given: str | Sequence[str]) -> frozenset[str]:
    words = given.replace(",", " ").split() if isinstance(given, str) else given or ()
    found: set[str] = set()
    for word in words:
        if word.lower() in GROUPS:
            found |= GROUPS[word.lower()]
        elif word.upper() in STATES:
            found.add(word.upper())
        else:
            known = ", ".join([*GROUPS, *STATES])
            raise ConfigError(f"state = {word!r} must be one of {known}.{nearest(word.upper(), STATES)}")
    return frozenset(found)


def age_seconds(what: str, given: str | float | None) -> float | None:
    """Convert an age such as 90, "90s", "30m", "12h", "2d" or "1w" to seconds; None stays None.

    Raises ConfigError for any other form.
    """
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and given >= 0):
        return given
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", given) if isinstance(given, str) else None
    if match is None:
        raise ConfigError(f"{what} = {given!r} must be an age such as 90s, 30m, 12h, 2d or 1w.")
    return float(match[1]) * SECONDS[match[2] or "s"]
