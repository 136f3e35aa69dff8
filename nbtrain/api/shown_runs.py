"""The result of nb.runs(): a list of runs that prints as a table, and that a cell shows as a live table."""

from nbtrain.monitor.runs.run_filter import EVERY_RUN, RunFilter
from nbtrain.monitor.runs.runs import RunList, list_runs


class ShownRuns(RunList):
    """The list of runs that nb.runs() returns. The widgets are imported when a cell shows it."""

    everything = False
    """Whether the list is unfiltered. If so, the live table also shows runs that are created later."""
    archived = False
    """Whether archived runs are included."""

    def _ipython_display_(self) -> None:
        from nbtrain.lab.widgets.run_table import display_runs

        display_runs(self, self.everything, self.archived)


def shown_runs(wanted: RunFilter) -> ShownRuns:
    """Return the `wanted` runs in the output directory."""
    found = ShownRuns(list_runs(wanted=wanted))
    found.everything, found.archived = wanted in (RunFilter(), EVERY_RUN), wanted.archived
    return found
