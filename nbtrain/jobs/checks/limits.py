"""Run and workspace limits: reject a plan that exceeds one, and find a training length that fits."""

import math
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError, SubmitError, refuse
from nbtrain.base.findings import Finding
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import given_unit

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan

# Number of significant digits of a proposed training length, which is rounded down.
LENGTH_DIGITS = 2
# Factors on the training length, tried in turn after it is shortened in proportion to the exceeded limit. A
# plan is not exactly proportional to the length, because validation and checkpoints have their own intervals.
SHRINKINGS = (1.0, 0.95, 0.8)


def findings_over_limits(plan: "Plan") -> list[Finding]:
    """Return a finding for each limit that the plan exceeds, or for which the plan has no value yet."""
    from nbtrain.planner.lint.limits import limits_hold

    return [
        finding
        for finding in plan.findings
        if finding.rule == limits_hold.__name__ and finding.level == "error"
    ]


def refuse_over_limits(plan: "Plan") -> None:
    """Raise SubmitError with every run or workspace limit that the plan exceeds.

    Everything that can start a job calls this: submit, resume, clone, import, the form, REST and a dry run.
    """
    heading = f"{plan.config.name} cannot start: its plan is not within its limits."
    refuse(findings_over_limits(plan), SubmitError, heading, "Nothing was started and nothing written.")


def refuse_run_over_limits(config: RunConfig) -> None:
    """Plan a run and raise SubmitError as refuse_over_limits does."""
    from nbtrain.planner.plan import plan

    refuse_over_limits(plan(config))


def length_within_limits(plan: "Plan") -> tuple[str, int] | None:
    """Return a training length that keeps the run within its limits, as (field, value).

    For example, ("batch.train_tokens", 1900000000). The length is checked and planned before it is returned.
    Returns None if no limit is exceeded, or if no shorter training helps, for example because the checkpoints
    exceed disk_bytes.
    """
    from nbtrain.planner.plan import plan as make_plan

    config, exceeded = plan.config, [limit for limit in plan.limits if limit.refuses]
    if not exceeded or any(not limit.planned for limit in exceeded):
        return None
    share = min(limit.most / limit.planned for limit in exceeded if limit.planned)
    trial = config.batch.max_steps
    name = "max_steps" if trial else f"train_{given_unit(config.batch, 'train')}"
    now = getattr(config.batch, name)
    for part in SHRINKINGS:
        length = _rounded_down(now * share * part)
        if length < 1:
            return None
        try:
            shorter = load(config, {f"batch.{name}": length})
        except ConfigError:
            continue  # for example, the warm-up would be longer than the training
        if not findings_over_limits(make_plan(shorter)):
            return f"batch.{name}", length
    return None


def _rounded_down(value: float) -> int:
    digits = math.floor(math.log10(value)) + 1 if value >= 1 else 1
    unit = 10 ** max(0, digits - LENGTH_DIGITS)
    return int(value // unit) * unit
