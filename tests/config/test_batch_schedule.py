"""Conversion between steps, samples and tokens, with and without a batch ramp-up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.config.batch_schedule import BatchSchedule, Rampup, StepSizes
from tests.fuzzing import num_cases


def test_steps_are_rounded_up():
    """The last step is a complete one, so training may exceed train_tokens."""
    schedule = BatchSchedule(256, 2048, 2_500_000_000)
    assert (schedule.total_steps, schedule.total_samples) == (4769, 4769 * 256)
    assert schedule.tokens_after(4768) < 2_500_000_000 <= schedule.tokens_after(4769)
    assert BatchSchedule(4, 8, 1).total_steps == 1
    assert BatchSchedule(4, 8, 32).total_steps == 1
    assert BatchSchedule(4, 8, 33).total_steps == 2


def test_the_ramp_rises_in_equal_distances():
    """The batch is 16, 32, 48 for a third of 300 samples each, then full; a step
    keeps the size it started with.
    """
    schedule = BatchSchedule(64, 1, 1000, Rampup(16, 16, 300))
    sizes, consumed = [], 0
    for _ in range(12):
        sizes.append(schedule.size_at(consumed))
        consumed += sizes[-1]
    assert sizes == [16] * 7 + [32] * 3 + [48] * 2
    assert [schedule.size_at(at) for at in (0, 99, 100, 199, 200, 299, 300, 10**9)] == [
        16,
        16,
        32,
        32,
        48,
        48,
        64,
        64,
    ]


def test_the_ramp_of_175b():
    """The ramp of 175B has 95 increments over 5,859,375 samples, which are 19,802 steps and 12.0B tokens."""
    schedule = BatchSchedule(1536, 2048, 10**13, Rampup(16, 16, 5_859_375))
    assert schedule.samples_after(19_801) < 5_859_375 <= schedule.samples_after(19_802)
    assert schedule.tokens_after(19_802) == pytest.approx(12.0e9, rel=1e-3)
    assert schedule.size_at(schedule.samples_after(19_802)) == 1536
    for num_steps in (1, 1_000, 19_802, 30_000):
        parts = schedule.sizes(num_steps)
        assert sum(steps for _, steps in parts) == num_steps and all(steps > 0 for _, steps in parts)
        assert sum(size * steps for size, steps in parts) == schedule.samples_after(num_steps)
    assert [size for size, _ in schedule.sizes(30_000)] == [*range(16, 1537, 16)]


def test_a_ramp_of_any_length_costs_nothing():
    """A ramp of 2.5e11 steps is computed without storing anything per step."""
    schedule = BatchSchedule(8, 1, 10**15, Rampup(4, 4, 10**12))
    assert schedule.step_at(10**12) == 25 * 10**10
    assert schedule.samples_after(25 * 10**10 + 1) == 10**12 + 8
    assert schedule.total_steps == 25 * 10**10 + (10**15 - 10**12) // 8


schedules = st.builds(
    lambda unit, start, increments, ramp, seq, tokens: BatchSchedule(
        unit * (start + increments), seq, tokens, Rampup(unit * start, unit, ramp)
    ),
    unit=st.integers(1, 8),
    start=st.integers(1, 4),
    increments=st.integers(1, 6),
    ramp=st.integers(1, 500),
    seq=st.integers(1, 16),
    tokens=st.integers(1, 10_000),
)


@settings(max_examples=num_cases(100), deadline=None)
@given(schedules, st.integers(0, 300))
def test_the_three_counts_agree_with_stepping_one_by_one(schedule, step):
    """samples_after, step_at and total_steps agree with a loop over all steps."""
    consumed, reached = [0], None
    while len(consumed) <= max(step + 1, schedule.total_steps):
        if reached is None and consumed[-1] * schedule.seq_length >= schedule.train_tokens:
            reached = len(consumed) - 1
        consumed.append(consumed[-1] + schedule.size_at(consumed[-1]))
    if reached is None and consumed[-1] * schedule.seq_length >= schedule.train_tokens:
        reached = len(consumed) - 1
    assert schedule.samples_after(step) == consumed[step]
    assert schedule.step_at(consumed[step]) == step
    assert schedule.step_at(consumed[step + 1] - 1) == step
    assert schedule.total_steps == reached


@pytest.mark.parametrize("start", [8, 12])
def test_a_ramp_that_does_not_rise_is_the_full_batch(start):
    """A ramp that does not rise, which the rules refuse, counts as the full batch
    and causes no division by 0.
    """
    schedule = BatchSchedule(8, 1, 100, Rampup(start, 4, 50))
    assert [schedule.size_at(at) for at in (0, 49, 50)] == [8, 8, 8]
    assert [schedule.samples_after(step) for step in (0, 1, 7)] == [0, 8, 56]
    assert schedule.total_steps == 13


def test_a_ramp_of_one_increment():
    """The batch is 4 up to 10 samples, rounded up to whole steps, then 8."""
    schedule = BatchSchedule(8, 2, 100, Rampup(4, 4, 10))
    assert [schedule.samples_after(step) for step in range(6)] == [0, 4, 8, 12, 20, 28]
    assert [schedule.step_at(at) for at in (0, 3, 4, 11, 12, 19, 20)] == [0, 0, 1, 2, 3, 3, 4]
    assert (schedule.total_steps, schedule.total_samples) == (8, 52)


def test_a_batch_never_passes_the_full_one():
    """If the increment does not divide the range, the last size is the full batch:
    5, 8, then 9 rather than 11.
    """
    schedule = BatchSchedule(9, 1, 100, Rampup(5, 3, 30))
    assert [schedule.size_at(at) for at in (0, 29, 30)] == [5, 5, 9]


def test_an_increments_end_that_floating_point_rounds_is_where_the_size_changes():
    """Rounding moves no size change: for ramps up to 200 samples, sizes change
    exactly at an increment's end.
    """
    for samples in range(1, 200, 7):
        for increments in range(1, 13):
            schedule = BatchSchedule(1 + increments, 1, 10**6, Rampup(1, 1, samples))
            consumed = 0
            for step in range(60):
                assert schedule.samples_after(step) == consumed
                consumed += schedule.size_at(consumed)


def test_sizes_by_thresholds_agree_with_stepping_one_by_one():
    """A step that starts before a threshold has the old size; one that starts at it has the new size."""
    sizes = StepSizes(((0, 2), (5, 3), (9, 4), (30, 8)))
    schedule = BatchSchedule(8, 1, 100, sizes)
    assert sizes.ramp_samples == 30
    assert [sizes.size_at(at) for at in (0, 4, 5, 8, 9, 29, 30, 31)] == [2, 2, 3, 3, 4, 4, 8, 8]
    consumed = 0
    for step in range(20):
        assert schedule.samples_after(step) == consumed
        assert schedule.step_at(consumed) == step
        consumed += schedule.size_at(consumed)
