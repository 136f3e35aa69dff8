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
    PositiveRatio,
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
    """The unit of an amount: "steps" for `lr_warmup` if lr_warmup_steps is set; None if no unit is set."""
    return next((unit for unit in UNITS if getattr(section, f"{stem}_{unit}") is not None), None)


def other_warmups(schedule: ConfigModel) -> list[str]:
    """Fields that give the warm-up in another unit than tokens: beside lr_warmup_tokens they are refused."""
    fields = (f"lr_warmup_{unit}" for unit in ("samples", "steps", "fraction"))
    return [field for field in fields if getattr(schedule, field) is not None]


class RampupConfig(ConfigModel):
    """Batch ramp-up: from start_batch_size in equal increments to global_batch_size, over ramp_samples."""

    start_batch_size: BatchSize
    """Sequences of the first step."""
    batch_size_increment: BatchSize
    """Sequences that each increase adds; increases come at equal distances."""
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
    """Length of training in sequences, in place of train_tokens."""
    train_steps: PositiveAmount | None = None
    """Length of training in optimizer steps, a ramp-up's included, in place of train_tokens."""
    rampup: RampupConfig | None = None
    """Batch ramp-up; null trains every step at global_batch_size."""
    step_batch_size_schedule: Annotated[str, Field(pattern=STEP_SIZES, max_length=10_000)] | None = None
    """Batch sizes by tokens, as Megatron-LM writes them: "0:16 2.4B:320" trains with 16 sequences until 2.4e9
    tokens and then with 320. The other way to grow the batch is rampup."""
    max_steps: PositiveSteps | None = None
    """Stop after this many steps with all schedules unchanged: a trial of the run. null trains to the end."""
    exit_interval_steps: PositiveSteps | None = None
    """Save and stop at each multiple of this step, after a validation that is due; `resume` goes on."""
    exit_duration_minutes: Annotated[float, Field(gt=0, le=10 * 365 * 1440)] | None = None
    """Save and stop after the step in which the job, restarts included, gets this old; `resume` goes on."""

    @property
    def train_amount(self) -> tuple[str, int]:
        """The run's length, e.g. ("tokens", 2_500_000_000). Raises ConfigError if there is none."""
        unit = given_unit(self, "train")
        if unit is None:
            raise ConfigError(NO_LENGTH.format(where="batch"))
        return unit, getattr(self, f"train_{unit}")


class OptimizerConfig(ConfigModel):
    """AdamW, or Muon with AdamW; only matrices and embeddings decay (GPT-3, appendix B)."""

    type: Literal["AdamW", "Muon"] = "AdamW"
    """AdamW steps all parameters. Muon orthogonalizes the momentum of the blocks' matrices, whole matrices in
    every layout; AdamW steps embeddings, output layer, norms and biases (arXiv:2502.16982)."""
    adam_beta1: FractionBelowOne = 0.9
    """AdamW: decay rate of the first moment."""
    adam_beta2: FractionBelowOne = 0.95
    """AdamW: decay rate of the second moment."""
    adam_eps: PositiveRate = 1e-8
    """AdamW: added to the square root of the second moment."""
    muon_lr: PositiveRate | None = None
    """Muon: peak learning rate of the matrices; null means lr_schedule.lr. Their rate is that of the schedule
    times muon_lr / lr, min_lr included."""
    muon_momentum: FractionBelowOne = 0.95
    """Muon: decay rate of the momentum, a running mean of the gradients."""
    muon_nesterov: bool = True
    """Muon: orthogonalize the mean of momentum and gradient, weighted by muon_momentum, instead of the
    momentum alone."""
    muon_num_ns_steps: Annotated[int, Field(ge=1, le=20)] = 5
    """Muon: Newton-Schulz iterations that orthogonalize a matrix; their time is in docs/optimizers.md."""
    muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = "spectral"
    """Muon: what the update of a matrix is multiplied by, so that one rate fits all shapes: spectral by
    sqrt(max(outputs, inputs)), unit_rms_norm by sqrt(outputs / inputs), shape_scaling, which is DeepSpeed's,
    by sqrt(max(1, outputs / inputs))."""
    muon_extra_scale_factor: PositiveRatio = 0.2
    """Muon: a factor on top of muon_scale_mode. With spectral, 0.2 makes updates as large as AdamW's, so that
    its learning rate and weight decay fit the matrices too (arXiv:2502.16982, section 2.2)."""
    weight_decay: Rate = 0.1
    """Decoupled weight decay at the end of training; biases and norms have none."""
    start_weight_decay: Rate | None = None
    """Weight decay of the first step; null means weight_decay from the first step on."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight decay goes from start_weight_decay to weight_decay over the run's tokens."""
    clip_grad: Ratio = 1.0
    """Gradients with a larger global norm are scaled down to it; 0 does not clip."""


class LrScheduleConfig(ConfigModel):
    """Linear warm-up, then decay from lr to min_lr; each amount is given in tokens, samples or steps."""

    lr: PositiveRate
    """Peak learning rate."""
    min_lr: Rate = 0.0
    """Learning rate at the end of the decay and after it."""
    lr_warmup_init: Rate = 0.0
    """Learning rate at which the warm-up begins."""
    lr_decay_style: Literal["cosine", "linear", "constant", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay. WSD (warm-up, stable, decay) stays at lr until the last lr_wsd_decay_tokens."""
    lr_warmup_tokens: Amount | None = None
    """Length of the warm-up in tokens: the rate rises from lr_warmup_init to lr. There is no warm-up if this,
    lr_warmup_samples, lr_warmup_steps and lr_warmup_fraction are all null."""
    lr_warmup_samples: Amount | None = None
    """Length of the warm-up in sequences."""
    lr_warmup_steps: Amount | None = None
    """Length of the warm-up in optimizer steps, a batch ramp-up's included."""
    lr_warmup_fraction: Fraction | None = None
    """Length of the warm-up as a share of lr_decay_tokens."""
    lr_decay_tokens: PositiveAmount | None = None
    """Tokens from the start of the run to the end of the decay, where the rate is min_lr. The run's length if
    this, lr_decay_samples and lr_decay_steps are all null."""
    lr_decay_samples: PositiveAmount | None = None
    """Sequences from the start of the run to the end of the decay."""
    lr_decay_steps: PositiveAmount | None = None
    """Optimizer steps from the start of the run to the end of the decay, a batch ramp-up's included."""
    lr_wsd_decay_tokens: PositiveAmount | None = None
    """WSD only: length in tokens of the last part, in which the rate falls; WSD needs it in one unit, or as
    lr_wsd_decay_fraction."""
    lr_wsd_decay_samples: PositiveAmount | None = None
    """WSD only: length in sequences of the last part, in which the rate falls."""
    lr_wsd_decay_steps: PositiveAmount | None = None
    """WSD only: length of the last part, in which the rate falls, in steps of global_batch_size."""
    lr_wsd_decay_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """WSD only: length of the last part, in which the rate falls, as a share of lr_decay_tokens."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """WSD only: shape of the last part, in which the rate falls."""
