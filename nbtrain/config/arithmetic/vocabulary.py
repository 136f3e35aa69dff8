"""Vocabulary size that suits a text and a model, and the number of tokens that the text has with it.

largest_seen()    95 % of the entries occur at least 100 times in the text: rarer entries are not learned
                  (Gowda and May, arXiv:2004.02334, section 4). For sizes at which the sample is too short
                  to count occurrences, they are assumed to fall as 1 / size^2, as they did between 1,024
                  and 4,096 entries in every text that was measured (docs/choosing.md).
suited_to()       Tao et al., arXiv:2407.13623: embeddings grow as the 0.83rd power of the other
                  parameters; 216,000 entries suit 70B parameters of width 8,192.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_OCCURRENCES = 100
# Minimum number of occurrences in the sample for a vocabulary to be used: smaller counts are not reliable.
COUNTED = 20
ROUNDED_TO = 128
"""Multiple to which sizes are rounded: Megatron's make_vocab_size_divisible_by, so that no padding is
needed.
"""
SMALLEST, LARGEST = 512, 65_408  # A .bin file has 16-bit ids for up to 65,499 entries.
_REFERENCE = (70e9, 216_000 * 8192)
_POWER = 0.83
# Beyond the measured sizes, each doubling of the vocabulary increases the bytes per token by this factor
# times the increase from the previous doubling.
_GAIN_FACTOR = 0.85


@dataclass(frozen=True)
class VocabularyFit:
    """Statistics of one vocabulary on a sample of a text."""

    size: int
    bytes_per_token: float
    occurrences: int
    """Frequency of rare entries: 95 % of the merged entries occur at least this many times in the sample."""
    sample_tokens: int


def largest_seen(fits: Sequence[VocabularyFit], num_bytes: float) -> int:
    """Return the size of the largest vocabulary that a text of `num_bytes` supports.

    At this size, 95 % of the entries occur at least 100 times in the text.
    """
    counted = [fit for fit in fits if fit.occurrences >= COUNTED] or list(fits[:1])
    last = counted[-1]
    in_text = last.occurrences * (num_bytes / last.bytes_per_token) / last.sample_tokens
    return rounded(last.size * math.sqrt(in_text / LEAST_OCCURRENCES))


def suited_to(other_parameters: float, hidden_size: int) -> int:
    """Return the vocabulary size that suits a model with this number of parameters outside the embeddings."""
    reference, embedding = _REFERENCE
    return rounded(embedding * (other_parameters / reference) ** _POWER / hidden_size)


def bytes_per_token(fits: Sequence[VocabularyFit], size: int) -> float:
    """Return the bytes of text per token for a vocabulary size.

    The number is interpolated between the measured sizes, and extrapolated beyond them.
    """
    points = [(math.log2(fit.size), fit.bytes_per_token) for fit in fits]
    at = math.log2(size)
    if len(points) == 1:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    (left, low), (right, high) = points[-2:]
    found, gain, place = high, (high - low) / (right - left), right
    while place < at:
        step = min(1.0, at - place)
        gain *= _GAIN_FACTOR
        found += step * gain
        place += step
    return found


def rounded(size: float) -> int:
    """Return the nearest multiple of ROUNDED_TO, between SMALLEST and LARGEST."""
    return int(min(max(ROUNDED_TO * round(size / ROUNDED_TO), SMALLEST), LARGEST))
