"""Settings and results of many runs, for the columns that a user adds to the list of runs.

    RunColumns(root).answer(["lr_schedule.lr", "MFU, mean of 100 steps"])
        ->  {"known": [key, ...], "runs": {name: {key: {"text", "value"}}}}

The results are the rows of a comparison (compare.py). The values of an ended run are cached until the
modification time of one of its folders changes.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import flatten
from nbtrain.config.yaml_source import show
from nbtrain.monitor.runs.compare import FIGURES, UNKNOWN, Compared, read_compared
from nbtrain.monitor.runs.watched_runs import folder_stamps

Cells = dict[str, dict[str, Any]]
"""{key: {"text", "value"}}; "value" is the number to sort by, or None for text."""


class RunColumns:
    """Column values of the runs in one output directory. Thread-safe."""

    def __init__(self, root: Path):
        self.root = root
        self._kept: dict[str, tuple[tuple[int, ...], Cells]] = {}
        self._lock = threading.Lock()

    def answer(self, keys: Sequence[str], names: Iterable[str], known: Iterable[str]) -> dict[str, Any]:
        """Return the values of `keys` for the runs `names`, without the keys that a run does not have.

        `known` lists the settings that can be chosen as columns; the response lists them after the results.
        """
        runs: dict[str, Cells] = {}
        if keys:
            with self._lock:
                for name in names:
                    cells = self._cells(name)
                    runs[name] = {key: cells[key] for key in keys if key in cells}
        return {"known": [*(figure.name for figure in FIGURES), *known], "runs": runs}

    def _cells(self, name: str) -> Cells:
        run = RunDir(self.root / name)
        ids = run.job_ids()
        stamps = folder_stamps(str(run.path), ids[-1]) if ids else None
        kept = self._kept.get(name)
        if stamps is not None and kept is not None and kept[0] == stamps:
            return kept[1]
        compared = read_compared(run, time.time())
        cells = _cells_of(compared)
        if stamps is not None and compared.status.settled:
            self._kept[name] = (stamps, cells)
        return cells


def _cells_of(run: Compared) -> Cells:
    rows = [figure.row([run]) for figure in FIGURES]
    cells: Cells = {
        row.name: {"text": row.words[0], "value": row.values[0]} for row in rows if row.words[0] != UNKNOWN
    }
    for key, value in flatten(run.config.model_dump()) if run.config else ():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        cells[key] = {"text": show(value), "value": value if is_number else None}
    return cells
