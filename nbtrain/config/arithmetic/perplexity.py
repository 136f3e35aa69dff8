"""Perplexity: the exponential of a mean loss per token."""

import math


def perplexity(loss: float | None) -> float | None:
    """Return exp(loss); None if the loss is unknown or not finite, or if the result is too large for a float.

    Only a loss over tokens has a perplexity: see RunConfig.has_perplexity.
    """
    if loss is None or not math.isfinite(loss):
        return None
    try:
        return math.exp(loss)
    except OverflowError:
        return None
