"""The result of a submission that did not happen, and why; notebooks 03 and 06 show it instead of a job."""

import shlex
from typing import TYPE_CHECKING, NoReturn

from nbtrain.api.arguments import wait_wanted
from nbtrain.base.errors import SubmitError
from nbtrain.base.printing.report import Code, Items, Report, Result
from nbtrain.config.load.placeholders import MARK, placeholders_of
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan


class NotLaunched(Result):
    """A run that was not submitted, because something is missing or because this is a dry run.

    A notebook cell shows why. `shortages` is a list of sentences: resources that this machine or the cluster
    lacks, settings that are still placeholders, or nothing for a dry run. `command` is the shell command that
    submits the run once nothing is missing. `request` is what a submission would send to Slurm or Kubernetes
    or start on the hosts; it is "" for backend.kind = local.
    """

    is_launched = False
    """False for a NotLaunched, True for a Run. A notebook reads it to see whether there is a run."""

    def __init__(self, config: RunConfig, shortages: list[str], command: str, request: str = ""):
        self.config, self.shortages, self.command, self.request = config, shortages, command, request
        kind = config.backend.kind
        self._why, self._where = "this is a dry run", "To launch it, run"
        if placeholders_of(config):
            self._why = f"backend {kind} needs settings that the run does not have"
            self._where = "To launch it, set them and run"
        elif shortages and kind == "local":
            self._why, self._where = "this machine is too small", "On a larger machine, run"
        elif shortages:
            self._why, self._where = (
                f"backend {kind} cannot start it from here",
                "On a machine that can start it, run",
            )
        if kind == "local" and config.resources.nodes > 1:
            self._where = "After changing that, run"
        self._heading = f"What would be {'started' if kind == 'hosts' else 'submitted'}"

    def as_report(self) -> Report:
        """Return why the run was not launched, the command that launches it, and what would be submitted."""
        blocks = [
            Items(self.shortages),
            Code(self.command, f"{self._where}:", wraps=True, marked=MARK),
            Code(self.request, f"{self._heading}:", indent="", marked=MARK),
        ]
        return Report(f"{self.config.name} was not launched: {self._why}.", blocks)

    def wait(self, timeout_seconds: float | None = None) -> NoReturn:
        """Raise SubmitError with the reason, because no job was submitted."""
        raise SubmitError(str(self))

    def wait_if(self, wait: str) -> None:
        """Do nothing, because no job was submitted."""
        wait_wanted(wait)

    def must_finish(self) -> None:
        """Do nothing, because no job was submitted."""

    def report(self) -> "Plan":
        """Return the plan of the run."""
        from nbtrain.planner.plan import plan

        return plan(self.config)

    def profile(self) -> None:
        """Do nothing, because no job was submitted."""

    def timing(self) -> None:
        """Do nothing, because no job was submitted."""

    def job_page(self) -> None:
        """Print that no job was submitted."""
        print("There is no job: nothing was submitted.")


def not_launched(config: RunConfig, shortages: list[str]) -> NotLaunched:
    """Return a NotLaunched that lists the run's placeholders, then `shortages` (empty for a dry run)."""
    from nbtrain.jobs.submission.dry_run import request_text

    shortages = [finding.text for finding in placeholders_of(config)] + shortages

    command = f"nbtrain submit {shlex.join(config.as_arguments)}"
    return NotLaunched(config, shortages, command, request_text(config))
