"""The list of runs for repeated requests. Files of ended runs are read again only if they have changed.

    WatchedRuns(root).answer(archived, failed)
        ->  the JSON of {"runs": [...], "root", "run_root_id", "failed_actions"}

Records are replaced by rename, so the modification times of three folders (the run, its jobs folder, its
newest job) show whether anything has changed. A thousand ended runs cost 3,000 stat calls. A run that is
active or LOST is read each time.
"""

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base.run_directory.jobstate import FINAL
from nbtrain.base.run_directory.rundir import may_be_run
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.monitor.metrics.finite_json import encoded
from nbtrain.monitor.status.run_status import UNKNOWN, RunStatus
from nbtrain.monitor.status.status_records import listed_status

# Seconds within which several open lists get the same response.
ANSWER_AGE_SECONDS = 0.9
# Two changes within one tick of a file system's clock have the same time stamp, so a folder that changed this
# recently is read again.
SETTLED_SECONDS = 2.0

# {field of RunStatus: its key in a row}, where they differ.
RENAMED = {"total_steps": "max_steps", "created_at": "created", "ended_at": "ended"}


class Row(NamedTuple):
    """A row of the list: one run."""

    text: str
    """The row as JSON."""
    archived: bool
    active: bool
    state: str
    created: float
    folder: str
    job: str | None
    stamps: tuple[int, ...] | None
    """Modification times of the run's folders, if the row stays valid until they change; otherwise None."""

    def is_among(self, archived: bool) -> bool:
        """Return whether the row is in the list of archived runs; with `archived` false, of the other runs.

        An archived run with an active job is in both lists.
        """
        return self.archived == archived or (self.active and not archived)


FailedActions = Callable[[Mapping[str, tuple[str | None, str]]], dict[str, Any]]
"""A function that returns {name of a run: its failed action}, from {name: (newest job, state)}."""


def _none_failed(_: Mapping[str, tuple[str | None, str]]) -> dict[str, Any]:
    return {}


class WatchedRuns:
    """The list of runs in one output directory. Thread-safe."""

    def __init__(self, root: Path):
        self.root = root
        self._rows: dict[str, Row] = {}
        self._read_at = -math.inf
        self._lock = threading.Lock()

    def answer(self, archived: bool | None = None, failed: FailedActions = _none_failed) -> str:
        """Return the list as JSON, newest run first.

        `archived` selects only archived runs (True), only other runs (False) or all runs (None). An archived
        run with an active job is in both lists. `failed` returns the failed actions on these runs.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= ANSWER_AGE_SECONDS:
                self._read()
            rows = [row for row in self._rows.values() if archived is None or row.is_among(archived)]
            failures = failed({name: (row.job, row.state) for name, row in self._rows.items()})
        rows.sort(key=lambda row: row.created, reverse=True)
        about = json.dumps(
            {"root": display(self.root), "run_root_id": root_id(self.root), "failed_actions": failures}
        )
        return f'{{"runs":[{",".join(row.text for row in rows)}],{about[1:]}'

    def names(self) -> list[str]:
        """Return the names of all runs found by the last read."""
        with self._lock:
            if not self._rows:
                self._read()
            return list(self._rows)

    def expire(self) -> None:
        """Make the next answer() read the runs again, because a run has changed."""
        self._read_at = -math.inf

    def _read(self) -> None:
        now = time.time()
        self._rows = {name: row for name in sorted(self._names()) if (row := self._row(name, now))}
        self._read_at = time.monotonic()

    def _names(self) -> Iterator[str]:
        """Yield the names of possible runs in the output directory, except links that point outside it."""
        try:
            entries = os.scandir(self.root)
        except OSError:
            return
        inside = os.path.realpath(self.root) + os.sep
        with entries:
            for entry in entries:
                if not may_be_run(entry.name):
                    continue
                if not entry.is_symlink() or os.path.realpath(entry.path).startswith(inside):
                    yield entry.name

    def _row(self, name: str, now: float) -> Row | None:
        known = self._rows.get(name)
        if known and known.stamps is not None and known.stamps == folder_stamps(known.folder, known.job):
            return known
        folder = str(self.root / name)
        if (run := listed_status(self.root, name, now)) is None:
            return None
        value = row_of(run)
        stamps = folder_stamps(folder, run.job_id) if run.settled else None
        if stamps and max(stamps) > 1e9 * (now - SETTLED_SECONDS):
            stamps = None
        text = encoded(value).decode()
        return Row(text, run.archived, run.active, run.state, run.created_at, folder, run.job_id, stamps)


def folder_stamps(folder: str, job: str | None) -> tuple[int, ...] | None:
    """Return the modification times of a run's folder, its jobs folder and a job's folder.

    Returns None if a folder is missing.
    """
    try:
        paths = (folder, f"{folder}/jobs", f"{folder}/jobs/{job}")
        # Creating a Path object would take longer than the stat call.
        return tuple(os.stat(path).st_mtime_ns for path in paths)  # noqa: PTH116
    except OSError:
        return None


def row_of(run: RunStatus) -> dict[str, Any]:
    """Return a run's row: its fields, the label and meaning of its state, and its metrics as text."""
    value = {RENAMED.get(key, key): found for key, found in run.to_dict().items()}
    losses = {
        key: UNKNOWN if value[key] is None else f"{value[key]:.4f}" for key in ("loss", "validation_loss")
    }
    size = [(run.nodes, "replica"), (run.world_size, "rank")]
    counts = ", ".join(amounts.counted(number, word) for number, word in size if number)
    return value | {
        "meaning": run.meaning,
        "active": run.active,
        "final": run.state in FINAL,
        "queued": run.queued,
        "pill": list(run.pill),
        "words": {"step": run.steps_text(" / "), **losses, "eta": run.time_left, "size": counts},
    }


def root_id(root: Path) -> str:
    """Return an id of the output directory.

    A page uses it to check that kernel and server show the same runs.
    """
    return hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]
