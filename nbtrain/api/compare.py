"""The function nb.compare: compares runs in a notebook."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from nbtrain.api.arguments import existing_path, misused
from nbtrain.api.run import RunLike, open_run
from nbtrain.monitor.status.run_status import RunStatus

if TYPE_CHECKING:
    from nbtrain.lab.widgets.compare import Comparison


def compare(
    runs: "Sequence[RunLike | RunStatus]", published: str | PathLike[str] | None = None
) -> "Comparison":
    """Compare runs: their curves overlaid, the settings that differ, and the results of each run.

    `runs` are names, folders, YAMLs, Runs, or the result of nb.runs(...), at least two. In a notebook cell
    the curves are live, by step, tokens or time. In a terminal and under papermill, tables and a picture are
    shown. More than 12 runs are shown as one table with a row for each run.

    `published` is a YAML file with published results of other models, which become columns of the results
    (docs/runs.md). With `published`, one run is enough. Raises ConfigError, with the line, for a mistake in
    that file.
    """
    from nbtrain.lab.widgets.compare import Comparison

    if isinstance(runs, str | bytes) or not isinstance(runs, Sequence):
        raise misused("runs", runs, 'a list of runs, e.g. ["gpt-a", "gpt-b"] or nb.runs("gpt-*")')
    found = [open_run(run.name if isinstance(run, RunStatus) else run).directory for run in runs]
    return Comparison(found, None if published is None else existing_path(published))
