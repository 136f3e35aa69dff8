"""Findings: their order, their text, and the one place that raises them."""

from dataclasses import replace

import pytest

from nbtrain.base.errors import ConfigError, SubmitError, refuse
from nbtrain.base.findings import FATAL, Cost, Finding, by_cost


def test_the_dearest_comes_first():
    """Findings that prevent a run come first, then GPU hours, bytes, and findings without a number.

    Among equals, errors come before notes.
    """
    costs = [
        Cost(True, num_bytes=2),
        Cost(True),
        Cost(gpu_hours=20, hours=10),
        Cost(hours=10),
        Cost(num_bytes=2**40),
        Cost(words="a worse model"),
        Cost(),
    ]
    made = [Finding("warning", f"rule {at}", "", "", "", "", cost) for at, cost in enumerate(costs)]
    made[1] = replace(made[1], level="error")
    assert [one.rule for one in by_cost(reversed(made))] == [f"rule {at}" for at in (1, 0, 2, 3, 4, 5, 6)]


def test_costs_are_read_as_amounts():
    assert Cost().text == ""
    assert Cost(True).text == "cannot run"
    assert Cost(True, num_bytes=341 * 2**30).text == "cannot run: 341.0 GiB too little"
    assert Cost(hours=1008, gpu_hours=16128).text == "costs 42 d, 16,128 GPU hours"
    assert Cost(num_bytes=2**40, words="a full disk").text == "costs 1.0 TiB, a full disk"


def test_errors_are_raised_and_others_are_not():
    """refuse raises one error with every finding of level error, and the error carries them."""
    note = Finding("note", "rule", "a.b", "x.yaml:1", "a.b = 1 is worth knowing.")
    wrong = Finding("error", "rule", "a.c", "x.yaml:2", "a.c = 2 must be 3.", "Set a.c: 3.", FATAL)
    bare = Finding("error", "rule", "", "", "there is no disk.", cost=FATAL)
    refuse([note], ConfigError)
    with pytest.raises(ConfigError) as caught:
        refuse([note, wrong, bare], ConfigError)
    assert str(caught.value) == "x.yaml:2: a.c = 2 must be 3. Set a.c: 3.\nthere is no disk."
    assert caught.value.findings == [wrong, bare]
    with pytest.raises(SubmitError) as caught:
        refuse([bare], SubmitError, "cannot start:", "Nothing was written.")
    assert str(caught.value) == "cannot start:\n  there is no disk.\nNothing was written."


def test_a_finding_as_text_and_json():
    """The lines of `nbtrain check`, and the JSON."""
    lack = Finding("error", "rule", "a.b", "x.yaml:1", "needs 2 GPUs.", "Use 2.", FATAL, "resource")
    assert lack.lines() == ["error, cannot run: x.yaml:1: a.b", "  needs 2 GPUs.", "  Use 2."]
    made = lack.to_dict()
    assert list(made) == ["level", "rule", "key", "place", "message", "fix", "cost", "lacks"]
    assert made["lacks"] == "resource" and made["cost"]["text"] == "cannot run"
