"""`nbtrain notebook --again EXECUTED.ipynb`: run an executed notebook again, from the record in its outputs.

    record      the newest run that its cells started (lab/widgets/record.py)
    parameters  taken from the record; if the notebook has others, it was edited after it ran: an error
    name        the recorded name if that run no longer exists, else RUN-again, so that a new run is trained
    compare     settings, versions and code of both runs, and their certificates if both runs still exist

The executed notebook is not changed: the new notebook is written to the new run's folder.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobError, RecordError
from nbtrain.base.printing.report import Facts, Items, Report, Result
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import check_name, display, free_name
from nbtrain.cli.notebook_runner import ExecutedNotebook, read_notebook, run_notebook
from nbtrain.lab.widgets.record import HASH_CHARACTERS, records_in
from nbtrain.monitor.run.certificate import differences, make_certificate

# Tags of the cell that papermill adds, and of the cell that declares the parameters.
INJECTED_TAG, PARAMETERS_TAG = "injected-parameters", "parameters"
OVERRIDES = "overrides"
# Fields that a record must have, with their types.
FIELDS = {
    "run": str,
    "run_id": str,
    "settings": dict,
    "settings_sha256": str,
    "versions": dict,
    "parameters": dict,
    "code_sha256": str,
}


@dataclass(repr=False)
class NotebookAgain(Result):
    """The result of running a notebook again, compared with its record."""

    source: Path
    executed: ExecutedNotebook
    before: dict[str, Any]
    now: dict[str, Any]
    differences: list[str]
    """Sentences about the settings, versions and code that differ between the two runs."""
    numbers: str
    """Result of comparing both runs' certificates, or why they were not compared."""

    def as_report(self) -> Report:
        """Return the two runs and the differences between them."""
        facts = {
            "the record": f"run {self.before['run']}, id {self.before['run_id']}",
            "this time": f"run {self.now['run']}, id {self.now['run_id']}",
            "settings": f"{_short(self.before)} -> {_short(self.now)}"
            if self.before["settings"] != self.now["settings"]
            else f"the same, {_short(self.now)}",
            "numbers": self.numbers,
        }
        title = f"{self.source.name} ran again: {display(self.executed.notebook)}"
        return Report(title, [Facts(facts), Items(self.differences, "What differs")])


def _short(record: Mapping[str, Any]) -> str:
    return str(record["settings_sha256"])[:HASH_CHARACTERS]


def run_again(name: str, output: Path | None = None) -> NotebookAgain:
    """Execute an executed notebook again with its parameters, and compare the run with the record.

    Without `output`, the new notebook is written to the new run's folder. Raises ConfigError if the file is
    not a notebook, was not executed, or was edited after it ran, and raises the errors of run_notebook().
    """
    source = Path(name)
    if not source.is_file():
        raise ConfigError(f"{name}: there is no such file. Name an executed notebook, which ends in .ipynb.")
    notebook = read_notebook(source)
    record = _record(source, notebook)
    _refuse_edited(source, notebook, record)
    known, injected = dict(_parameters(notebook)), dict(_parameters(notebook, (INJECTED_TAG,)))
    # papermill replaces its own cell. Another cell may have changed a value before the run was started, e.g.
    # to a RunConfig, which the record does not contain.
    parameters = {name: value for name, (_, value) in injected.items() if value is not None}
    parameters |= {name: value for name, value in record["parameters"].items() if name in known}
    run = RunDir.named(check_name(record["run"], f"{source}: the name of its run"))
    new_name = run.name
    if run.exists():
        new_name = free_name(run.name, "again")
        parameters[OVERRIDES] = _renamed(source, parameters, run.name, new_name)
    target = output or RunDir.named(new_name).notebooks / source.name
    if output is None and target.resolve() == source.resolve():
        target = source.with_name(f"{source.stem}-again.ipynb")
    executed = run_notebook(str(source), parameters, target)
    made = records_in(read_notebook(executed.notebook))
    if not made:
        raise JobError(
            f"{display(executed.notebook)}: this time the cells started no run, but according to {source} "
            f"they started the run {record['run']} before. Read the reason in the new notebook's outputs."
        )
    return NotebookAgain(
        source, executed, record, made[-1], list(_differences(record, made[-1])), _numbers(record, made[-1])
    )


