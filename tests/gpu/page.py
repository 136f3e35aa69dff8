"""The results of all cases by kind of machine, in docs/evidence/gpu.json, and the page gpu.md."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from tests.gpu.steps import STEPS, Step
from tests.parity.sources import stamp

Row = dict[str, Any]
"""{name, outcome, words, values, seconds, key, command}."""


INTRODUCTION = """\
`make gpu` (tests/gpu/) tests on the GPUs of a machine what cannot be tested on a CPU. It writes this page,
which is not edited by hand, after each result, and continues where it was stopped. `python -m tests.gpu
--list` lists the steps, and `--only memory --minutes 9` runs a part. Without a network, `python3 -m
tests.gpu --wheels DIR` installs missing packages from a folder of wheels, for these runs only."""


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


def outcome_of(rows: Mapping[str, Row]) -> str:
    """Summarize the outcome of a step, "not run yet" if it has no rows."""
    if not rows:
        return "not run yet"
    outcomes = [row["outcome"] for row in rows.values()]
    counts = {kind: outcomes.count(kind) for kind in ("passed", "failed", "impossible", "stopped")}
    names = {"impossible": "not possible on this machine"}
    words = [f"{count} {names.get(kind, kind)}" for kind, count in counts.items() if count]
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
    parts = [f"## {label}", f"{results.machine}.", _overview(results.rows, "not run yet")]
    for step in STEPS:
        rows = results.rows.get(step.name, {})
        if rows:
            parts += [f"### {step.name}: {outcome_of(rows)}", _about(step, rows), _table(step, rows)]
    return "\n\n".join(parts)


def _overview(rows: Mapping[str, Mapping[str, Row]], without: str) -> str:
    lines = ["| step | what it shows | result | minutes |", "| --- | --- | --- | --- |"]
    for step in STEPS:
        found = rows.get(step.name, {})
        minutes = f"{sum(row['seconds'] for row in found.values()) / 60:.1f}" if found else ""
        result = outcome_of(found) if found else without
        lines.append(f"| `{step.name}` | {step.shows} | {result} | {minutes} |")
    return "\n".join(lines)


def _about(step: Step, rows: Mapping[str, Row]) -> str:
    """Return the part of the page about the commands and the code for which the rows are valid."""
    commands = sorted({row["command"] for row in rows.values()})
    keys = sorted({row["key"] for row in rows.values()})
    held = ", ".join(f"`{key}`" for key in keys)
    return f"{step.shows[0].upper()}{step.shows[1:]}. {_code(commands)}; sources {held}."


def _table(step: Step, rows: Mapping[str, Row]) -> str:
    head = ("case", *step.columns, "result")
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for row in rows.values():
        values = list(row["values"].values())
        # A failed case has no values.
        cells = [*values, *([""] * (len(step.columns) - len(values)))][: len(step.columns)]
        mark = {"failed": "**FAILED**", "impossible": "not possible"}.get(row["outcome"], row["outcome"])
        result = f"{mark}: {row['words']}" if row["words"] else mark
        lines.append(f"| {' | '.join(_cell(cell) for cell in (row['name'], *cells, result))} |")
    return "\n".join(lines)


def _cell(words: str) -> str:
    return words.replace("|", "/").replace("\n", " ")


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
