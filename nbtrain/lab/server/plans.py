"""What a run was meant to be, over REST: its plan, its configuration beside its parent's; checks of any run.

The planner is loaded at the first such request: a server that only shows runs does without it.
"""

from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import output_root
from nbtrain.lab.server.requests import NbtrainHandler
from nbtrain.lab.server.views import OutsideError, confined
from nbtrain.monitor.run_ids import name_of


class PlanHandler(NbtrainHandler):
    """GET run/<name>/plan: {"headline", "kind", "tables", "findings"}, with what its last job measured."""

    async def get(self, name: str) -> None:
        view = await self.view(name)
        value, _ = await self.library(_plan, view.run)
        self.answer(value)


def _plan(run: RunDir) -> dict[str, Any]:
    from nbtrain.config.load import load_resolved
    from nbtrain.planner.plan import plan

    made = plan(load_resolved(run.config_yaml))
    headline = dict(made.headline)
    kind = headline.pop("kind")
    tables = [
        {"title": title, "heads": ["figure", "value"], "rows": [[*row] for row in rows.items()]}
        for title, rows in made.sections().items()
    ]
    findings = [{**finding.to_dict(), "label": finding.label} for finding in made.findings]
    return {"headline": headline, "kind": kind, "tables": tables, "findings": findings}


class ConfigHandler(NbtrainHandler):
    """GET run/<name>/config: {"yaml", "parent", "differences"}: [key, value here, value of the parent].

    `parent` is the run that this one was cloned from, null if there is none any more.
    """

    async def get(self, name: str) -> None:
        view = await self.view(name)
        value, _ = await self.library(_config, view.run)
        self.answer(value)


def _config(run: RunDir) -> dict[str, Any]:
    from nbtrain.config.load import load_resolved
    from nbtrain.config.yaml_source import show
    from nbtrain.jobs.changes import changes_between

    value: dict[str, Any] = {"yaml": run.config_yaml.read_text(encoding="utf-8"), "parent": None}
    parent = _parent_of(run)
    differences = []
    if parent is not None:
        changes = changes_between(load_resolved(parent.config_yaml), load_resolved(run.config_yaml))
        differences = [[one.key, show(one.now), show(one.before)] for one in changes if one.key != "name"]
        value["parent"] = parent.name
    return {**value, "differences": differences}


def _parent_of(run: RunDir) -> RunDir | None:
    """The run that this one was cloned from, if its configuration can be read."""
    parent = (run.record() or {}).get("parent")
    if not parent or (name := name_of(parent, output_root())) is None:
        return None
    found = RunDir.named(name)
    try:
        confined(found.config_yaml)
    except OutsideError:
        return None
    return found if found.config_yaml.exists() else None


class CheckHandler(NbtrainHandler):
    """POST check {"yaml", "overrides"?}: {"what", "works", "findings"}, the dearest first.

    A run that is refused has its problems as findings of the level error.
    """

    async def post(self) -> None:
        value, _ = await self.library(_check, self.body(yaml=str, overrides=object))
        self.answer(value)


def _check(request: dict[str, Any]) -> dict[str, Any]:
    from nbtrain.config.load import load
    from nbtrain.lab.form.answers import overrides_of, run_of
    from nbtrain.planner.findings import finding_of_problem, split_problems, stops
    from nbtrain.planner.plan import plan

    run = run_of(request, anywhere=False)
    try:
        config = load(run, overrides_of(request))
        what, findings, refused = config.name, plan(config).findings, False
    except ConfigError as error:
        what, refused = run, True
        findings = [finding_of_problem(problem) for problem in split_problems(str(error))]
    return {
        "what": what,
        "works": not refused and not stops(findings),
        "findings": [finding.to_dict() for finding in findings],
    }
