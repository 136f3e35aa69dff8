"""The learning rate of a step, counted in tokens exactly as Megatron-DeepSpeed counts.

    t <= w        lr t / w                                    linear warm-up from 0
    t >  d        min_lr
    between       min_lr + (lr - min_lr) c(r),  r = (t - w) / (d - w)
                  cosine  c = (cos(pi r) + 1) / 2;   linear  c = 1 - r;   constant: lr

t is the number of tokens consumed BEFORE the step (so the first step of a warm-up has rate 0), w the warm-up
tokens, d the decay tokens. Source: megatron/optimizer_param_scheduler.py; the order of the operations is kept,
so that the rates of its logs come out to the last digit.
"""

import math
from dataclasses import dataclass

from nbtrain.config.schema import RunConfig


@dataclass(frozen=True)
class LrSchedule:
    """learning_rate(t) for one run."""

    lr: float
    min_lr: float
    decay_style: str
    warmup_tokens: int
    decay_tokens: int

    @classmethod
    def of(cls, config: RunConfig) -> "LrSchedule":
        schedule = config.lr_schedule
        return cls(
            schedule.lr,
            schedule.min_lr,
            schedule.lr_decay_style,
            schedule.lr_warmup_tokens,
            config.lr_decay_tokens,
        )

    def learning_rate(self, consumed_tokens: int) -> float:
        """The rate of the step that starts after `consumed_tokens`."""
        if self.warmup_tokens > 0 and consumed_tokens <= self.warmup_tokens:
            return self.lr * float(consumed_tokens) / float(self.warmup_tokens)
        if self.decay_style == "constant":
            return self.lr
        if consumed_tokens > self.decay_tokens:
            return self.min_lr
        ratio = float(consumed_tokens - self.warmup_tokens) / float(self.decay_tokens - self.warmup_tokens)
        if self.decay_style == "linear":
            coefficient = 1.0 - ratio
        else:
            coefficient = 0.5 * (math.cos(math.pi * ratio) + 1.0)
        return self.min_lr + coefficient * (self.lr - self.min_lr)
