"""The weight decay of a step, counted in tokens as in Megatron's OptimizerParamScheduler.

    constant      weight_decay
    linear        start + (weight_decay - start) r             r = t / train_tokens, at most 1
    cosine        start + (weight_decay - start) (cos(pi (1 - r)) + 1) / 2

t is the number of tokens consumed before the step. Source: megatron/core/optimizer_param_scheduler.py,
get_wd.
"""

import math
from dataclasses import dataclass

from nbtrain.config.schema import RunConfig


@dataclass(frozen=True)
class WeightDecaySchedule:
    """Weight-decay schedule of one run."""

    start: float
    end: float
    style: str
    tokens: int

    @classmethod
    def of(cls, config: RunConfig) -> "WeightDecaySchedule":
        optimizer = config.optimizer
        start = optimizer.start_weight_decay
        if start is None or optimizer.weight_decay_incr_style == "constant":
            start = optimizer.weight_decay
        return cls(start, optimizer.weight_decay, optimizer.weight_decay_incr_style, config.train_tokens)

    def weight_decay(self, consumed_tokens: int) -> float:
        """Return the weight decay of the step that starts after `consumed_tokens`."""
        ratio = min(consumed_tokens / self.tokens, 1.0)
        if self.style == "cosine":
            ratio = 0.5 * (math.cos(math.pi * (1 - ratio)) + 1.0)
        return self.start + (self.end - self.start) * ratio if self.start != self.end else self.end
