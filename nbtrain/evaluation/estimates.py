"""Means and ratios with their standard errors.

The standard error of a mean is s / sqrt(n), where s is the standard deviation with n - 1. The tokens in a
window are not independent, so a loss is estimated as the ratio of two sums over windows, r = sum(a) / sum(b).
The standard error of this ratio estimator is sqrt(n / (n - 1) * sum((a - r b)^2)) / sum(b) (Cochran, Sampling
Techniques, 3rd edition, 2.11).
"""

import math
from collections.abc import Sequence

import numpy as np

from nbtrain.base.run_directory.evaluation_files import Estimate
from nbtrain.config.arithmetic.perplexity import perplexity

Values = Sequence[float] | np.ndarray


def mean(values: Values) -> Estimate:
    """Return the mean of `values`, which must not be empty, and its standard error."""
    return ratio(values, np.ones(len(values)))


def ratio(tops: Values, bottoms: Values) -> Estimate:
    """Return sum(tops) / sum(bottoms) and its standard error, which is None for a single pair.

    The inputs must not be empty. If all bottoms are 1, the result is the mean.
    """
    a, b = np.asarray(tops, np.float64), np.asarray(bottoms, np.float64)
    value = float(a.sum() / b.sum())
    if (n := len(a)) < 2:
        return Estimate(value, None)
    stderr = math.sqrt(n / (n - 1) * float(((a - value * b) ** 2).sum())) / float(b.sum())
    return Estimate(value, stderr)


def perplexity_of(loss: Estimate) -> Estimate | None:
    """Return the perplexity for a mean loss, with its standard error to first order.

    The result is None if the perplexity or its standard error is too large for a float.
    """
    if (value := perplexity(loss.value)) is None:
        return None
    stderr = None if loss.stderr is None else value * loss.stderr
    return None if stderr is not None and not math.isfinite(stderr) else Estimate(value, stderr)
