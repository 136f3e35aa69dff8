"""Sections of a run YAML about the course of training: batch, optimizer, lr_schedule."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.base.errors import ConfigError
from nbtrain.config.fields import (
    Amount,
    BatchSize,
    ConfigModel,
    Fraction,
    FractionBelowOne,
    PositiveAmount,
    PositiveRate,
    PositiveSteps,
    RampSamples,
    Rate,
    Ratio,
)

# "0:16 2.4B:320 12B:1536"
STEP_SIZES = r"^0:[1-9]\d{0,6}( [1-9]\d{0,14}(\.\d{1,15})?[KMBT]?:[1-9]\d{0,6})*$"

UNITS = ("tokens", "samples", "steps")

NO_LENGTH = "{where}: batch.train_tokens is missing: set it, or train_samples or train_steps."


def given_unit(section: ConfigModel, stem: str) -> str | None:
    """The unit that an amount is given in: of `lr_warmup` "steps", where lr_warmup_steps is set. None where none is."""
    return next((unit for unit in UNITS if getattr(section, f"{stem}_{unit}") is not None), None)


class RampupConfig(ConfigModel):
    """Batch ramp-up: start at start_batch_size, add increment until global_batch_size, over ramp_samples."""

    start_batch_size: BatchSize
    """Sequences of the first step."""
    batch_size_increment: BatchSize
    """Added at equal distances."""
    ramp_samples: RampSamples
    """Samples over which the batch grows."""


class BatchConfig(ConfigModel):
    """How many sequences make one optimizer step, and how many tokens, samples or steps make the run."""

    micro_batch_size: BatchSize
    """Sequences in one forward pass of one data-parallel rank."""
    global_batch_size: BatchSize
    """Sequences in one optimizer step, over all ranks and accumulation steps."""
    train_tokens: PositiveAmount | None = None
    """Tokens the run trains on. Exactly one of train_tokens, train_samples and train_steps is set."""
    train_samples: PositiveAmount | None = None
    """The same in sequences."""
    train_steps: PositiveAmount | None = None
    """The same in steps, those of a ramp-up counted; max_steps ends a run before that."""
    rampup: RampupConfig | None = None
    """Batch ramp-up; null trains every step at global_batch_size."""
    step_batch_size_schedule: Annotated[str, Field(pattern=STEP_SIZES, max_length=10_000)] | None = None
    """Each size and the tokens from which on it holds, as Megatron-LM writes it; the other way to grow the batch."""
    max_steps: PositiveSteps | None = None
    """Stop after this many steps, schedules unchanged: a trial of the same run."""
    exit_interval_steps: PositiveSteps | None = None
    """A job validates where that is due, saves and stops at each step that this divides; `resume` goes on."""
    exit_duration_minutes: Annotated[float, Field(gt=0, le=10 * 365 * 1440)] | None = None
    """The same at the end of a step once the job is this old, its restarts counted; `resume` goes on."""

    @property
    def train_amount(self) -> tuple[str, int]:
        """The unit of the run's length and its number, e.g. ("tokens", 2_500_000_000); ConfigError without one."""
        unit = given_unit(self, "train")
        if unit is None:
            raise ConfigError(NO_LENGTH.format(where="batch"))
        return unit, getattr(self, f"train_{unit}")


class OptimizerConfig(ConfigModel):
    """AdamW, decay on matrices only (GPT-3, appendix B)."""

    adam_beta1: FractionBelowOne = 0.9
    """Decay of the first moment."""
    adam_beta2: FractionBelowOne = 0.95
    """Decay of the second moment."""
    adam_eps: PositiveRate = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Rate = 0.1
    """Decoupled weight decay at the end of training; biases and LayerNorm have none."""
    start_weight_decay: Rate | None = None
    """Weight decay of the first step; null means weight_decay from the first step on."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How it goes from start_weight_decay to weight_decay, over the run's tokens."""
    clip_grad: Ratio = 1.0
    """Largest global gradient norm; 0 does not clip."""


class LrScheduleConfig(ConfigModel):
    """Linear warm-up, then decay from lr to min_lr, counted in tokens; formulas in config/arithmetic/lr_schedule.py.

    Each amount may be given in samples or steps instead; in one of the three.
    """

    lr: PositiveRate
    """Peak learning rate."""
    min_lr: Rate = 0.0
    """Learning rate at the end of the decay and after it."""
    lr_warmup_init: Rate = 0.0
    """Learning rate at which the warm-up begins."""
    lr_decay_style: Literal["cosine", "linear", "constant", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay. WSD (warm-up, stable, decay) stays at lr until lr_wsd_decay_tokens before its end."""
    lr_warmup_tokens: Amount | None = None
    """Tokens over which the rate rises from 0; no warm-up where this, lr_warmup_samples and lr_warmup_steps are null."""
    lr_warmup_samples: Amount | None = None
    """The same in sequences."""
    lr_warmup_steps: Amount | None = None
    """The same in steps, those of a ramp-up counted."""
    lr_warmup_fraction: Fraction | None = None
    """The same as a share of the decay's tokens."""
    lr_decay_tokens: PositiveAmount | None = None
    """Tokens, from the start, at which min_lr is reached; the run's length where this and the next two are null."""
    lr_decay_samples: PositiveAmount | None = None
    """The same in sequences."""
    lr_decay_steps: PositiveAmount | None = None
    """The same in steps, those of a ramp-up counted."""
    lr_wsd_decay_tokens: PositiveAmount | None = None
    """WSD only, where this or one of the next two must be set: tokens of the last part, in which the rate falls."""
    lr_wsd_decay_samples: PositiveAmount | None = None
    """The same in sequences."""
    lr_wsd_decay_steps: PositiveAmount | None = None
    """The same in steps of global_batch_size."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """WSD only: shape of its last part."""
