"""nb.compare: which runs are meant, and in which order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbtrain.api.arguments import misused
from nbtrain.api.run import RunLike, open_run
from nbtrain.monitor.runs import RunSummary

if TYPE_CHECKING:
    from nbtrain.lab.widgets.compare import Comparison


def compare(runs: "Sequence[RunLike | RunSummary]") -> "Comparison":
    """Runs side by side: curves overlaid, the settings that differ, and what each has come to.

    `runs` are 2 to 12 names, folders, YAMLs, Runs, or what nb.runs(...) returns. In a cell the curves are
    live, by step, tokens or time; in a terminal and under papermill the tables stand with a picture.
    """
    from nbtrain.lab.widgets.compare import Comparison

    if isinstance(runs, str | bytes) or not isinstance(runs, Sequence):
        raise misused("runs", runs, 'a list of runs, e.g. ["gpt-a", "gpt-b"] or nb.runs("gpt-*")')
    return Comparison([open_run(run.name if isinstance(run, RunSummary) else run).directory for run in runs])
