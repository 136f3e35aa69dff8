"""Standard errors agree with textbook formulas and with repeated random draws."""

import math
import statistics

import numpy as np
import pytest

from nbtrain.base.run_directory.evaluation_files import Estimate
from nbtrain.evaluation.estimates import mean, perplexity_of, ratio


def test_a_mean_has_the_textbook_error():
    values = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    found = mean(values)
    assert found.value == pytest.approx(statistics.mean(values))
    assert found.stderr == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)))
    assert mean([3.0]) == Estimate(3.0, None)
    assert str(found) == "0.4286 ± 0.2" and str(mean([3.0])) == "3"


def test_the_error_of_a_ratio_is_that_of_repeated_draws():
    """The standard error of a ratio equals the deviation over repeated draws of
    windows with unequal lengths.
    """
    chance = np.random.default_rng(5)
    values, errors = [], []
    for _ in range(400):
        sizes = chance.integers(5, 40, 60)
        sums = (3 + chance.normal(0, 0.7, 60)) * sizes
        found = ratio(sums, sizes)
        values.append(found.value)
        errors.append(found.stderr)
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(values), rel=0.15)


def test_the_error_of_a_perplexity_is_taken_to_first_order():
    found = perplexity_of(Estimate(2.0, 0.01))
    assert found.value == pytest.approx(math.exp(2)) and found.stderr == pytest.approx(math.exp(2) * 0.01)
    assert perplexity_of(Estimate(2.0, None)).stderr is None
    assert perplexity_of(Estimate(1e6, None)) is None
    # The perplexity is a float, 1.5 times it is not.
    assert perplexity_of(Estimate(709.5, 0.5)).value == math.exp(709.5)
    assert perplexity_of(Estimate(709.5, 1.5)) is None
