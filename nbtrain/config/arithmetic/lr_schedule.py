"""The learning rate of a step, counted in tokens exactly as in Megatron-DeepSpeed.

    t <= w        i + (lr - i) t / w                          linear warm-up from i, usually 0
    constant      lr
    t >  d        min_lr
    between       inverse-square-root  max(min_lr, lr sqrt(w) / sqrt(t))
                  else                 min_lr + (lr - min_lr) c
                      linear   c = 1 - r,                r = (t - w) / (d - w)
                      cosine   c = (cos(pi r) + 1) / 2
                      WSD      c = 1 up to d - z; then with r = (t - (d - z)) / z
                               linear, cosine as above
                               exponential  c = 2 * 0.5^r - 1
                               minus_sqrt   c = 1 - sqrt(r)

t is the number of tokens consumed BEFORE the step (so the first step of a warm-up has rate 0), w the warm-up
tokens, d the decay tokens, z the tokens of WSD's last part. Every curve is continuous, except
inverse-square-root, which drops to min_lr after d. Sources: megatron/optimizer_param_scheduler.py of
Megatron-DeepSpeed, and for the last two styles megatron/core/optimizer_param_scheduler.py of Megatron-LM; the
order of the operations is kept, so that the learning rates match their logs to the last digit. Papers:
arXiv:1706.03762, section 5.3 (inverse square root), arXiv:2404.06395 (WSD), arXiv:2405.18392 (its 1 - sqrt).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from nbtrain.config.schema import RunConfig

# Factor that falls from 1 at ratio 0 (start of the decay) to 0 at ratio 1 (its end).
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda ratio: 1.0 - ratio,
    "cosine": lambda ratio: 0.5 * (math.cos(math.pi * ratio) + 1.0),
    "exponential": lambda ratio: 2.0 * math.pow(0.5, ratio) - 1.0,
    "minus_sqrt": lambda ratio: 1.0 - math.sqrt(ratio),
}


@dataclass(frozen=True)
class LrSchedule:
    """Learning-rate schedule of one run."""

    lr: float
    min_lr: float
    decay_style: str
    warmup_tokens: int
    decay_tokens: int
    wsd_decay_tokens: int = 0
    wsd_decay_style: str = "exponential"
    warmup_init: float = 0.0

    @classmethod
    def of(cls, config: RunConfig) -> "LrSchedule":
        schedule = config.lr_schedule
        return cls(
            schedule.lr,
            schedule.min_lr,
            schedule.lr_decay_style,
            config.lr_warmup_tokens,
            config.lr_decay_tokens,
            config.lr_wsd_decay_tokens or 0,
            schedule.lr_wsd_decay_style,
            schedule.lr_warmup_init,
        )

    def learning_rate(self, consumed_tokens: int) -> float:
        """Return the learning rate of the step that starts after `consumed_tokens`."""
        if self.warmup_tokens > 0 and consumed_tokens <= self.warmup_tokens:
            rise = (self.lr - self.warmup_init) * float(consumed_tokens) / float(self.warmup_tokens)
            return self.warmup_init + rise
        if self.decay_style == "constant":
            return self.lr
        if consumed_tokens > self.decay_tokens:
            return self.min_lr
        if self.decay_style == "inverse-square-root":
            rate = self.lr * max(self.warmup_tokens, 1) ** 0.5 / (max(consumed_tokens, 1) ** 0.5)
            return max(self.min_lr, rate)
        style, begin = self.decay_style, self.warmup_tokens
        if style == "WSD":
            style, begin = self.wsd_decay_style, self.decay_tokens - self.wsd_decay_tokens
            if consumed_tokens <= begin:
                return self.lr
        ratio = float(consumed_tokens - begin) / float(self.decay_tokens - begin)
        return self.min_lr + SHAPES[style](ratio) * (self.lr - self.min_lr)
