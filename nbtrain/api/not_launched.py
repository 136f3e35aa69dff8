"""A run that was not submitted, and why: what notebooks 03 and 06 show in place of a job."""

import html
import shlex
from typing import TYPE_CHECKING, NoReturn

from nbtrain.api.arguments import wait_wanted
from nbtrain.base.errors import SubmitError
from nbtrain.config.placeholders import MARK, placeholders_of
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan


class NotLaunched:
    """A run that needs more than this machine has, or a dry run: nothing was submitted. A cell shows why.

    `shortages` are the missing resources in numbers, or placeholders with what to set; `command` starts the
    run if it has them; `request` is what would be sent to Slurm or Kubernetes, or started on hosts; "" on
    this machine.
    """

    is_launched = False
    """A Run says True: then it can be asked for texts."""

    def __init__(self, config: RunConfig, shortages: list[str], command: str, request: str = ""):
        self.config, self.shortages, self.command, self.request = config, shortages, command, request
        kind = config.backend.kind
        self._why, self._where = "a dry run", "To launch it"
        if placeholders_of(config):
            self._why = f"backend {kind} needs settings that the run does not have"
            self._where = "To launch it, set them"
        elif shortages and kind == "local":
            self._why, self._where = "this machine does not suffice", "On a machine that has it"
        elif shortages:
            self._why, self._where = f"backend {kind} cannot take it from here", "Where it can"
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
        """Raises SubmitError with the reason: nothing was launched that could be waited for."""
        raise SubmitError(str(self))

    def wait_if(self, wait: str) -> None:
        """Nothing to wait for."""
        wait_wanted(wait)

    def must_finish(self) -> None:
        """Nothing was started."""

    def report(self) -> "Plan":
        """The plan of what was not launched."""
        from nbtrain.planner.plan import plan

        return plan(self.config)

    def profile(self) -> None:
        """There is no job: nothing to show."""

    def timing(self) -> None:
        """There is no job: nothing to show."""

    def job_page(self) -> None:
        """Say that there is no job."""
        print("There is no job: nothing was submitted.")


def _block(text: str, white_space: str) -> str:
    """Return the text unchanged, as HTML, with each placeholder marked."""
    marked = MARK.sub(r"<mark>\g<0></mark>", html.escape(text))
    style = f"font: 12px/1.4 monospace; white-space: {white_space}; overflow-x: auto; margin: 0 1em 1em"
    return f'<pre style="{style}">{marked}</pre>'


def not_launched(config: RunConfig, shortages: list[str]) -> NotLaunched:
    """For the shortages found, or for a dry run if there are none; placeholders are named first."""
    from nbtrain.jobs.dry_run import request_text

    shortages = [f"{found} is a placeholder. {fix}" for found, fix in placeholders_of(config)] + shortages

    command = f"nbtrain submit {shlex.join(config.as_arguments)}"
    return NotLaunched(config, shortages, command, request_text(config))
