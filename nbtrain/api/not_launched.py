"""The result of a submission that did not happen, and why; notebooks 03 and 06 show it instead of a job."""

import html
import shlex
from typing import TYPE_CHECKING, NoReturn

from nbtrain.api.arguments import wait_wanted
from nbtrain.base.errors import SubmitError
from nbtrain.config.load.placeholders import MARK, placeholders_of
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan


class NotLaunched:
    """A run that was not submitted, because it needs more than this machine has or because of a dry run.

    A notebook cell shows the reason. `shortages` lists the missing resources in numbers, or placeholders and
    what to set instead. `command` starts the run once it has them. `request` is the text that would be sent
    to Slurm or Kubernetes, or started on hosts; "" on this machine.
    """

    is_launched = False
    """Whether there is a job. A Run has True here, and can be used for texts."""

    def __init__(self, config: RunConfig, shortages: list[str], command: str, request: str = ""):
        self.config, self.shortages, self.command, self.request = config, shortages, command, request
        kind = config.backend.kind
        self._why, self._where = "a dry run", "To launch it"
        if placeholders_of(config):
            self._why = f"backend {kind} needs settings that the run does not have"
            self._where = "To launch it, set them"
        elif shortages and kind == "local":
            self._why, self._where = "this machine is too small", "On a larger machine"
        elif shortages:
            self._why, self._where = f"backend {kind} cannot start it from here", "Where it can"
        if kind == "local" and config.resources.nodes > 1:
            self._where = "Once that is changed"
        self._heading = f"What would be {'started' if kind == 'hosts' else 'submitted'}"

    def __str__(self) -> str:
        lines = "".join(f"\n  - {line}" for line in self.shortages)
        said = f"{self.config.name} was not launched: {self._why}.{lines}\n{self._where}:\n  {self.command}"
        return f"{said}\n{self._heading}:\n\n{self.request}" if self.request else said

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shortages = "".join(f"<li>{html.escape(line)}</li>" for line in self.shortages)
        parts = [
            f"<p><b>{html.escape(self.config.name)} was not launched</b>: {html.escape(self._why)}.</p>",
            f"<ul>{shortages}</ul>" if shortages else "",
            f"<p>{self._where}:</p>{_block(self.command, 'pre-wrap')}",
        ]
        if self.request:
            parts.append(f"<p>{self._heading}:</p>{_block(self.request, 'pre')}")
        return "".join(parts)

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


def _block(text: str, white_space: str) -> str:
    """Return a text as HTML, with its placeholders marked."""
    marked = MARK.sub(r"<mark>\g<0></mark>", html.escape(text))
    style = f"font: 12px/1.4 monospace; white-space: {white_space}; overflow-x: auto; margin: 0 1em 1em"
    return f'<pre style="{style}">{marked}</pre>'


def not_launched(config: RunConfig, shortages: list[str]) -> NotLaunched:
    """Return a NotLaunched for these shortages, or for a dry run; placeholders are listed first."""
    from nbtrain.jobs.dry_run import request_text

    shortages = [finding.text for finding in placeholders_of(config)] + shortages

    command = f"nbtrain submit {shlex.join(config.as_arguments)}"
    return NotLaunched(config, shortages, command, request_text(config))
