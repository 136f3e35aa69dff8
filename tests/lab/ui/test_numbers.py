"""Numbers on axes are formatted in the same way in the live view and the static picture, as listed in
numbers.json.
"""

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.usage import FIGURES
from nbtrain.lab.ui import script
from nbtrain.monitor.job.usage_charts import axis_label, time_ticks
from nbtrain.monitor.metrics.chart_data import FORMS, byte_ticks, smoothed, ticks

UI = script.FOLDER
CASES: dict[str, list[list[Any]]] = json.loads(Path(__file__).with_name("numbers.json").read_text())

CHECK = """
import { readFileSync } from "node:fs";
import * as numbers from "./numbers.mjs";
const cases = JSON.parse(readFileSync(process.argv[2]));
const said = {
  labels: cases.labels.map(([form, value, step]) => numbers.tickLabel(form, value, step)),
  ticks: cases.ticks.map(([low, high, most, least, integer]) =>
    numbers.ticks(low, high, most, least, integer)),
  byte_ticks: cases.byte_ticks.map(([top]) => numbers.byteTicks(0, top)),
  smoothed: cases.smoothed.map(([values, weight]) =>
    numbers.smoothed(values.map((value) => value ?? NaN), weight)),
};
console.log(JSON.stringify(said));
"""


def expected(part: str) -> list[Any]:
    return [case[-1] for case in CASES[part]]


def in_python(form: str, value: float, step: float) -> str:
    if form in FORMS:
        return FORMS[form](value, step)
    if form == "seconds":
        last = step * 5
        return dict((at, label) for at, label in time_ticks(max(last, value), 5)).get(value, "")
    figure = next(name for name, figure in FIGURES.items() if figure.unit == form)
    return axis_label(figure, value, step).replace(".0 ", " ")


def test_python_says_it():
    labels = [in_python(form, value, step) for form, value, step, _ in CASES["labels"] if form != "seconds"]
    assert labels == [words for form, _, _, words in CASES["labels"] if form != "seconds"]
    assert [ticks(*case[:5]) for case in CASES["ticks"]] == expected("ticks")
    assert [byte_ticks(top) for top, _ in CASES["byte_ticks"]] == expected("byte_ticks")
    assert [smoothed(values, weight) for values, weight, _ in CASES["smoothed"]] == expected("smoothed")
    times = [[at, label] for form, at, _, label in CASES["labels"] if form == "seconds"]
    assert times[:5] == time_ticks(8, 5)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_browser_says_it(tmp_path):
    (tmp_path / "numbers.mjs").write_text(
        (UI / "charts" / "numbers.js").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "check.mjs").write_text(CHECK, encoding="utf-8")
    command = ["node", str(tmp_path / "check.mjs"), str(Path(__file__).with_name("numbers.json"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["labels"] == expected("labels")
    assert said["ticks"] == expected("ticks")
    assert said["byte_ticks"] == expected("byte_ticks")
    for found, wanted in zip(said["smoothed"], expected("smoothed"), strict=True):
        assert found == pytest.approx([math.nan if one is None else one for one in wanted], nan_ok=True) or [
            one for one in found if one is not None
        ] == pytest.approx([one for one in wanted if one is not None])


def test_an_axis_has_three_labels_at_least():
    """Every axis has at least three labels, because a single label such as 0 shows no scale."""
    for case in CASES["ticks"]:
        low, high, _, least, integer, found = case
        assert len(found) >= least or (integer and high - low < least), case
        assert not integer or all(value == round(value) for value in found)
