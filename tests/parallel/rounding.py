"""Bound on the difference between two fp32 results of the same sum with another sharding, kernel or CPU.

A sum of n terms is off by at most 3 sqrt(n) u of the sum of their magnitudes, for u = 2**-24: the bound of
Higham and Mary (A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019,
theorem 2.4) for lambda = 3. A rounding error that is uniform in [-u, u] has a standard deviation of u /
sqrt(3), so the bound is five standard deviations. Nested sums have the error of a single sum with as many
terms in total. Since both results have errors, the bound is doubled.
"""

from math import sqrt

from tests.parallel.small import FFN, HEADS, VOCAB, B, H, S

UNIT_ROUNDOFF = 2**-24


def rounding(terms: float) -> float:
    """Return the largest allowed difference, relative to the largest number, after consecutive sums of
    `terms` terms.
    """
    return 2 * 3 * sqrt(terms) * UNIT_ROUNDOFF


def forward_terms(num_layers: int = 2, hidden: int = H, ffn: int = FFN, tokens: int = S) -> int:
    """Return how many terms the consecutive sums of one loss of the small GPT have."""
    norm = 2 * hidden  # mean, then variance
    attention = hidden + hidden // HEADS + 2 * tokens + hidden  # qkv, scores, softmax and values, dense
    return num_layers * (2 * norm + attention + hidden + ffn) + norm + hidden + VOCAB


def training_terms(steps: int = 1, num_layers: int = 2) -> int:
    """Return how many terms add up to a gradient, for all steps: in the forward pass, in the backward pass,
    and over the tokens.
    """
    return steps * (2 * forward_terms(num_layers) + B * S)


# The sums of one product or softmax; the longest is over the vocabulary.
ONE_SUM = rounding(VOCAB)
FORWARD = rounding(forward_terms())
GRADIENT = rounding(training_terms())
