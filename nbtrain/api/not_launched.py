"""A run that was not submitted, and why: what notebooks 03 and 06 show in place of a job."""

import shlex
from typing import TYPE_CHECKING

from nbtrain.api.arguments import wait_wanted
from nbtrain.config.placeholders import placeholders_of
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan


class NotLaunched:
    """A run that needs more than this machine has, or a dry run: nothing was submitted. A cell shows why.

    `shortages` are the missing resources in numbers, or placeholders with what to set; `command` starts the
    run if it has them; `request` is what would be sent to Slurm or Kubernetes, or started on hosts; "" on
    this machine.
    """

    def __init__(self, config: RunConfig, shortages: list[str], command: str, request: str = ""):
        self.config, self.shortages, self.command, self.request = config, shortages, command, request

    def __str__(self) -> str:
        lines = "".join(f"\n  - {line}" for line in self.shortages)
        kind = self.config.backend.kind
        why, where = "a dry run", "To launch it"
        if placeholders_of(self.config):
            why, where = f"backend {kind} needs settings that the run does not have", "To launch it, set them"
        elif self.shortages and kind == "local":
            why, where = "this machine does not suffice", "On a machine that has it"
        elif self.shortages:
            why, where = f"backend {kind} cannot take it from here", "Where it can"
        said = f"{self.config.name} was not launched: {why}.{lines}\n{where}:\n  {self.command}"
        return f"{said}\nWhat would be submitted:\n\n{self.request}" if self.request else said

    __repr__ = __str__

    def wait_if(self, wait: str) -> None:
        """Nothing to wait for."""
        wait_wanted(wait)

    def report(self) -> "Plan":
        """The plan of what was not launched."""
        from nbtrain.planner.plan import plan

        return plan(self.config)

    def job_page(self) -> None:
        """There is no job."""


def not_launched(config: RunConfig, shortages: list[str]) -> NotLaunched:
    """For the shortages found, or for a dry run if there are none; placeholders are named first."""
    from nbtrain.jobs.dry_run import request_text

    shortages = [f"{found} is a placeholder. {fix}" for found, fix in placeholders_of(config)] + shortages

    command = f"nbtrain submit {shlex.join(config.as_arguments)}"
    return NotLaunched(config, shortages, command, request_text(config))
