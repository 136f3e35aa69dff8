"""Bound on the difference of two fp32 results of the same additions in another sharding, kernel or CPU.

A sum of n terms is off by at most 3 sqrt(n) u of the sum of their magnitudes, for u = 2**-24: the bound of
Higham and Mary (A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019,
theorem 2.4) for lambda = 3. A rounding error spread evenly over +-u has a deviation of u / sqrt(3), so the
bound is five of its deviations. Sums of sums have the error of one sum of all their lengths. Both results
have errors, which doubles the bound.
"""

from math import sqrt

from tests.parallel.small import FFN, HEADS, VOCAB, B, H, S

UNIT_ROUNDOFF = 2**-24


def rounding(terms: float) -> float:
    """Return the largest difference after consecutive sums with `terms` terms, relative to the largest
    number."""
    return 2 * 3 * sqrt(terms) * UNIT_ROUNDOFF


def forward_terms(num_layers: int = 2, hidden: int = H, ffn: int = FFN, tokens: int = S) -> int:
    """Return the number of terms of the consecutive sums in one loss of the small GPT."""
    norm = 2 * hidden  # mean, then variance
    attention = hidden + hidden // HEADS + 2 * tokens + hidden  # qkv, scores, softmax and values, dense
    return num_layers * (2 * norm + attention + hidden + ffn) + norm + hidden + VOCAB


def training_terms(steps: int = 1, num_layers: int = 2) -> int:
    """Return the terms for a gradient in each step: forward, back through the transposed products, then over
    the tokens."""
    return steps * (2 * forward_terms(num_layers) + B * S)


# The sums of one product or softmax; the longest is over the vocabulary.
ONE_SUM = rounding(VOCAB)
FORWARD = rounding(forward_terms())
GRADIENT = rounding(training_terms())
