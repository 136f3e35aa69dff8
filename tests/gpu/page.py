"""The results of all cases by kind of machine, in docs/evidence/gpu.json, and the page gpu.md."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from tests.gpu import replan
from tests.gpu.steps import STEPS, Step
from tests.parity.sources import stamp

Row = dict[str, Any]
"""{name, outcome, words, values, seconds, key, command, date}."""


INTRODUCTION = """\
`make gpu` (tests/gpu/) tests on the GPUs of a machine what cannot be tested on a CPU. It writes this page,
which is not edited by hand, after each result, and continues where it was stopped. `python -m tests.gpu
--list` lists the steps, and `--only memory --minutes 9` runs a part. Without a network, `python3 -m
tests.gpu --wheels DIR` installs missing packages from a folder of wheels, for these runs only.

Each measured value stands next to today's plan, which `make docs` computes again. A row is marked old if the
plan was another one when the row was measured, or if the code that the row is about has changed since; what
has changed is listed below the table. An old row keeps its result until it is measured again."""


@dataclass
class Results:
    """The results of one kind of machine, e.g. "1 x NVIDIA H200"."""

    machine: str = ""
    """GPUs, driver and versions of the newest call, in one sentence."""
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    """Rows by step and case."""
    complete: dict[str, str] = field(default_factory=dict)
    """Hash of the code with which all cases of a step were tried, by step."""


@functools.cache
def key_of(step: Step) -> str:
    """Return a short hash of the code that a step depends on."""
    found = re.search(r"`([0-9a-f]{16})", stamp(step.evidence))
    assert found is not None
    return found[1]


def read(path: Path) -> dict[str, Results]:
    """Read the results, by the machine's label."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {label: Results(**entry) for label, entry in content.items()}


def write(folder: Path, results: Mapping[str, Results]) -> None:
    """Write gpu.json and gpu.md."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {label: asdict(found) for label, found in results.items()}
    files.write_text(folder / "gpu.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    files.write_text(folder / "gpu.md", text(results))


def outcome_of(rows: Mapping[str, Row], num_old: int = 0) -> str:
    """Summarize the outcome of a step, "not run yet" if it has no rows; `num_old` of them are old."""
    if not rows:
        return "not run yet"
    outcomes = [row["outcome"] for row in rows.values()]
    counts = {kind: outcomes.count(kind) for kind in ("passed", "failed", "impossible", "stopped")}
    names = {"impossible": "not possible on this machine"}
    words = [f"{count} {names.get(kind, kind)}" for kind, count in counts.items() if count]
    words += [f"{num_old} old"] if num_old else []
    return f"**FAILED**: {', '.join(words)}" if counts["failed"] else ", ".join(words)


def text(results: Mapping[str, Results]) -> str:
    """Return the text of the whole page."""
    return (
        "\n\n".join(
            [
                "# Tests on a GPU",
                INTRODUCTION,
                *(_machine(label, found) for label, found in results.items()),
                *([] if results else [_overview({}, "not run yet: no GPU")]),
            ]
        )
        + "\n"
    )


def _machine(label: str, results: Results) -> str:
    gpu_name = label.partition(" x ")[2]
    parts = [f"## {label}", f"{results.machine}.", _overview(results.rows, "not run yet", gpu_name)]
    for step in STEPS:
        rows = results.rows.get(step.name, {})
        if rows:
            title = f"### {step.name}: {outcome_of(rows, _num_old(step, rows, gpu_name))}"
            parts += [title, _about(step, rows), _table(step, rows, gpu_name), *_since(step, rows)]
            if left := replan.not_run(step.name, rows, gpu_name):
                parts.append("Not run yet, with today's plan: " + "; ".join(left) + ".")
    return "\n\n".join(parts)


def _num_old(step: Step, rows: Mapping[str, Row], gpu_name: str) -> int:
    return sum(replan.is_old(step.name, row, gpu_name) for row in rows.values())


def _overview(rows: Mapping[str, Mapping[str, Row]], without: str, gpu_name: str = "") -> str:
    lines = ["| step | what it shows | result | minutes |", "| --- | --- | --- | --- |"]
    for step in STEPS:
        found = rows.get(step.name, {})
        minutes = f"{sum(row['seconds'] for row in found.values()) / 60:.1f}" if found else ""
        result = outcome_of(found, _num_old(step, found, gpu_name)) if found else without
        lines.append(f"| `{step.name}` | {step.shows} | {result} | {minutes} |")
    return "\n".join(lines)


def _about(step: Step, rows: Mapping[str, Row]) -> str:
    """Return the part of the page about the commands, the dates and the code for which the rows are valid."""
    commands = sorted({row["command"] for row in rows.values()})
    keys = sorted({row["key"] for row in rows.values()})
    dates = sorted({row["date"] for row in rows.values() if "date" in row})
    held = ", ".join(f"`{key}`" for key in keys)
    measured = f"{', '.join(dates)}: " if dates else ""
    return f"{step.shows[0].upper()}{step.shows[1:]}. {measured}{_code(commands)}; sources {held}."


def _table(step: Step, rows: Mapping[str, Row], gpu_name: str) -> str:
    head = ("case", *step.columns, "result")
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for row in rows.values():
        today = replan.today(step.name, row, gpu_name)
        values = [_planned(value, today.get(column, value)) for column, value in row["values"].items()]
        # A failed case has no values.
        cells = [*values, *([""] * (len(step.columns) - len(values)))][: len(step.columns)]
        mark = {"failed": "**FAILED**", "impossible": "not possible"}.get(row["outcome"], row["outcome"])
        words = "; ".join(filter(None, [row["words"], replan.verdict(step.name, row, gpu_name)]))
        result = f"{mark}: {words}" if words else mark
        name = f"{row['name']} (old)" if replan.is_old(step.name, row, gpu_name) else row["name"]
        lines.append(f"| {' | '.join(_cell(cell) for cell in (name, *cells, result))} |")
    return "\n".join(lines)


def _planned(then: str, today: str) -> str:
    return then if then == today else f"{today} today, {then} then"


def _since(step: Step, rows: Mapping[str, Row]) -> list[str]:
    """Return a paragraph for each change since some of the rows were measured, with the cases it is about."""
    cases: dict[str, list[str]] = {}
    for row in rows.values():
        if words := replan.since(step.name, row):
            cases.setdefault(words, []).append(row["name"])
    lines = [f"- {'; '.join(names)}: {words}." for words, names in cases.items()]
    return ["Changed since, and not measured again:\n\n" + "\n".join(lines)] if lines else []


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("\n", " ")


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
