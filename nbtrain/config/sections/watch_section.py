"""Sections of a run YAML about watching: checkpoint, evaluation, stability, alerts, logging, profile."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
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
    """Steps between checkpoints. A checkpoint is also written at the end and when the job is stopped."""
    keep_last: PositiveSteps = 2
    """Number of the newest checkpoints that are kept."""
    keep_every_steps: PositiveSteps | None = None
    """Number of steps at whose multiples checkpoints are never deleted; null keeps none for this reason."""
    keep_best: bool = False
    """Whether the checkpoint with the lowest validation loss is kept too, among those saved at a step with a
    validation."""
    async_save: bool | None = None
    """Whether the state is first copied to host memory and written from there while training continues. true
    requires host memory for the copy. With null, each start of the ranks decides: true if host memory holds
    the copy.
    """
    local_dir: PathText | None = None
    """Folder on each node's own disk, such as /local/nvme/nbtrain: a checkpoint is written there first and
    copied to the run directory while training continues. {node} stands for the node's number, {host} for its
    name. null writes to the run directory directly."""
    local_save_interval_steps: PositiveSteps | None = None
    """Steps between checkpoints that are only on the nodes' disks (local_dir), in addition to those that are
    copied to the run directory every save_interval_steps; null makes none.
    """
    local_keep_last: PositiveSteps = 1
    """Number of the newest checkpoints that are kept on the nodes' disks; one more may be in the course of
    being written or copied.
    """
    local_copy_bytes_per_second: PositiveBytes | None = None
    """Largest number of bytes per second that each node copies from local_dir to the run directory; null sets
    no limit."""


class TaskConfig(ConfigModel):
    """A file of questions that the model answers while it trains."""

    task: Literal["lambada", "hellaswag", "mmlu", "multiple_choice"]
    """Format of the lines: docs/evaluation.md describes their fields."""
    path: PathText
    """A file of JSON lines; a relative path starts at the workspace."""
    limit: PositiveAmount | None = None
    """Number of questions to ask, from the first on; null asks all."""


class EvaluationConfig(ConfigModel):
    """Validation and tasks during training, and the test at the end."""

    eval_interval_steps: PositiveSteps = 100
    """Steps between validations. There is always one after the last step."""
    eval_iters: Steps = 10
    """Number of global batches in one validation or test; 0 turns both off."""
    tasks: list[TaskConfig] = []
    """Files of questions that the model answers at validations. The results are accuracies with standard
    errors, shown as curves and stored as records of nbtrain evaluate. Training waits for them.
    """
    tasks_interval_steps: PositiveSteps | None = None
    """Steps between evaluations of the tasks, a multiple of eval_interval_steps; they are also evaluated
    after the last step. null evaluates them at every validation.
    """


class StabilityConfig(ConfigModel):
    """Policies for steps whose loss or gradient is NaN or Inf, or whose loss jumps."""

    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """Policy for a step with NaN or Inf. stop: the job fails and names the step. skip: the weights stay
    unchanged and the step's samples are skipped (every step then waits once for the device, because its loss
    is read before the weights change). rollback: the run returns to the newest checkpoint and skips the
    samples from there to the bad step."""
    on_loss_spike: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """Policy for a loss spike (see loss_spike_factor): ignore it, or one of the policies of on_nan. skip acts
    before the weights change."""
    loss_spike_factor: Annotated[float, Field(gt=1, le=1e6)] = 2.0
    """A loss is a spike if it is more than this factor times the mean loss of the last
    loss_spike_window_steps steps.
    """
    loss_spike_window_steps: PositiveSteps = 100
    """Number of steps over which the mean loss is computed. Until the run has this many steps, no loss counts
    as a spike.
    """
    max_skipped_steps: PositiveSteps = 10
    """Largest number of skipped steps, and of rollbacks, within loss_spike_window_steps; one more fails the
    job. The third rollback in a row without progress also fails the job.
    """


class AlertConfig(ConfigModel):
    """Thresholds that write an alert event when they are crossed. null turns a threshold off."""

    min_mfu: Fraction | None = 0.5
    """GPU: share of the datasheet peak below which model FLOP/s raise an alert."""
    max_communication_fraction: Fraction | None = 0.3
    """Share of a step's time above which communication raises an alert."""
    max_device_memory_fraction: Fraction | None = 0.9
    """Share of the device's memory above which the peak of allocated memory raises an alert."""
    min_device_utilization: Fraction | None = 0.9
    """Share of the time below which the GPU's utilization, as NVML reports it, raises an alert."""
    max_host_memory_fraction: Fraction | None = 0.9
    """Share of the host's memory above which its use raises an alert."""
    max_rank_slowdown: Fraction | None = 0.25
    """Share by which a rank may be slower than the median of its pipeline stage. An alert is raised if it is
    slower in three log lines in a row.
    """


class LoggingConfig(ConfigModel):
    """Log lines, scalars and alerts during training."""

    log_interval_steps: PositiveSteps = 10
    """Steps between log lines and alert checks; scalars are written at every step."""
    alerts: AlertConfig = AlertConfig.model_construct()
    """Thresholds that raise alerts."""


class ProfileConfig(ConfigModel):
    """torch.profiler over a few steps, into output/<run>/profiling."""

    enabled: bool = False
    """Whether this run is profiled."""
    wait_steps: Steps = 1
    """Number of steps that are skipped at the start of each cycle."""
    warmup_steps: Steps = 1
    """Number of steps of each cycle that are then profiled and discarded."""
    active_steps: PositiveSteps = 3
    """Number of steps of each cycle that are then profiled and kept."""
    repeat: PositiveSteps = 2
    """Number of cycles."""
    record_shapes: bool = True
    """Whether the shapes of every operator's inputs are recorded."""
    profile_memory: bool = True
    """Whether the memory that every operator allocates and frees is recorded."""
    with_stack: bool = False
    """Whether the source line of every operator is recorded, which is slow and makes large traces."""
    with_flops: bool = True
    """Whether the FLOPs of matrix products and convolutions are counted."""
    with_modules: bool = False
    """Whether the module of every operator is recorded."""
    all_ranks: bool = False
    """Whether every rank writes a trace, instead of rank 0 only."""
    memory_snapshot: bool = False
    """GPU only: whether every allocation of the profiled steps is recorded, for pytorch.org/memory_viz."""
