"""Learning rates agree with those in Megatron-DeepSpeed's logs to the last digit."""

import pytest

from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.load import load


def rate_of_step(schedule: LrSchedule, step: int, tokens_per_step: int) -> float:
    return schedule.learning_rate((step - 1) * tokens_per_step)


def test_golden_rates_of_gpt_125m():
    """The two learning rates in the upstream run's log are reproduced from the tokens before the step."""
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
    """The rate rises from 0 to lr, is halfway to min_lr in the middle of the decay,
    and stays at min_lr afterwards.
    """
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


def wsd(style: str) -> LrSchedule:
    """Return a WSD schedule: warm-up over 100 tokens, constant up to 1000, decay over 100."""
    return LrSchedule(
        1.0, 0.1, "WSD", warmup_tokens=100, decay_tokens=1100, wsd_decay_tokens=100, wsd_decay_style=style
    )


@pytest.mark.parametrize(
    "style, quarter, middle",
    [
        ("linear", 0.75, 0.5),
        ("cosine", 0.5 + 0.5 * 2**-0.5, 0.5),
        ("exponential", 2 * 2**-0.25 - 1, 2**0.5 - 1),
        ("minus_sqrt", 0.5, 1 - 2**-0.5),
    ],
)
def test_warm_up_stable_decay(style, quarter, middle):
    """The rate is lr until 100 tokens before the end, and then decays to min_lr in the given style."""
    schedule = wsd(style)
    assert [schedule.learning_rate(at) for at in (0, 50, 100, 101, 999, 1000)] == [
        0.0,
        0.5,
        1.0,
        1.0,
        1.0,
        1.0,
    ]
    assert schedule.learning_rate(1025) == pytest.approx(0.1 + 0.9 * quarter, abs=1e-12)
    assert schedule.learning_rate(1050) == pytest.approx(0.1 + 0.9 * middle, abs=1e-12)
    assert schedule.learning_rate(1100) == pytest.approx(0.1, abs=1e-12)
    assert schedule.learning_rate(1101) == 0.1


def test_inverse_square_root():
    """The rate is half of lr at four times the warm-up, never below min_lr, and min_lr after the decay."""
    schedule = LrSchedule(1.0, 0.1, "inverse-square-root", warmup_tokens=100, decay_tokens=20_000)
    rates = [schedule.learning_rate(at) for at in (50, 100, 400, 900, 10_000, 15_000, 20_001)]
    assert rates == pytest.approx([0.5, 1.0, 0.5, 1 / 3, 0.1, 0.1, 0.1], abs=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [
        *(LrSchedule(1.0, 0.1, style, 10_000, 100_000) for style in ("cosine", "linear", "constant")),
        LrSchedule(1.0, 0.1, "inverse-square-root", 10_000, 2_000_000),
        *(
            LrSchedule(1.0, 0.1, "WSD", 10_000, 100_000, 50_000, style)
            for style in ("linear", "cosine", "exponential", "minus_sqrt")
        ),
    ],
    ids=lambda schedule: f"{schedule.decay_style}-{schedule.wsd_decay_style}",
)
def test_every_curve_is_continuous(schedule):
    """The rate never jumps between two tokens; the steepest style, 1 - sqrt, changes it
    by sqrt(1 / 50,000) = 0.0045.
    """
    for seam in (0, 10_000, 50_000, 100_000):
        for at in range(max(seam - 3, 0), seam + 3):
            assert abs(schedule.learning_rate(at + 1) - schedule.learning_rate(at)) < 5e-3, at


def test_without_a_stable_part_wsd_is_the_plain_style():
    """If the decay starts at the end of the warm-up, WSD equals the style without WSD bit for bit."""
    for style in ("linear", "cosine"):
        plain = LrSchedule(6e-4, 1e-6, style, 100, 1100)
        whole = LrSchedule(6e-4, 1e-6, "WSD", 100, 1100, 1000, style)
        assert [whole.learning_rate(at) for at in range(1200)] == [
            plain.learning_rate(at) for at in range(1200)
        ]


def test_a_warm_up_starts_at_its_first_rate():
    """The rate rises linearly from warmup_init, not from 0, also for a warm-up of one token."""
    schedule = LrSchedule(1.0, 0.1, "cosine", warmup_tokens=100, decay_tokens=1100, warmup_init=0.2)
    rates = [schedule.learning_rate(at) for at in (0, 25, 50, 100)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 1.0], abs=1e-12)
    one = LrSchedule(1.0, 0.1, "linear", warmup_tokens=1, decay_tokens=11)
    assert [one.learning_rate(at) for at in (0, 1, 6, 11)] == pytest.approx([0.0, 1.0, 0.55, 0.1], abs=1e-12)


def test_inverse_square_root_without_warm_up_and_at_its_end():
    """Without warm-up the rate is sqrt(1 / t); the last token of the decay is on the
    curve, and min_lr follows.
    """
    schedule = LrSchedule(1.0, 0.1, "inverse-square-root", warmup_tokens=0, decay_tokens=25)
    rates = [schedule.learning_rate(at) for at in (0, 1, 4, 25, 26)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.2, 0.1], abs=1e-12)


def test_what_a_run_asks_for_is_its_schedule():
    """Every field of the schedule is taken from the run, including defaults."""
    tiny = LrSchedule.of(load("gpt3-tiny"))
    assert tiny == LrSchedule(2e-3, 1e-4, "cosine", 61_440, 1_228_800)
    assert (tiny.wsd_decay_tokens, tiny.wsd_decay_style, tiny.warmup_init) == (0, "exponential", 0.0)
    changes = {
        "lr_schedule.lr_decay_style": "WSD",
        "lr_schedule.lr_wsd_decay_tokens": 204_800,
        "lr_schedule.lr_wsd_decay_style": "linear",
        "lr_schedule.lr_warmup_init": 1e-5,
    }
    asked = LrSchedule.of(load("gpt3-tiny", changes))
    assert asked == LrSchedule(2e-3, 1e-4, "WSD", 61_440, 1_228_800, 204_800, "linear", 1e-5)


# FLOOR + (PEAK - FLOOR) is not PEAK in floating point, so the last digit shows which branch gave a rate.
PEAK, FLOOR = 0.9666, 0.46108


@pytest.mark.parametrize("style", ["cosine", "linear", "inverse-square-root"])
def test_the_warm_up_ends_at_lr_exactly(style):
    """The last token of the warm-up gets exactly lr, by the warm-up's formula and not by the decay's."""
    schedule = LrSchedule(PEAK, FLOOR, style, warmup_tokens=7, decay_tokens=100)
    assert schedule.learning_rate(7) == PEAK * 7.0 / 7.0


def test_the_stable_part_of_wsd_ends_at_lr_exactly():
    assert FLOOR + (PEAK - FLOOR) != PEAK
    schedule = LrSchedule(PEAK, FLOOR, "WSD", 7, 100, wsd_decay_tokens=30, wsd_decay_style="linear")
    assert [schedule.learning_rate(at) for at in (8, 69, 70)] == [PEAK] * 3
    assert schedule.learning_rate(85) == pytest.approx((PEAK + FLOOR) / 2)
