"""The result of a twin: `nb.twin(...)`, and notebooks 03 and 06 with mode = "twin"."""

from typing import TYPE_CHECKING, Any

from nbtrain.api.arguments import wait_wanted
from nbtrain.api.run import Run, open_run
from nbtrain.base.errors import JobFailed

if TYPE_CHECKING:
    from nbtrain.monitor.job_page import JobPage
    from nbtrain.proof.report import TwinReport


class TwinRun:
    """The result of a twin for a run's layout: the table of its checks, and in a cell the curves too."""

    def __init__(self, report: "TwinReport"):
        self._report = report

    def __str__(self) -> str:
        return str(self._report)

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        png: bytes = self.report()._repr_png_()
        return png

    @property
    def passed(self) -> bool:
        """Every check passed."""
        return self._report.passed

    @property
    def run(self) -> Run:
        """The twin itself, a run as any other."""
        return open_run(self._report.twin)

    def wait_if(self, wait: str) -> None:
        """Nothing to wait for. Raises JobFailed if a check failed, so that a notebook's batch job sees it."""
        wait_wanted(wait)
        if not self.passed:
            raise JobFailed(str(self))

    def must_finish(self) -> None:
        """It has."""

    def report(self) -> Any:
        """Matplotlib figure: the curves, and how far they are from one process."""
        from nbtrain.monitor.twin_picture import draw

        return draw(self._report.to_dict())

    def job_page(self) -> "JobPage":
        """The page of the twin's newest job."""
        return self.run.job_page()
