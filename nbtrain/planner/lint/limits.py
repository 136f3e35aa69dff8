"""Findings about plans that exceed the limits of the run or of its workspace."""

from collections.abc import Iterator

from nbtrain.base.findings import FATAL, Cost, Finding, Level
from nbtrain.config.findings import finding_of
from nbtrain.planner.budget.limits import Limit, amount_of, limits_of
from nbtrain.planner.lint.run_estimates import RunEstimates

WORDS = {
    "gpu_hours": "all GPUs together need",
    "money": "the GPU hours cost",
    "energy_kwh": "the run uses",
    "days": "the run takes",
    "epochs": "the run trains for",
    "disk_bytes": "checkpoints and dataset need",
}
"""Beginning of the message about each limit. The planned amount follows it, such as "12 days"."""


def limits_hold(estimates: RunEstimates) -> Iterator[Finding]:
    """Compare the plan's values with the limits of the run and of its workspace.

    `nbtrain submit` rejects a run with an error-level finding.
    """
    for limit in limits_of(
        estimates.config,
        estimates.cost,
        estimates.duration,
        estimates.disk,
        estimates.epochs,
        estimates.least_epochs,
    ):
        if limit.looser:
            yield _looser(estimates, limit)
        name, most = f"limits.{limit.key}", amount_of(limit.key, limit.most)
        if limit.by_workspace:
            name = f"The workspace limit {limit.key}"
        if limit.exceeded:
            assert limit.planned is not None
            planned = amount_of(limit.key, limit.planned)
            if planned == most:
                planned = f"slightly more than {planned}"
            fix = (
                f"or ask the owner of {limit.place} to raise the limit"
                if limit.by_workspace
                else "or raise the limit"
            )
            yield _finding(
                limit,
                f"{name} is exceeded: {WORDS[limit.key]} {planned}, but the limit is {most}.",
                f"Plan a smaller run, {fix}.",
            )
        elif limit.planned is None:
            message = f"{name} ({most}) cannot be checked: {limit.why_unknown}."
            yield _finding(limit, message, limit.fix)


def _finding(limit: Limit, message: str, fix: str) -> Finding:
    cost = FATAL if limit.refuses else Cost(words="the protection of this limit")
    level: Level = "error" if limit.refuses else "warning"
    return Finding(level, limits_hold.__name__, f"limits.{limit.key}", limit.place, message, fix, cost)


def _looser(estimates: RunEstimates, limit: Limit) -> Finding:
    own = getattr(estimates.config.limits, limit.key)
    return finding_of(
        estimates.config,
        "limits_tighten",
        f"limits.{limit.key}",
        f"limits.{limit.key} ({amount_of(limit.key, own)}) has no effect, because the workspace has a "
        f"stricter limit: {amount_of(limit.key, limit.most)} ({limit.place}).",
        f"Remove limits.{limit.key}, or set it to less than the workspace limit.",
    )


LIMIT_RULES = (limits_hold,)
