"""Findings about a run before its submission: this machine, initial weights, own code and the plan."""

from nbtrain.base.findings import Finding, by_cost
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.checks.this_machine import findings_here
from nbtrain.jobs.request.initial_weights import findings_of_weights, with_new_tokens
from nbtrain.jobs.request.own_code import findings_of_code
from nbtrain.planner.plan import plan


def findings_of_run(config: RunConfig) -> list[Finding]:
    """Return the findings about a run that breaks no rule, most expensive first (by_cost()).

    No data is read. Raises ConfigError as plan() does.
    """
    here = [*findings_here(config), *findings_of_weights(config), *findings_of_code(config)]
    return by_cost([*here, *plan(with_new_tokens(config)).findings])