def _record(source: Path, notebook: Any) -> dict[str, Any]:
    """Return the newest record of a notebook. Raises ConfigError if it has none."""
    if not (found := records_in(notebook)):
        executed = any(cell.get("execution_count") for cell in notebook.cells)
        why = (
            "its outputs have no record of a run, because no cell called nb.submit or nb.launch, or because "
            "the outputs were cleared"
            if executed
            else "it was never executed, so there is nothing to run again"
        )
        raise ConfigError(f"{source}: {why}. Run `nbtrain notebook {source}` to execute the notebook.")
    record = found[-1]
    if wrong := [key for key, kind in FIELDS.items() if not isinstance(record.get(key), kind)]:
        raise ConfigError(
            f"{source}: the record of its run was changed: {wrong[0]} is "
            f"{type(record.get(wrong[0])).__name__} and must be {FIELDS[wrong[0]].__name__}. Run `nbtrain "
            f"notebook {source}` to execute the notebook without the record."
        )
    return record


def _parameters(
    notebook: Any, tags: tuple[str, ...] = (PARAMETERS_TAG, INJECTED_TAG)
) -> Iterator[tuple[str, tuple[int, Any]]]:
    """Yield (name, (cell number, value)) for each parameter; papermill's cell comes last.

    The value is None if it is not a literal.
    """
    for tag in tags:
        for number, cell in enumerate(notebook.cells, 1):
            if tag in cell.metadata.get("tags", []):
                for name, value in _assigned(cell.source):
                    yield name, (number, value)


def _assigned(source: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each assignment in a cell; the value is None if it is not a literal."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return
    for node in statements:
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            try:
                # The record is JSON, which has no tuples.
                value = json.loads(json.dumps(ast.literal_eval(node.value)))
            except (ValueError, TypeError):
                value = None
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value


def _refuse_edited(source: Path, notebook: Any, record: Mapping[str, Any]) -> None:
    """Raise ConfigError if a parameter in the notebook is not the value that the run was started with."""
    for name, (number, value) in dict(_parameters(notebook)).items():
        then = record["parameters"].get(name)
        if name in record["parameters"] and value is not None and value != then:
            raise ConfigError(
                f"{source}, cell {number}: {name} = {value!r}, but the run {record['run']} was started "
                f"with {then!r}: the notebook was edited after it ran. Restore the value, or run the "
                f"notebook as it is now: `nbtrain notebook {source}`."
            )


def _renamed(source: Path, parameters: Mapping[str, Any], name: str, new_name: str) -> Any:
    """Return the parameter `overrides` with the run's new name added.

    Raises ConfigError if the notebook has no such parameter.
    """
    overrides = parameters.get(OVERRIDES)
    if isinstance(overrides, str):
        return f"{overrides} name={new_name}".strip()
    if isinstance(overrides, list):
        return [*overrides, f"name={new_name}"]
    if isinstance(overrides, dict):
        return {**overrides, "name": new_name}
    raise ConfigError(
        f"{source} has no parameter `{OVERRIDES}` for renaming the run, and the run {name} still exists. "
        f"Delete that run (`nbtrain delete {name}`) or move its folder, then run this command again."
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("settings", "versions"):
        for key in dict.fromkeys([*before[kind], *now[kind]]):
            ours, theirs = before[kind].get(key), now[kind].get(key)
            if ours != theirs:
                yield f"{'version of ' if kind == 'versions' else ''}{key}: {ours} -> {theirs}"
    if before["code_sha256"] != now["code_sha256"]:
        ours, theirs = (record["code_sha256"][:HASH_CHARACTERS] for record in (before, now))
        yield f"files of nbtrain: SHA-256 {ours} -> {theirs}"


def _numbers(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how the steps in both runs' certificates compare, or why they were not compared."""
    runs = [RunDir.named(record["run"]) for record in (before, now)]
    is_here = runs[0].run_id == before["run_id"]
    if is_here and before["run"] == now["run"]:
        return f"not compared: the cells opened the existing run {now['run']} and trained no new run"
    if not is_here:
        return f"not compared: the recorded run, id {before['run_id']}, no longer exists"
    try:
        ours, theirs = map(make_certificate, runs)
    except (JobError, RecordError) as error:
        return f"not compared: {error}"
    found = [difference for difference in differences(ours, theirs) if difference.kind == "number"]
    if not found:
        return f"bit-exact: losses and gradient norms of {len(ours.steps):,} steps are equal"
    return f"differ: {found[0]}"
