"""The stop rules of a sweep, on curves written by hand and on a run's metrics."""

import pytest

from nbtrain.config.sections.sweep_section import StopRule
from nbtrain.jobs.sweep.stop_rule import TokenCurve, verdict

MEDIAN = StopRule(rule="median", after_tokens=200)
CURVES = {
    "a": TokenCurve([100, 200, 300], [4.0, 3.0, 2.5]),
    "b": TokenCurve([100, 200, 300], [4.5, 3.5, 3.0]),
    "c": TokenCurve([100, 200], [4.2, 3.4]),
    "d": TokenCurve([100, 200], [5.0, 4.0]),
    "young": TokenCurve([100], [9.0]),
    "new": TokenCurve(),
}


def test_the_median_is_that_of_the_others_at_equal_tokens():
    """The worst of four runs is stopped. A run is compared with what the others had at its own tokens."""
    assert verdict(MEDIAN, CURVES, "d") == (
        "validation loss 4.0000 after 200 tokens is above 3.4000, the median of 3 other runs at this point"
    )
    # c has 3.4; a, b and d had 3.0, 3.5 and 4.0 at 200 tokens: it may continue, though a has 2.5 by now.
    assert verdict(MEDIAN, CURVES, "c") == ""
    assert verdict(MEDIAN, CURVES, "a") == ""


@pytest.mark.parametrize("name", ["young", "new"])
def test_a_run_is_not_judged_before_its_tokens(name):
    assert verdict(MEDIAN, CURVES, name) == ""


def test_too_few_others_judge_nobody():
    """With fewer than three others at its tokens a run is not stopped: b at 300 tokens has only a."""
    assert verdict(MEDIAN, CURVES, "b") == ""


def test_a_bound_needs_no_others():
    rule = StopRule(rule="bound", bound=3.2, after_tokens=200)
    assert "above the bound of 3.2" in verdict(rule, {"c": CURVES["c"]}, "c")
    assert verdict(rule, CURVES, "a") == "" and verdict(rule, CURVES, "young") == ""


def test_a_curve_between_points_has_its_newest_value():
    curve = CURVES["a"]
    assert (curve.at(99), curve.at(100), curve.at(250), curve.at(301)) == (None, 4.0, 3.0, None)
