"""Sections of a run YAML about the course of training: batch, optimizer and lr_schedule."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.base.errors import ConfigError
from nbtrain.config.sections.fields import (
    Amount,
    BatchSize,
    ConfigModel,
    Fraction,
    FractionBelowOne,
    PositiveAmount,
    PositiveRate,
    PositiveRatio,
    PositiveSteps,
    RampSamples,
    Rate,
    Ratio,
)
from nbtrain.config.sections.markers import Binds, SameMathematics, WithoutEffect

# The format of batch.step_batch_size_schedule, e.g. "0:16 2.4B:320 12B:1536".
STEP_SIZES = r"^0:[1-9]\d{0,6}( [1-9]\d{0,14}(\.\d{1,15})?[KMBT]?:[1-9]\d{0,6})*$"

UNITS = ("tokens", "samples", "steps")

NO_LENGTH = "batch.train_tokens is missing: set it, or train_samples or train_steps."


def given_unit(section: ConfigModel, stem: str) -> str | None:
    """Return the unit in which an amount is set. None if the amount is not set.

    For `lr_warmup`, it is "steps" if lr_warmup_steps is set.
    """
    return next((unit for unit in UNITS if getattr(section, f"{stem}_{unit}") is not None), None)


def other_warmups(schedule: ConfigModel) -> list[str]:
    """Return the fields that set the warm-up in samples, in steps or as a fraction.

    Only fields that are set are returned. None of them may be set together with lr_warmup_tokens.
    """
    fields = (f"lr_warmup_{unit}" for unit in ("samples", "steps", "fraction"))
    return [field for field in fields if getattr(schedule, field) is not None]


class RampupConfig(ConfigModel):
    """Batch-size ramp-up: the batch grows in equal increments from start_batch_size to global_batch_size."""

    start_batch_size: BatchSize
    """Batch size of the first step, in sequences."""
    batch_size_increment: BatchSize
    """Number of sequences that each increase adds. The increases are evenly spaced."""
    ramp_samples: RampSamples
    """Number of samples (sequences) over which the batch grows."""


class BatchConfig(ConfigModel):
    """Batch size, and length of training in tokens, samples or steps."""

    micro_batch_size: Annotated[BatchSize, SameMathematics()]
    """Micro-batch size: the number of sequences in one forward pass of one data-parallel rank."""
    global_batch_size: Annotated[BatchSize, Binds()]
    """Global batch size: the number of sequences in one optimizer step, over all ranks and accumulation
    steps.
    """
    train_tokens: PositiveAmount | None = None
    """Length of training in tokens. Set exactly one of train_tokens, train_samples and train_steps."""
    train_samples: PositiveAmount | None = None
    """Length of training in samples (sequences), as an alternative to train_tokens."""
    train_steps: PositiveAmount | None = None
    """Length of training in optimizer steps, including the steps of a ramp-up, as an alternative to
    train_tokens.
    """
    rampup: Annotated[RampupConfig | None, Binds()] = None
    """Batch-size ramp-up. null trains every step at global_batch_size."""
    step_batch_size_schedule: Annotated[
        Annotated[str, Field(pattern=STEP_SIZES, max_length=10_000)] | None, Binds()
    ] = None
    """Schedule of batch sizes by tokens, in Megatron-LM's format, as an alternative to rampup. "0:16
    2.4B:320" trains with 16 sequences per step until 2.4e9 tokens, and with 320 after that. null sets no
    schedule.
    """
    max_steps: Annotated[PositiveSteps | None, WithoutEffect()] = None
    """Number of steps after which the run ends, for a trial. The schedules stay as in the full run. null
    trains to the end.
    """
    exit_interval_steps: Annotated[PositiveSteps | None, WithoutEffect()] = None
    """Stop interval in steps. At every multiple, the job runs any validation that is due, saves a checkpoint
    and stops. `nbtrain resume` continues the run. null sets no interval.
    """
    exit_duration_minutes: Annotated[
        Annotated[float, Field(gt=0, le=10 * 365 * 1440)] | None, WithoutEffect()
    ] = None
    """Minutes after which the job saves a checkpoint and stops at the end of a step. Restarts count towards
    these minutes; pauses and time spent waiting in a queue or after a preemption do not. `nbtrain resume`
    continues the run. null sets no limit.
    """

    @property
    def train_amount(self) -> tuple[str, int]:
        """Training length as (unit, number), e.g. ("tokens", 2_500_000_000).

        Raises ConfigError if none is set.
        """
        unit = given_unit(self, "train")
        if unit is None:
            raise ConfigError(NO_LENGTH)
        return unit, getattr(self, f"train_{unit}")


class OptimizerConfig(ConfigModel):
    """AdamW, or Muon with AdamW. Weight decay applies to matrices and embeddings only (GPT-3, appendix B)."""

    type: Annotated[Literal["AdamW", "Muon"], Binds("optimizer")] = "AdamW"
    """Optimizer. AdamW updates all parameters. Muon updates the blocks' matrices and orthogonalizes the
    momentum of each matrix, always of the complete matrix, even if ranks hold shards of it. With Muon, AdamW
    updates embeddings, output layer, norms and biases (arXiv:2502.16982).
    """
    adam_beta1: FractionBelowOne = 0.9
    """AdamW: decay rate of the first moment."""
    adam_beta2: FractionBelowOne = 0.95
    """AdamW: decay rate of the second moment."""
    adam_eps: PositiveRate = 1e-8
    """AdamW: epsilon that is added to the square root of the second moment."""
    muon_lr: PositiveRate | None = None
    """Muon: peak learning rate of the matrices. At every step, their learning rate is the scheduled learning
    rate times muon_lr / lr, so that min_lr is scaled by this factor too. null means lr_schedule.lr.
    """
    muon_momentum: FractionBelowOne = 0.95
    """Muon: decay rate of the momentum, which is a running mean of the gradients."""
    muon_nesterov: bool = True
    """Muon: whether to orthogonalize the mean of momentum and gradient, weighted by muon_momentum, instead of
    the momentum itself.
    """
    muon_num_ns_steps: Annotated[int, Field(ge=1, le=20)] = 5
    """Muon: number of Newton-Schulz iterations that orthogonalize a matrix. docs/optimizers.md lists their
    cost.
    """
    muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = "spectral"
    """Muon: factor by which a matrix's update is scaled, so that one learning rate suits matrices of all
    shapes. spectral is sqrt(max(outputs, inputs)), unit_rms_norm is sqrt(outputs / inputs), and
    shape_scaling, as in DeepSpeed, is sqrt(max(1, outputs / inputs)).
    """
    muon_extra_scale_factor: PositiveRatio = 0.2
    """Muon: additional factor of the update. With spectral, 0.2 makes updates as large as AdamW's, so that
    AdamW's learning rate and weight decay suit the matrices too (arXiv:2502.16982, section 2.2).
    """
    weight_decay: Rate = 0.1
    """Decoupled weight decay at the end of training. Biases and norms have no weight decay."""
    start_weight_decay: Rate | None = None
    """Weight decay of the first step. null means weight_decay from the first step on."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """Curve along which weight decay changes from start_weight_decay to weight_decay over the run's tokens.
    constant uses weight_decay throughout.
    """
    clip_grad: Ratio = 1.0
    """Maximum global norm of the gradients (gradient clipping). Larger gradients are scaled down to it. 0
    turns clipping off.
    """


class LrScheduleConfig(ConfigModel):
    """Learning-rate schedule: linear warm-up, then decay from lr to min_lr. Each length is set in tokens,
    samples or steps.
    """

    lr: PositiveRate
    """Peak learning rate."""
    min_lr: Rate = 0.0
    """Learning rate at the end of the decay and after it."""
    lr_warmup_init: Rate = 0.0
    """Learning rate at the beginning of the warm-up."""
    lr_decay_style: Literal["cosine", "linear", "constant", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay. WSD (warmup-stable-decay) stays at lr until the last lr_wsd_decay_tokens."""
    lr_warmup_tokens: Amount | None = None
    """Length of the warm-up in tokens, during which the learning rate rises from lr_warmup_init to lr. Set at
    most one of lr_warmup_tokens, lr_warmup_samples, lr_warmup_steps and lr_warmup_fraction. If all are null,
    there is no warm-up.
    """
    lr_warmup_samples: Amount | None = None
    """Length of the warm-up in samples (sequences), as an alternative to lr_warmup_tokens."""
    lr_warmup_steps: Amount | None = None
    """Length of the warm-up in optimizer steps, including the steps of a batch-size ramp-up, as an
    alternative to lr_warmup_tokens.
    """
    lr_warmup_fraction: Fraction | None = None
    """Length of the warm-up as a fraction of the decay's length, as an alternative to lr_warmup_tokens."""
    lr_decay_tokens: PositiveAmount | None = None
    """Number of tokens from the start of the run to the end of the decay, where the learning rate reaches
    min_lr. If lr_decay_tokens, lr_decay_samples and lr_decay_steps are all null, the decay ends with the run.
    """
    lr_decay_samples: PositiveAmount | None = None
    """Number of samples (sequences) from the start of the run to the end of the decay, as an alternative to
    lr_decay_tokens.
    """
    lr_decay_steps: PositiveAmount | None = None
    """Number of optimizer steps from the start of the run to the end of the decay, including the steps of a
    batch-size ramp-up, as an alternative to lr_decay_tokens.
    """
    lr_wsd_decay_tokens: PositiveAmount | None = None
    """WSD only: length of the final decay phase in tokens. WSD needs exactly one of lr_wsd_decay_tokens,
    lr_wsd_decay_samples, lr_wsd_decay_steps and lr_wsd_decay_fraction.
    """
    lr_wsd_decay_samples: PositiveAmount | None = None
    """WSD only: length of the final decay phase in samples (sequences), as an alternative to
    lr_wsd_decay_tokens.
    """
    lr_wsd_decay_steps: PositiveAmount | None = None
    """WSD only: length of the final decay phase in steps of global_batch_size sequences, as an alternative to
    lr_wsd_decay_tokens.
    """
    lr_wsd_decay_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """WSD only: length of the final decay phase as a fraction of lr_decay_tokens, as an alternative to
    lr_wsd_decay_tokens.
    """
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """WSD only: shape of the final decay phase."""
