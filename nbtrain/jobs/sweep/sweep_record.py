"""The folder of a sweep and its record, sweep.json, which readers need without the sweep's file.

sweeps/NAME/sweep.json     names and settings of the runs, and why the rule has stopped some
           /page.html      the results
           /sweep.yaml     the sweep's file, if it was given as a mapping
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.records import Record
from nbtrain.base.workspace import workspace

SCHEMA_VERSION = 1
SEED_KEYS = frozenset({"model.seed", "data.seed"})
"""Settings that make repetitions of one setting and not another one."""


@dataclass
class SweepRecord(Record):
    """sweep.json: the runs of a sweep, for readers without its file, and those that the rule has stopped."""

    name: str
    file: str
    runs: list[str]
    settings: list[dict[str, Any]]
    stopped: dict[str, str] = field(default_factory=dict)
    """Why a run was stopped, by its name."""
    code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file that a run's `code` names, by the path in the runs, at the sweep's first start."""
    schema_version: int = SCHEMA_VERSION


def sweep_folder(name: str) -> Path:
    """Return the folder of a sweep's record and page."""
    return workspace() / "sweeps" / name


def read_record(name: str) -> SweepRecord | None:
    """Return the record of a sweep; None if it was never started. Raises RecordError for a damaged one."""
    return SweepRecord.read(sweep_folder(name) / "sweep.json")


def known_sweeps() -> list[str]:
    """Return the names of the sweeps that were started, sorted."""
    return sorted(path.parent.name for path in (workspace() / "sweeps").glob("*/sweep.json"))
