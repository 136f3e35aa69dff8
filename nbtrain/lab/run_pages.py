"""A run's Plan, Config and Metrics pages as JSON, for the server's routes and the static picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.metrics_range import MOST_TAGS, CurvesRequest, metrics, whole_metrics
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.status.run_ids import name_of

# Number of points per curve in a picture, which is a few hundred pixels wide.
PICTURE_POINTS = 100
# Maximum seconds for reading a long run's metrics files.
READ_SECONDS = 3.0


def plan_page(run: RunDir) -> dict[str, Any]:
    """Return the plan of a run and the measurements of its last job, for the tab Plan.

    The keys are "headline" {name: text}, "kind" (good, tight or bad: the fit into memory), "tables" and
    "findings".
    """
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


def config_page(run: RunDir, readable: Callable[[Path], object] = lambda path: path) -> dict[str, Any]:
    """Return a run's settings as {"yaml", "parent", "differences", "rows"}.

    `parent` is the name of the run that this run was cloned from, None if there is none or it no longer
    exists. A difference is [key, value in this run, value in the parent]. `rows` has every setting as
    {"key", "value", "text", "default"?, "parent"?, "origin", "override"}: `text` is the value as a user would
    type it, None if the form has no field for it; `default` and `parent` are present only if they differ from
    the value, and `default` is None for a setting without a default; `origin` is where the value was set, ""
    for a default. `readable` raises an NbtrainError for a path that may not be read.
    """
    from nbtrain.config.load import flatten, load_resolved
    from nbtrain.config.load.changes import changes_between
    from nbtrain.config.yaml_source import show, spelled
    from nbtrain.jobs.submission.origins import read_origins
    from nbtrain.lab.form.fields import every_field

    value: dict[str, Any] = {"yaml": run.config_yaml.read_text(encoding="utf-8"), "parent": None}
    parent, config = _parent_of(run, readable), load_resolved(run.config_yaml)
    differences = []
    if parent is not None:
        changes = changes_between(load_resolved(parent.config_yaml), config)
        differences = [[one.key, show(one.now), show(one.before)] for one in changes if one.key != "name"]
        value["parent"] = parent.name
    fields, before = every_field(), {key: text for key, _, text in differences}
    job = run.newest_job()
    places, rows = read_origins(job) if job else {}, []
    for key, found in flatten(config.model_dump()):
        field, place = fields.get(key), places.get(key, "")
        row = {"key": key, "value": show(found), "text": field.text(found) if field else None}
        if field and (field.default is None or spelled(field.initial) != spelled(found)):
            row["default"] = field.default
        row |= {"parent": before[key]} if key in before else {}
        rows.append({**row, "origin": place, "override": place.startswith("override ")})
    return {**value, "differences": differences, "rows": rows}


def _parent_of(run: RunDir, readable: Callable[[Path], object]) -> RunDir | None:
    """Return the run from which `run` was cloned.

    None if `run` is not a clone, or if the parent's configuration cannot be read.
    """
    parent = (run.record() or {}).get("parent")
    if not parent or (name := name_of(parent, run.path.parent)) is None:
        return None
    found = RunDir(run.path.parent / name)
    try:
        readable(found.config_yaml)
    except NbtrainError:
        return None
    return found if found.config_yaml.exists() else None


def metrics_page(view: RunView) -> dict[str, Any]:
    """Return every curve of a run, thinned to a few points, in the form of monitor/run/metrics_range.py."""
    answer = whole_metrics(view, CurvesRequest((), points=PICTURE_POINTS), READ_SECONDS)
    names = [row["tag"] for row in answer["tags"]][:MOST_TAGS]
    return metrics(view, CurvesRequest(tuple(names), points=PICTURE_POINTS))


def run_pages(view: RunView) -> dict[str, Any]:
    """Return {"plan", "config", "metrics"}. If a damaged or old run has no such page, its value is None."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "metrics": lambda: metrics_page(view),
        "plan": lambda: plan_page(view.run),
        "config": lambda: config_page(view.run),
    }
    found: dict[str, Any] = {}
    for name, page in made.items():
        try:
            found[name] = page()
        except (NbtrainError, OSError):
            found[name] = None
    return found
