"""Refusal of submissions whose plan exceeds a limit of the run or of its workspace."""

from typing import TYPE_CHECKING

from nbtrain.base.errors import SubmitError, refuse
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan


def refuse_over_limits(plan: "Plan") -> None:
    """Raise SubmitError with every limit of the run or of its workspace that the plan exceeds.

    Every way to start a job calls this: submit, resume, clone, import, the form, REST and a dry run.
    """
    from nbtrain.planner.lint.limits import limits_hold

    found = [finding for finding in plan.findings if finding.rule == limits_hold.__name__]
    heading = f"{plan.config.name} may not start: its plan is not within its limits."
    refuse(found, SubmitError, heading, "Nothing was started and nothing written.")


def refuse_run_over_limits(config: RunConfig) -> None:
    """Plan a run and raise SubmitError as refuse_over_limits does."""
    from nbtrain.planner.plan import plan

    refuse_over_limits(plan(config))
