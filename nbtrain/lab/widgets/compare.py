"""Runs side by side in a cell.

live front end      a page with data from the Jupyter server; without a server, from when the cell ran
papermill, HTML     a picture with tables
more than 12 runs   one table with a row for each run
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.printing.report import Report, Result
from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.ui.script import script
from nbtrain.lab.widgets.mime import bundle, show
from nbtrain.monitor.run.metrics_range import CurvesRequest, whole_metrics
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.runs.compare import MOST_RUNS, compared
from nbtrain.monitor.runs.compare_picture import comparison_report
from nbtrain.monitor.runs.published import read_published
from nbtrain.monitor.runs.watched_runs import root_id

# Curves that the page shows without a server: its first curves (FIRST_COMPARED in compare.js), thinned.
NAMES = ("loss", "validation_loss", "reward_margin", "reward_accuracy", "tokens_per_second", "grad_norm")
POINTS = 200
# Maximum seconds for reading a long run's metrics files.
READ_SECONDS = 3.0


class ComparePage(anywidget.AnyWidget):
    """The live comparison. lab/ui/compare/compare.js draws it."""

    _esm = script("compare/compare_widget")
    names: Any = traitlets.List().tag(sync=True)
    root_id = traitlets.Unicode().tag(sync=True)
    """Id of the folder with the runs. The page does not query a server with another output directory."""
    published = traitlets.Dict().tag(sync=True)
    """{"file", "text"}: name and content of the YAML with published results; {} without one."""
    value = traitlets.Dict().tag(sync=True)
    """{"tables", "curves"} from the moment when the cell ran."""


class Comparison(Result):
    """Runs side by side: in a cell as the live page or a picture with tables, in a terminal as tables."""

    def __init__(self, runs: Sequence[RunDir], published: Path | None = None):
        """Read the runs; `published` is a YAML with published results (monitor/runs/published.py)."""
        self.runs, self.published = list(runs), published
        self.tables = compared(self.runs, read_published(published) if published else ())

    def as_report(self) -> Report:
        """Return the tables below the curves."""
        return comparison_report(self.runs, self.tables)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        picture = self._repr_html_()
        if not is_watched() or len(self.runs) > MOST_RUNS:
            return {"text/html": picture, "text/plain": repr(self)}
        page = ComparePage(
            names=self.tables["names"],
            root_id=self._root_id(),
            published=self._published_text(),
            value={"tables": self.tables, "curves": {run.name: _curves(run) for run in self.runs}},
        )
        return bundle(page, picture, repr(self))

    def _published_text(self) -> dict[str, str]:
        """Return the YAML with published results in the form in which the page sends it to a server."""
        if self.published is None:
            return {}
        return {"file": self.published.name, "text": self.published.read_text(encoding="utf-8")}

    def _root_id(self) -> str:
        """Return the id of the folder that holds all the runs; "", which no server has, if they have no
        common folder.
        """
        roots = {root_id(run.path.parent) for run in self.runs}
        return roots.pop() if len(roots) == 1 else ""

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_())


def _curves(run: RunDir) -> dict[str, Any]:
    """Return the response of the route `metrics`, for NAMES only."""
    asked = CurvesRequest(tuple(name for name in NAMES if name in BY_NAME), points=POINTS)
    answer = whole_metrics(RunView(run), asked, READ_SECONDS)
    return {**answer, "tags": [row for row in answer["tags"] if row["tag"] in NAMES]}
