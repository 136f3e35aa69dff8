"""Recommended length of a warm-up, used by the rules, the plan, the advice and the choices for a text."""

from nbtrain.config.schema import RunConfig

# Adam's second moment averages over about 1 / (1 - beta2) = 20 to 1,000 steps; a shorter warm-up ends before
# the moments are known. GPT-3 warms up over 375M tokens, about 0.1 % of its tokens
# (arXiv:2005.14165, appendix B); short runs need more.
LEAST_WARMUP_STEPS = 100
USUAL_WARMUP_FRACTION = 0.01
# A run that is too short for LEAST_WARMUP_STEPS still trains at its learning rate for most of its steps.
MOST_WARMUP_FRACTION = 0.1


def warmup_tokens(train_tokens: int, tokens_per_step: int, fraction: float = USUAL_WARMUP_FRACTION) -> int:
    """Return the recommended length of a warm-up in tokens.

    The length is `fraction` of the run and at least 100 steps, but at most a tenth of the run.
    """
    enough = max(fraction * train_tokens, LEAST_WARMUP_STEPS * tokens_per_step)
    return int(min(enough, MOST_WARMUP_FRACTION * train_tokens))


def usual_warmup_tokens(config: RunConfig) -> int:
    """Return the recommended length of a run's warm-up in tokens."""
    return warmup_tokens(config.train_tokens, config.tokens_per_step)
