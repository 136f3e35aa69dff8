"""The list of all rules of a plan, and the findings of a run."""

from collections.abc import Callable, Iterator

from nbtrain.base.findings import Finding, by_cost
from nbtrain.planner.lint.layout import LAYOUT_RULES
from nbtrain.planner.lint.limits import LIMIT_RULES
from nbtrain.planner.lint.machine import MACHINE_RULES
from nbtrain.planner.lint.memory import MEMORY_RULES
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.lint.schedule import SCHEDULE_RULES

RULES: tuple[Callable[[RunEstimates], Iterator[Finding]], ...] = (
    *MEMORY_RULES,
    *LAYOUT_RULES,
    *SCHEDULE_RULES,
    *MACHINE_RULES,
    *LIMIT_RULES,
)


def findings_of(estimates: RunEstimates) -> list[Finding]:
    """Return the findings about a run that passed the rules of config/rules/, the most expensive finding
    first."""
    return by_cost(finding for rule in RULES for finding in rule(estimates))
