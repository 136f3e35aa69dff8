"""A slow rank is found by comparison with ranks that do the same work, and reported after three times in a
row.
"""

import pytest

from nbtrain.train.figures.stragglers import Spread

HOSTS = ["one", "one", "two", "two"]


def test_a_slow_rank_is_compared_with_its_stage():
    """The ranks of stage 1, which has more work than stage 0, are not reported as slow; rank 1, which is
    slower than its own stage, is.
    """
    spread = Spread.of([1.0, 1.5, 3.0, 3.3], [0, 0, 1, 1], HOSTS)
    assert spread.slowdowns == pytest.approx((0.0, 0.5, 0.0, 0.1))
    assert (spread.slowest_rank, spread.slowdown) == (1, 0.5)
    assert spread.median_seconds == pytest.approx(2.25)
    assert str(spread) == "rank 1 on one needs 1.5 s of compute, 50% above the median of its pipeline stage"


def test_the_median_of_many_is_not_moved_by_the_slow_one():
    spread = Spread.of([1.0, 1.0, 1.1, 2.0], [0, 0, 0, 0], HOSTS)
    assert spread.slowdowns == pytest.approx((0.0, 0.0, 0.1, 1.0))
    assert spread.slowest_rank == 3


def test_a_step_that_measured_nothing_has_no_straggler():
    assert Spread.of([0.0, 0.0], [0, 0], HOSTS[:2]).slowdowns == (0.0, 0.0)
