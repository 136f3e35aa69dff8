"""A run's plan and its configuration compared with its parent's, over REST; checks of any run.

The planner is imported at the first request for a plan, so a server that only shows runs does not import it.
"""

from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.lab.run_pages import config_page, plan_page
from nbtrain.lab.server.requests import NbtrainHandler, named_run
from nbtrain.lab.server.views import confined


class PlanHandler(NbtrainHandler):
    """GET run/<name>/plan: the plan of a run and the measurements of its last job.

    The response is {"headline", "kind", "tables", "findings"}, as run_pages.plan_page() returns it.
    """

    async def get(self, name: str) -> None:
        view = await self.view(name)
        value, _ = await self.library(plan_page, view.run)
        self.answer(value)


class ConfigHandler(NbtrainHandler):
    """GET run/<name>/config: the settings of a run, and their differences from its parent run.

    The response is {"yaml", "parent", "differences", "rows"}, as run_pages.config_page() returns it. `parent`
    is the run from which this run was cloned, null if this run is not a clone or the parent no longer exists.
    """

    async def get(self, name: str) -> None:
        view = await self.view(name)
        value, _ = await self.library(config_page, view.run, confined)
        self.answer(value)


class CheckHandler(NbtrainHandler):
    """POST check {"yaml", "overrides"?}: check a run. Returns {"what", "works", "findings"}.

    The most expensive findings come first. If the run is invalid, its problems are findings of level error.
    """

    async def post(self) -> None:
        value, _ = await self.library(_check, named_run(self.body(yaml=str, overrides=object)))
        self.answer(value)


def _check(request: dict[str, Any]) -> dict[str, Any]:
    from nbtrain.base.findings import stops
    from nbtrain.config.findings import findings_of
    from nbtrain.config.load import load
    from nbtrain.jobs.checks.run_findings import findings_of_run
    from nbtrain.lab.form.answers import overrides_of, run_of

    run = run_of(request, anywhere=False)
    try:
        config = load(run, overrides_of(request))
        what, findings, refused = config.name, findings_of_run(config), False
    except ConfigError as error:
        what, refused = run, True
        findings = findings_of(error)
    return {
        "what": what,
        "works": not refused and not stops(findings),
        "findings": [finding.to_dict() for finding in findings],
    }
