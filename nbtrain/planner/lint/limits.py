"""Findings about the limits of a run and of its workspace."""

from collections.abc import Iterator

from nbtrain.base.findings import FATAL, Cost, Finding, Level
from nbtrain.config.findings import finding_of
from nbtrain.planner.budget.limits import Limit, amount_of, limits_of
from nbtrain.planner.lint.run_estimates import RunEstimates

WORDS = {
    "gpu_hours": "all GPUs together take",
    "money": "the GPU hours cost",
    "energy_kwh": "the run uses",
    "days": "the run takes",
    "epochs": "the run makes",
    "disk_bytes": "checkpoints and dataset need",
}


def limits_hold(estimates: RunEstimates) -> Iterator[Finding]:
    """Compare the plan's values with the limits of the run and of its workspace.

    A finding of the level error refuses a submission.
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
            name = f"The workspace's limit {limit.key}"
        if limit.exceeded:
            assert limit.planned is not None
            planned = amount_of(limit.key, limit.planned)
            if planned == most:
                planned = f"slightly more than {planned}"
            fix = (
                f"or ask the owner of {limit.place} to raise it"
                if limit.by_workspace
                else "or raise the limit"
            )
            yield _finding(
                limit,
                f"{name} is exceeded: {WORDS[limit.key]} {planned}, and the limit is {most}.",
                f"Plan a smaller run, {fix}.",
            )
        elif limit.planned is None:
            message = f"{name} ({most}) cannot be compared: {limit.why_unknown}."
            yield _finding(limit, message, limit.fix)


def _finding(limit: Limit, message: str, fix: str) -> Finding:
    cost = FATAL if limit.refuses else Cost(words="a limit that nothing checks")
    level: Level = "error" if limit.refuses else "warning"
    return Finding(level, limits_hold.__name__, f"limits.{limit.key}", limit.place, message, fix, cost)


def _looser(estimates: RunEstimates, limit: Limit) -> Finding:
    own = getattr(estimates.config.limits, limit.key)
    return finding_of(
        estimates.config,
        "limits_tighten",
        f"limits.{limit.key}",
        f"limits.{limit.key}({amount_of(limit.key, own)}) is looser than the workspace's, "
        f"{amount_of(limit.key, limit.most)} ({limit.place}), and has no effect.",
        "Remove it, or set a smaller one.",
    )


LIMIT_RULES = (limits_hold,)
