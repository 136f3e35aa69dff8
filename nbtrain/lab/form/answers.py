"""Responses to the launch form's requests, JSON in and JSON out, for the server's routes and the kernel.

    form           the form's content for a YAML with overrides: fields, groups, values, and the assessment
    form/assess    a check of the typed values: problems by field, headline, plan, changes, equivalent call
    form/layouts   layouts that the search suggests, each with the changes that it makes
    submit         submits the form's run; in mode twin, starts its twin (lab/form/twin.py)

A request is {yaml, overrides, typed, name, mode, clone}: `overrides` are the overrides that the form was
opened with (as in nb.submit, or a JSON object as text), `typed` is {key: text} of the fields that the user
changed. `clone` names a run whose configuration is used instead of the YAML; the new run becomes its child.
With `try_code` false, the run's own Python file (`code`) is not tried before the submission.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir, runs_like
from nbtrain.base.workspace import bundled, display, output_root, workspace
from nbtrain.config.load import Overrides, find, load
from nbtrain.config.yaml_source import show
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.checks.limits import findings_over_limits
from nbtrain.jobs.checks.this_machine import findings_here
from nbtrain.jobs.request.request import active_job
from nbtrain.lab.form.draft import Draft
from nbtrain.lab.form.fields import (
    GROUPS,
    Field,
    essentials,
    every_field,
    fields_of,
    following,
    group_of,
    run_yamls,
)
from nbtrain.lab.form.problems import (
    findings_by_key,
    problems_by_key,
    problems_of_limits,
    shortages_by_key,
)
from nbtrain.lab.form.same_name import (
    later_name,
    name_taken,
    not_applied,
    problems_of_name,
    refuse_taken,
)
from nbtrain.monitor.status.notes import own_labels_of

Request = Mapping[str, Any]


class OutsideWorkspace(ConfigError):
    """Raised for a run YAML that the server does not read because it is outside the workspace."""

    kind = "outside_workspace"


MODES = ("full", "twin")
"""The modes of a notebook: train the run, or train its twin."""
TWIN_WORDS = (
    "Mode twin: Submit trains a scaled-down run with the same layout on this machine's CPU, and compares it "
    "with other layouts. This takes a few minutes and does not need the run's data or GPUs."
)
SUGGESTIONS = 6
DEFAULT_RUN = "gpt-tiny"


def answer(path: str, request: Request, anywhere: bool = False) -> dict[str, Any]:
    """Return the response to a request. Raises ConfigError if it is invalid, SubmitError if it is refused.

    `anywhere` allows run YAMLs outside the workspace: a kernel may read any file anyway.
    """
    return ANSWERS[path](request, anywhere)


def prepare() -> None:
    """Import the modules that responses need, including those for prepared data, and build the schema.

    Otherwise the first response takes up to half a second longer.
    """
    import nbtrain.dataset.prepare.inputs
    import nbtrain.dataset.samples.build
    import nbtrain.jobs.checks.preflight
    import nbtrain.jobs.request.launch
    import nbtrain.planner.plan  # noqa: F401

    load(DEFAULT_RUN, check=False)
    every_field()


def form_described(request: Request, anywhere: bool = False) -> dict[str, Any]:
    """Return everything that the form shows for a YAML.

    If the user chooses another YAML, the notebook's overrides are applied to it. Overrides that do not fit
    this YAML are dropped, and `left_out` has the reason.
    """
    run, overrides, left_out = run_of(request, anywhere), overrides_of(request), ""
    clone = request.get("clone") or ""
    try:
        draft = Draft(run, overrides, clone)
    except ConfigError as error:
        draft, left_out = Draft(run, None, clone), str(error)
    _as_clone(draft)
    values = draft.base.batch.model_dump()
    return {
        "yaml": draft.run,
        "yamls": run_yamls(),
        "place": place(),
        "modes": list(MODES),
        "groups": [
            {"title": title, "sections": [{"name": name, "keys": _keys(name)} for name in sections]}
            for title, sections in GROUPS.items()
        ],
        "essentials": essentials(values),
        "fields": [_field(draft, one) for one in every_field().values()],
        "given": [_change(draft, key) for key in draft.given],
        "left_out": left_out,
        "assessment": _assessed(_typed(draft, request), request),
    }


def form_assessed(request: Request, anywhere: bool = False) -> dict[str, Any]:
    """Return the assessment of the typed values: problems, headline, plan, changes and equivalent call."""
    return _assessed(_draft(request, anywhere), request)


def form_layouts(request: Request, anywhere: bool = False) -> dict[str, Any]:
    """Return the best layouts and the rejected layouts of the run, from a search.

    The search is for the run's own GPUs, or for `gpus` GPUs of the type `gpu_type` if the request has these
    keys. Raises ConfigError if a value does not fit the schema.
    """
    from nbtrain.planner.search.search import search
    from nbtrain.planner.search.search_results import FoundLayouts

    draft = _draft(request, anywhere)
    config = draft.unchecked
    if config is None:
        raise ConfigError("Correct the marked fields first; then search for layouts.")
    gpus, gpu_type = request.get("gpus"), request.get("gpu_type") or None
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool)):
        raise ConfigError(f"gpus = {gpus!r} must be a whole number.")
    found = FoundLayouts(search(config, gpus, gpu_type=gpu_type), SUGGESTIONS)
    cells_of, space = found.rows(), found.result.space
    chosen = [space.run(found[number].layout, check=False) for number in range(1, len(cells_of) + 1)]
    rows = []
    for number, (cells, texts) in enumerate(zip(cells_of, draft.texts_for(chosen)), start=1):
        changes = [[key, draft.text(every_field()[key]), text] for key, text in texts.items()]
        _, layout, step, mfu, total_time, memory, headroom, *_, against = cells
        rows.append(
            {
                "number": number,
                "layout": layout,
                "step": step,
                "mfu": mfu,
                "time": total_time,
                "memory": memory,
                "headroom": headroom,
                "against": against,
                "typed": texts,
                "changes": changes,
            }
        )
    return {"title": found.title, "rows": rows, "refused": found.refusals()}


def form_submitted(request: Request, anywhere: bool = False) -> dict[str, Any]:
    """Submit the form's run, as nb.submit and nb.twin do. Returns {"name", "job_id", "twin_of"?}.

    If a job of the run is already active, the result also has that job's state as "joined", and as
    "not_applied" the changes that do not apply to that job.
    """
    from nbtrain.jobs.submission.submit import submit

    # Load the file again: it may have changed since the form read it.
    draft = _draft(request, anywhere)
    config, parent = draft.config, None
    if _mode(request) == "twin":
        from nbtrain.lab.form.twin import start_twin

        return {"name": start_twin(config), "job_id": None, "twin_of": config.name}
    if draft.clone_of:
        parent = RunDir.named(draft.clone_of).run_id
        refuse_taken(RunDir.named(config.name))
    before = active_job(RunDir.named(config.name))
    job = submit(config, parent=parent, tries_code=request.get("try_code", True))
    found: dict[str, Any] = {"name": job.run.name, "job_id": job.job_id}
    changes = [str(change) for change in not_applied(job.run, config)]
    # If another process has submitted the run in the meantime, only the changes show that.
    if changes or (before and before.job_id == job.job_id):
        found |= {"joined": status_of(job)[0], "not_applied": changes}
    return found


ANSWERS: dict[str, Callable[[Request, bool], dict[str, Any]]] = {
    "form": form_described,
    "form/assess": form_assessed,
    "form/layouts": form_layouts,
    "submit": form_submitted,
}


def place() -> str:
    """Return "<workspace> -> <output directory>" of this process.

    The page compares the texts of the server and the kernel, because the two may use different folders.
    """
    return f"{workspace()} -> {output_root()}"


def _assessed(draft: Draft, request: Request) -> dict[str, Any]:
    mode, found = _mode(request), draft.assess()
    plan, twin = found.plan, mode == "twin"
    problems = problems_by_key(draft, found.problems, found.config)
    over = [] if plan is None or twin else findings_over_limits(plan)
    if found.config and not problems and not twin:
        problems = problems_of_name(found.config, draft.clone_of)
        problems += problems_of_limits(draft, plan) if plan else []
    # As in notebook 03, missing data is prepared first.
    unprepared = any(finding.lacks == "data" for finding in found.shortages)
    function, more = ("nb.twin", "") if twin else ("nb.submit", "prepared=False" if unprepared else "")
    return {
        "ready": found.ready and not problems,
        "may_submit": not problems,
        "unprepared": unprepared and not twin,
        "words": TWIN_WORDS if twin else "",
        "problems": problems,
        "shortages": [] if twin else shortages_by_key(found.shortages),
        "findings": findings_by_key(
            [*findings_here(found.config), *(one for one in plan.findings if one not in over)]
        )
        if plan and found.config
        else [],
        "headline": plan.headline if plan else None,
        "plan": [[title, [[*row] for row in rows.items()]] for title, rows in plan.sections().items()]
        if plan
        else None,
        "changes": [_change(draft, key) for key in draft.changes],
        "following": {key: _following(draft, every_field()[key]) for key in following()},
        "name": draft.value("name"),
        "taken": None if twin else name_taken(str(draft.value("name"))),
        "line": draft.call(function),
        "cell": draft.cell(function, "twin" if twin else "job", more),
    }


def _draft(request: Request, anywhere: bool) -> Draft:
    draft = Draft(run_of(request, anywhere), overrides_of(request), request.get("clone") or "")
    _as_clone(draft)
    return _typed(draft, request)


def _as_clone(draft: Draft) -> None:
    """Give a clone the first free name and its run's labels, and change mode eval to full, as
    jobs/submission/clone.py does.
    """
    if not draft.clone_of:
        return
    if "name" not in draft.changes:
        draft.set("name", later_name(draft.base.name))
    if draft.base.mode == "eval":
        draft.set("mode", "full")
    if "labels" not in draft.changes:
        draft.set("labels", own_labels_of(RunDir.named(draft.clone_of)))
    draft.given = draft.changes


def _typed(draft: Draft, request: Request) -> Draft:
    """Return the draft with the typed values of this request."""
    typed = request.get("typed") or {}
    if not isinstance(typed, Mapping):
        raise ConfigError(f"typed = {typed!r} must be an object of the form {{key: text}}.")
    draft.type(typed)
    if name := request.get("name"):
        draft.type({"name": name})
    return draft


def run_of(request: Request, anywhere: bool) -> str:
    run = request.get("yaml") or DEFAULT_RUN
    if clone := request.get("clone"):
        directory = RunDir.named(clone)
        if not directory.exists():
            raise ConfigError(f"clone = {clone!r} must be the name of a run. {runs_like(clone)}")
        run = str(directory.config_yaml)
    if not isinstance(run, str):
        raise ConfigError(f"yaml = {run!r} must be text.")
    path = find(run).resolve()
    roots = (workspace(), bundled("examples/megatron-gpt"), output_root())
    if not anywhere and not any(path.is_relative_to(root.resolve()) for root in roots):
        raise OutsideWorkspace(
            f"{display(path)} is outside the workspace ({workspace()}), and the server does not read run "
            "YAMLs there. Copy the file into the workspace, or open the form in a notebook that has a kernel."
        )
    return run


def overrides_of(request: Request) -> Overrides:
    """Return the overrides of the request; text may be a JSON object or key=value pairs."""
    given = request.get("overrides")
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"overrides must be a JSON object: {error}") from None
    return given or None


def _mode(request: Request) -> str:
    mode = request.get("mode") or "full"
    if mode not in MODES:
        raise ConfigError(f'mode = {mode!r} must be "full" or "twin".')
    return mode


def _keys(section: str) -> list[str]:
    return [one.key for one in fields_of(section)]


def _field(draft: Draft, one: Field) -> dict[str, Any]:
    return {
        "key": one.key,
        "label": one.label,
        "title": one.title,
        "group": group_of(one.section),
        "kind": one.kind,
        "choices": [show(choice) for choice in one.choices],
        "description": one.description,
        "unit": one.unit,
        "within": one.within,
        "default": draft.default(one.key),
        "base": one.text(draft.base_value(one.key)),
        "value": draft.text(one),
    }


def _following(draft: Draft, one: Field) -> dict[str, str | None]:
    """Return the value that a field has until the user types one. It depends on the recipe, the architecture
    or a kind, which the user may have changed.
    """
    base = draft.base_value(one.key)
    value = draft.given.get(one.key, base)
    default = draft.default(one.key)
    return {"base": one.text(base), "value": one.text(value), "default": default}


def _change(draft: Draft, key: str) -> list[str]:
    """Return [key, old value, new value, origin]; the origin is "given" for the notebook's changes and "form"
    for the user's.
    """
    one, value = every_field()[key], draft.value(key)
    mine = key not in draft.given or draft.given[key] != value
    return [key, one.value_text(draft.base_value(key)), one.value_text(value), "form" if mine else "given"]


def yaml_for_others(run: str | Path) -> str:
    """Return a run YAML's name for another process: names unchanged, paths below this folder absolute."""
    path = find(run)
    is_here = any((Path.cwd() / f"{run}{ending}").absolute() == path for ending in ("", ".yaml", ".yml"))
    return str(path) if is_here and str(run) not in run_yamls() else str(run)
