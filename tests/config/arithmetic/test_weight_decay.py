"""The weight decay of each step."""

import pytest

from nbtrain.config.arithmetic.weight_decay import WeightDecaySchedule
from nbtrain.config.load import load


def test_without_a_start_it_is_the_same_everywhere():
    schedule = WeightDecaySchedule.of(load("gpt-tiny"))
    assert {schedule.weight_decay(tokens) for tokens in (0, 1, 10**12)} == {0.1}


@pytest.mark.parametrize(("style", "middle"), [("linear", 0.06), ("cosine", 0.06), ("constant", 0.1)])
def test_it_rises_from_start_to_end(style, middle):
    start = 0.1 if style == "constant" else 0.02
    schedule = WeightDecaySchedule(start, 0.1, style, 1000)
    assert schedule.weight_decay(0) == pytest.approx(start)
    assert schedule.weight_decay(500) == pytest.approx(middle)
    assert schedule.weight_decay(1000) == schedule.weight_decay(5000) == pytest.approx(0.1)


def test_a_quarter_of_the_way_cosine_lags_behind_linear():
    linear = WeightDecaySchedule(0.0, 1.0, "linear", 1000).weight_decay(250)
    cosine = WeightDecaySchedule(0.0, 1.0, "cosine", 1000).weight_decay(250)
    assert (linear, cosine) == (0.25, pytest.approx(0.5 - 0.5 * 2**-0.5))
