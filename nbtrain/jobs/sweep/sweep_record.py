"""The folder of a sweep and its record, sweep.json, which readers need without the sweep's file.

sweeps/NAME/sweep.json     names and settings of the runs, and why some were stopped or could not be started
           /page.html      the results
           /sweep.yaml     the sweep's file, if it was given as a mapping
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, NO_JOB
from nbtrain.base.run_directory.records import Record
from nbtrain.base.workspace import workspace

SCHEMA_VERSION = 1
SEED_KEYS = frozenset({"model.seed", "data.seed"})
"""Settings that make repetitions of one setting and not another one."""


@dataclass
class SweepRecord(Record):
    """sweep.json: the runs of a sweep, for readers without its file, and those that the rule has stopped or
    that could not be started.
    """

    name: str
    file: str
    runs: list[str]
    settings: list[dict[str, Any]]
    stopped: dict[str, str] = field(default_factory=dict)
    """Why a run was stopped, by its name."""
    code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file that a run's `code` names, by the path in the runs, at the sweep's first start."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why a run could not be submitted or resumed, by its name. The next call of the sweep tries it again."""
    schema_version: int = SCHEMA_VERSION


def is_to_start(state: str, is_left: bool) -> bool:
    """Return whether a run in this state is submitted or resumed as soon as there is room.

    `is_left`: the rule has stopped the run, or it could not be submitted or resumed.
    """
    return state in (NO_JOB, LOST) and not is_left


def has_ended(state: str, is_left: bool) -> bool:
    """Return whether a run in this state is neither active nor still to be started."""
    return state not in ACTIVE and not is_to_start(state, is_left)


def sweep_folder(name: str) -> Path:
    """Return the folder of a sweep's record and page."""
    return workspace() / "sweeps" / name


def read_record(name: str) -> SweepRecord | None:
    """Return the record of a sweep; None if it was never started. Raises RecordError for a damaged one."""
    return SweepRecord.read(sweep_folder(name) / "sweep.json")


def known_sweeps() -> list[str]:
    """Return the names of the sweeps that were started, sorted."""
    return sorted(path.parent.name for path in (workspace() / "sweeps").glob("*/sweep.json"))
