"""Sections of a run YAML about watching: checkpoint, evaluation, stability, alerts, logging, profile."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import ConfigModel, Fraction, PositiveSteps, Steps


class CheckpointConfig(ConfigModel):
    """When checkpoints are written and how many stay."""

    save_interval_steps: PositiveSteps = 1000
    """Steps between checkpoints; one is always written at the end and on a stop."""
    keep_last: PositiveSteps = 2
    """Newest checkpoints that stay."""
    keep_every_steps: PositiveSteps | None = None
    """Checkpoints at multiples of this stay for ever."""
    keep_best: bool = False
    """The checkpoint of the lowest validation loss stays too; validations without one at their step do not count."""
    async_save: bool = False
    """Copy the state to host memory and write it while training goes on; needs host memory for one more copy."""


class EvaluationConfig(ConfigModel):
    """Validation while training, and test at its end."""

    eval_interval_steps: PositiveSteps = 100
    """Steps between validations; one is always run after the last step."""
    eval_iters: Steps = 10
    """Global batches in one validation or test; 0 turns both off."""


class StabilityConfig(ConfigModel):
    """What is done about a step whose loss or gradient is no number, or whose loss jumps."""

    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """stop: the job fails with the step's name; skip: the step's weights are left as they were, its samples are passed
    (every step then waits for the device once, as its loss is looked at before the weights move); rollback: go back to
    the newest checkpoint and pass the samples from there to the bad step."""
    on_loss_spike: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """The same for a loss above loss_spike_factor; skip acts before the weights move."""
    loss_spike_factor: Annotated[float, Field(gt=1, le=1e6)] = 2.0
    """A spike is a loss above this times the mean of the last loss_spike_window_steps steps."""
    loss_spike_window_steps: PositiveSteps = 100
    """Steps of that mean; nothing counts as a spike before there are so many."""
    max_skipped_steps: PositiveSteps = 10
    """Steps that may be skipped, and rollbacks that may be made, within loss_spike_window_steps; one more fails the job. So
    does the third rollback in a row that comes no further."""


class AlertConfig(ConfigModel):
    """Thresholds that raise an alert event when crossed."""

    min_mfu: Fraction | None = 0.5
    """On a GPU: model FLOPs over the datasheet peak."""
    max_communication_fraction: Fraction | None = 0.3
    """Communication over step time."""
    max_device_memory_fraction: Fraction | None = 0.9
    """Peak allocated over the device's memory."""
    min_device_utilization: Fraction | None = 0.9
    """GPU busy time, by NVML."""
    max_host_memory_fraction: Fraction | None = 0.9
    """Used share of the host's memory."""
    max_rank_slowdown: Fraction | None = 0.25
    """How much longer a rank computes than the median of its pipeline stage, three times logged in a row."""


class LoggingConfig(ConfigModel):
    """What is written down while training."""

    log_interval_steps: PositiveSteps = 10
    """Steps between log lines and alert checks; scalars are written at every step."""
    alerts: AlertConfig = AlertConfig()
    """Thresholds; null turns one off."""


class ProfileConfig(ConfigModel):
    """torch.profiler over a few steps, into output/<run>/profiling."""

    enabled: bool = False
    """Profile this run."""
    wait_steps: Steps = 1
    """Steps skipped in each cycle."""
    warmup_steps: Steps = 1
    """Steps profiled and thrown away in each cycle."""
    active_steps: PositiveSteps = 3
    """Steps kept in each cycle."""
    repeat: PositiveSteps = 2
    """Cycles."""
    record_shapes: bool = True
    """Shapes of every operator's inputs."""
    profile_memory: bool = True
    """Memory that every operator takes and gives back."""
    with_stack: bool = False
    """The source line of every operator; slow, and large traces."""
    with_flops: bool = True
    """FLOPs of matrix products and convolutions."""
    with_modules: bool = False
    """The module of every operator."""
    all_ranks: bool = False
    """Every rank writes a trace; else rank 0 alone."""
    memory_snapshot: bool = False
    """GPU: every allocation of the profiled steps, for pytorch.org/memory_viz."""
