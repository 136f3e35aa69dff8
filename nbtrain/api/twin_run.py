"""The result of a twin, from `nb.twin(...)` and from notebooks 03 and 06 with mode = "twin"."""

from typing import TYPE_CHECKING, Any

from nbtrain.api.arguments import wait_wanted
from nbtrain.api.run import Run, open_run
from nbtrain.base.errors import JobFailed
from nbtrain.base.printing.report import Picture, Report, Result

if TYPE_CHECKING:
    from nbtrain.monitor.job.job_description import JobDescription
    from nbtrain.proof.report import TwinReport


class TwinRun(Result):
    """The result of a run's twin: a table of its checks; a cell also shows the curves."""

    def __init__(self, report: "TwinReport"):
        self._report = report

    def as_report(self) -> Report:
        """Return the table of the checks, below the curves in a notebook."""
        report = self._report.as_report()
        curves = Picture(lambda: self.report()._repr_png_(), "curves of the twin and of a run in one process")
        return Report(report.title, [curves, *report.blocks])

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return self._report.passed

    @property
    def run(self) -> Run:
        """The twin itself, which is an ordinary run."""
        return open_run(self._report.twin)

    def wait_if(self, wait: str) -> None:
        """Return at once. Raises JobFailed if a check failed, so that the notebook fails too."""
        wait_wanted(wait)
        if not self.passed:
            raise JobFailed(str(self))

    def must_finish(self) -> None:
        """Return at once, because the twin has finished."""

    def report(self) -> Any:
        """Return a Matplotlib figure of the twin's curves and their differences from a run in one process."""
        from nbtrain.monitor.run.twin_picture import draw

        return draw(self._report.to_dict())

    def job_page(self) -> "JobDescription":
        """Return the job page of the twin's newest job."""
        return self.run.job_page()
