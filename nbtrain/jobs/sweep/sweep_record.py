"""A sweep's folder, and its record sweep.json for readers that do not have the sweep file.

A sweep has these files:

    sweeps/NAME/sweep.json    names and settings of the runs, and why runs were stopped or not started
    sweeps/NAME/page.html     the results
    sweeps/NAME/sweep.yaml    the sweep file, if the sweep was given as a mapping
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, NO_JOB
from nbtrain.base.run_directory.records import Record
from nbtrain.base.workspace import workspace

SCHEMA_VERSION = 1
SEED_KEYS = frozenset({"model.seed", "data.seed"})
"""The seeds: runs that differ only in these fields are repetitions of one setting."""


@dataclass
class SweepRecord(Record):
    """Record of a sweep in sweep.json, for readers that do not have the sweep file.

    It contains the sweep's runs, and the reasons why runs were stopped or could not be started.
    """

    name: str
    file: str
    runs: list[str]
    settings: list[dict[str, Any]]
    stopped: dict[str, str] = field(default_factory=dict)
    """{name: why the run was stopped}."""
    code: dict[str, str] = field(default_factory=dict)
    """Hashes of the files that the runs' `code` names, as {path: SHA-256 at the sweep's first start}."""
    errors: dict[str, str] = field(default_factory=dict)
    """{name: why the run could not be submitted or resumed}. The next call of the sweep tries again."""
    schema_version: int = SCHEMA_VERSION


def is_to_start(state: str, is_left: bool) -> bool:
    """Return whether a run in this state will be submitted or resumed once there is room.

    `is_left` is whether the stop rule has stopped the run, or the run could not be submitted or resumed.
    """
    return state in (NO_JOB, LOST) and not is_left


def has_ended(state: str, is_left: bool) -> bool:
    """Return whether a run in this state is not active and will not be started."""
    return state not in ACTIVE and not is_to_start(state, is_left)


def sweep_folder(name: str) -> Path:
    """Return the folder with a sweep's record and page."""
    return workspace() / "sweeps" / name


def read_record(name: str) -> SweepRecord | None:
    """Return a sweep's record; None if the sweep was never started.

    Raises RecordError if the record is damaged.
    """
    return SweepRecord.read(sweep_folder(name) / "sweep.json")


def known_sweeps() -> list[str]:
    """Return the names of the sweeps that were started, sorted."""
    return sorted(path.parent.name for path in (workspace() / "sweeps").glob("*/sweep.json"))
