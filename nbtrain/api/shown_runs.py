"""The result of nb.runs(): a list of runs that prints as a table, and is shown in a cell as a live table."""

from nbtrain.monitor.run_filter import EVERY_RUN, RunFilter
from nbtrain.monitor.runs import RunList, list_runs


class ShownRuns(RunList):
    """A RunList; the widgets are imported when a cell shows it."""

    everything = False
    """Whether nothing was asked of the runs: the live table then has new runs too."""
    archived = False
    """Whether archived runs were asked for too."""

    def _ipython_display_(self) -> None:
        from nbtrain.lab.widgets.run_table import display_runs

        display_runs(self, self.everything, self.archived)


def shown_runs(wanted: RunFilter) -> ShownRuns:
    """The runs under the output root that are `wanted`."""
    found = ShownRuns(list_runs(wanted=wanted))
    found.everything, found.archived = wanted in (RunFilter(), EVERY_RUN), wanted.archived
    return found
