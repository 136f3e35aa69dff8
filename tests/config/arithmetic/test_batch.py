"""Steps, samples and tokens from one another, with and without a ramp-up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.config.arithmetic.batch import BatchSchedule, Rampup


def test_steps_are_rounded_up():
    """The last step is whole and may pass train_tokens."""
    schedule = BatchSchedule(256, 2048, 2_500_000_000)
    assert (schedule.total_steps, schedule.total_samples) == (4769, 4769 * 256)
    assert schedule.tokens_after(4768) < 2_500_000_000 <= schedule.tokens_after(4769)
    assert BatchSchedule(4, 8, 1).total_steps == 1
    assert BatchSchedule(4, 8, 32).total_steps == 1
    assert BatchSchedule(4, 8, 33).total_steps == 2


def test_the_ramp_rises_in_equal_distances():
    """16, 32, 48 at thirds of 300 samples, then the full batch; every step begins with the size of its first sample."""
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
    """95 increments over 5,859,375 samples: 19,802 steps, and 12.0B tokens."""
    schedule = BatchSchedule(1536, 2048, 10**13, Rampup(16, 16, 5_859_375))
    assert schedule.samples_after(19_801) < 5_859_375 <= schedule.samples_after(19_802)
    assert schedule.tokens_after(19_802) == pytest.approx(12.0e9, rel=1e-3)
    assert schedule.size_at(schedule.samples_after(19_802)) == 1536


def test_a_ramp_of_any_length_costs_nothing():
    """Nothing is kept for each of its steps: 2.5e11 of them."""
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


@settings(max_examples=100, deadline=None)
@given(schedules, st.integers(0, 300))
def test_the_three_counts_agree_with_stepping_one_by_one(schedule, step):
    """samples_after, step_at and total_steps against the plain loop."""
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
