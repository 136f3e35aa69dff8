"""Sections of a run YAML about watching: checkpoint, evaluation, stability, alerts, logging, profile."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import (
    ConfigModel,
    Fraction,
    PathText,
    PositiveAmount,
    PositiveBytes,
    PositiveSteps,
    Steps,
)


class CheckpointConfig(ConfigModel):
    """When checkpoints are written and how many are kept."""

    save_interval_steps: PositiveSteps = 1000
    """Steps between checkpoints; one is always written at the end and when the job is stopped."""
    keep_last: PositiveSteps = 2
    """How many of the newest checkpoints are kept."""
    keep_every_steps: PositiveSteps | None = None
    """Checkpoints at multiples of this step are never deleted; null keeps none for that."""
    keep_best: bool = False
    """Keep the checkpoint with the lowest validation loss too; a step needs both to count."""
    async_save: bool = False
    """Copy the state to host memory, which must hold it, and write it from there while training goes on."""
    local_dir: PathText | None = None
    """A folder on a disk of each node's own, such as /local/nvme/nbtrain: a checkpoint is written there first
    and copied to the run directory while training goes on. {node} stands for the node's number, {host} for
    its name. null writes to the run directory at once."""
    local_save_interval_steps: PositiveSteps | None = None
    """Steps between checkpoints that stay on the nodes' disks (local_dir), beside those that are copied to
    the run directory every save_interval_steps; null makes none."""
    local_keep_last: PositiveSteps = 1
    """How many of the newest checkpoints stay on the nodes' disks; one more is being written or copied."""
    local_copy_bytes_per_second: PositiveBytes | None = None
    """Most bytes per second that each node copies from local_dir to the run directory; null sets no limit."""


class TaskConfig(ConfigModel):
    """A file of questions that the model is asked while it trains."""

    task: Literal["lambada", "hellaswag", "mmlu", "multiple_choice"]
    """The form of its lines: docs/evaluation.md has their fields."""
    path: PathText
    """A file of JSON lines, from the workspace on."""
    limit: PositiveAmount | None = None
    """Ask the first so many questions only; null asks all."""


class EvaluationConfig(ConfigModel):
    """Validation and tasks during training, and the test at its end."""

    eval_interval_steps: PositiveSteps = 100
    """Steps between validations; the last step is always followed by one."""
    eval_iters: Steps = 10
    """Global batches in one validation or test; 0 turns both off."""
    tasks: list[TaskConfig] = []
    """Files of questions that the model is asked at validations: accuracies with standard errors, as curves
    and as records of nbtrain evaluate. Training waits meanwhile."""
    tasks_interval_steps: PositiveSteps | None = None
    """Steps between two times that the tasks are asked, a multiple of eval_interval_steps; the last step is
    always followed by one. null asks them at every validation."""


class StabilityConfig(ConfigModel):
    """What is done about a step whose loss or gradient is NaN or Inf, or whose loss jumps."""

    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """What to do about NaN or Inf. stop: the job fails and names the step. skip: the weights stay as they are
    and the step's samples are passed over (every step then waits once for the device, because its loss is
    read before the weights change). rollback: go back to the newest checkpoint and pass over the samples from
    there to the bad step."""
    on_loss_spike: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """What to do about a spike (see loss_spike_factor): nothing, or what on_nan does. skip acts before the
    weights change."""
    loss_spike_factor: Annotated[float, Field(gt=1, le=1e6)] = 2.0
    """A spike is a loss above this times the mean of the last loss_spike_window_steps steps."""
    loss_spike_window_steps: PositiveSteps = 100
    """Steps over which the mean loss is taken; no loss counts as a spike before there have been this many."""
    max_skipped_steps: PositiveSteps = 10
    """How many steps may be skipped, and how often the run may roll back, within loss_spike_window_steps; one
    more fails the job. The third rollback in a row that makes no progress fails the job too."""


class AlertConfig(ConfigModel):
    """Thresholds; crossing one writes an alert event. null turns a threshold off."""

    min_mfu: Fraction | None = 0.5
    """Alert on a GPU if model FLOP/s fall below this share of the datasheet peak."""
    max_communication_fraction: Fraction | None = 0.3
    """Alert if communication takes a larger share of a step's time."""
    max_device_memory_fraction: Fraction | None = 0.9
    """Alert if the peak of allocated memory is a larger share of the device's memory."""
    min_device_utilization: Fraction | None = 0.9
    """Alert if the GPU is busy for a smaller share of the time, as NVML reports it."""
    max_host_memory_fraction: Fraction | None = 0.9
    """Alert if a larger share of the host's memory is in use."""
    max_rank_slowdown: Fraction | None = 0.25
    """Alert if a rank is this share slower than its pipeline stage's median in three log lines in a row."""


class LoggingConfig(ConfigModel):
    """What is logged during training."""

    log_interval_steps: PositiveSteps = 10
    """Steps between log lines and alert checks; scalars are written at every step."""
    alerts: AlertConfig = AlertConfig()
    """Thresholds that raise alerts."""


class ProfileConfig(ConfigModel):
    """torch.profiler over a few steps, into output/<run>/profiling."""

    enabled: bool = False
    """Profile this run."""
    wait_steps: Steps = 1
    """Steps that each cycle skips first."""
    warmup_steps: Steps = 1
    """Steps that each cycle profiles and throws away."""
    active_steps: PositiveSteps = 3
    """Steps that each cycle profiles and keeps."""
    repeat: PositiveSteps = 2
    """Number of cycles."""
    record_shapes: bool = True
    """Record the shapes of every operator's inputs."""
    profile_memory: bool = True
    """Record the memory that every operator allocates and frees."""
    with_stack: bool = False
    """Record the source line of every operator; this is slow and makes large traces."""
    with_flops: bool = True
    """Count the FLOPs of matrix products and convolutions."""
    with_modules: bool = False
    """Record the module of every operator."""
    all_ranks: bool = False
    """Every rank writes a trace, not rank 0 alone."""
    memory_snapshot: bool = False
    """GPU only: record every allocation of the profiled steps, for pytorch.org/memory_viz."""
