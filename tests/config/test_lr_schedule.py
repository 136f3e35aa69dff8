"""Learning rates, to the last digit of Megatron-DeepSpeed's logs."""

import pytest

from nbtrain.config.load import load
from nbtrain.config.lr_schedule import LrSchedule


def rate_of_step(schedule: LrSchedule, step: int, tokens_per_step: int) -> float:
    return schedule.learning_rate((step - 1) * tokens_per_step)


def test_golden_rates_of_gpt_125m():
    """The two rates that a run of the upstream file logged: t counts the tokens before the step."""
    config = load("gpt-125m")
    schedule = LrSchedule.of(config)
    assert config.tokens_per_step == 524_288
    assert rate_of_step(schedule, 3920, 524_288) == 4.7586175149639084e-05
    assert rate_of_step(schedule, 3930, 524_288) == 4.652419139289811e-05


@pytest.mark.parametrize(
    "style, middle",
    [("cosine", 0.5 * (1.0 - 0.1) + 0.1), ("linear", 0.5 * (1.0 - 0.1) + 0.1), ("constant", 1.0)],
)
def test_shape(style, middle):
    """0, up to lr at the end of the warm-up, half way down in the middle, min_lr from the decay's end on."""
    schedule = LrSchedule(lr=1.0, min_lr=0.1, decay_style=style, warmup_tokens=100, decay_tokens=1100)
    assert schedule.learning_rate(0) == 0.0
    assert schedule.learning_rate(50) == 0.5
    assert schedule.learning_rate(100) == 1.0
    assert schedule.learning_rate(600) == pytest.approx(middle, abs=1e-12)
    end = 1.0 if style == "constant" else 0.1
    assert schedule.learning_rate(1100) == pytest.approx(end, abs=1e-12)
    assert schedule.learning_rate(5000) == end


def test_without_warm_up_the_first_step_has_the_full_rate():
    schedule = LrSchedule(lr=1.0, min_lr=0.1, decay_style="cosine", warmup_tokens=0, decay_tokens=1000)
    assert schedule.learning_rate(0) == 1.0
