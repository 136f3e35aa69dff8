"""Sections of a run YAML about checkpoints, evaluation, stability, logging, alerts and profiling."""

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
    """Schedule, location and retention of checkpoints."""

    save_interval_steps: PositiveSteps = 1000
    """Steps between checkpoints. A checkpoint is also saved after the last step and when the job is
    stopped.
    """
    keep_last: PositiveSteps = 2
    """Number of newest checkpoints to keep."""
    keep_every_steps: PositiveSteps | None = None
    """Interval, in steps, of checkpoints that are never deleted: those whose step is a multiple of it. null
    sets no interval.
    """
    keep_best: bool = False
    """Whether to keep the checkpoint with the lowest validation loss too, among those saved at a step with a
    validation.
    """
    async_save: bool | None = None
    """Whether the state is first copied to host memory and then written while training continues. true
    requires host memory for the copy. With null, nbtrain decides whenever the ranks start: true if the copy
    fits into host memory.
    """
    local_dir: PathText | None = None
    """Folder on each node's own disk, such as /local/nvme/nbtrain. Checkpoints are written there first and
    copied to the run directory while training continues. {node} stands for the node's number, {host} for its
    name. null writes checkpoints directly to the run directory.
    """
    local_save_interval_steps: PositiveSteps | None = None
    """Steps between checkpoints that stay on the nodes' disks (local_dir), in addition to those that are
    copied to the run directory every save_interval_steps. null saves no such checkpoints.
    """
    local_keep_last: PositiveSteps = 1
    """Number of newest checkpoints to keep on the nodes' disks. While a checkpoint is being written or
    copied, there may be one more.
    """
    local_copy_bytes_per_second: PositiveBytes | None = None
    """Maximum number of bytes per second that each node copies from local_dir to the run directory. null sets
    no limit.
    """


class TaskConfig(ConfigModel):
    """A file of questions that the model answers during training."""

    task: Literal["lambada", "hellaswag", "mmlu", "multiple_choice"]
    """Format of the file's lines. docs/evaluation.md describes their fields."""
    path: PathText
    """Path of a JSON Lines file. A relative path is relative to the workspace."""
    limit: PositiveAmount | None = None
    """Number of questions to ask, from the first one on. null asks all of them."""


class EvaluationConfig(ConfigModel):
    """Validation and tasks during training, and the test at the end."""

    eval_interval_steps: PositiveSteps = 100
    """Steps between validations. There is always a validation after the last step."""
    eval_iters: Steps = 10
    """Number of global batches in one validation or test. 0 turns both off."""
    tasks: list[TaskConfig] = []
    """Files of questions that the model answers at validations. The results are accuracies with standard
    errors, which are shown as curves and stored like results of `nbtrain evaluate`. Training waits while the
    tasks run.
    """
    tasks_interval_steps: PositiveSteps | None = None
    """Steps between evaluations of the tasks. It must be a multiple of eval_interval_steps. The tasks are
    also evaluated after the last step. null evaluates them at every validation.
    """


class StabilityConfig(ConfigModel):
    """Policies for steps whose loss or gradient is NaN or Inf, or whose loss jumps."""

    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """Policy for a step with NaN or Inf. stop: the job fails and names the step. skip: the weights stay
    unchanged and the step's samples are skipped; every step then waits once for the device, because its loss
    is read before the weights change. rollback: the run returns to the newest checkpoint and skips the
    samples from there to the bad step.
    """
    on_loss_spike: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """Policy for a loss spike (see loss_spike_factor). ignore continues; the other policies work as in
    on_nan. skip acts before the weights change.
    """
    loss_spike_factor: Annotated[float, Field(gt=1, le=1e6)] = 2.0
    """Factor that defines a loss spike: a loss above this factor times the mean loss of the last
    loss_spike_window_steps steps.
    """
    loss_spike_window_steps: PositiveSteps = 100
    """Number of steps over which the mean loss is computed. No loss counts as a spike until the run has
    trained this many steps.
    """
    max_skipped_steps: PositiveSteps = 10
    """Maximum number of skipped steps, and maximum number of rollbacks, within loss_spike_window_steps. If
    either number is exceeded, the job fails. The third rollback in a row without progress also fails the job.
    """


class AlertConfig(ConfigModel):
    """Thresholds that write an alert event when they are crossed. null turns a threshold off."""

    min_mfu: Fraction | None = 0.5
    """GPU only: minimum MFU (model FLOP/s as a fraction of the datasheet peak). An alert is raised below
    it.
    """
    max_communication_fraction: Fraction | None = 0.3
    """Maximum fraction of a step's time that is spent on communication. An alert is raised above it."""
    max_device_memory_fraction: Fraction | None = 0.9
    """Maximum peak of allocated memory, as a fraction of the device's memory. An alert is raised above it."""
    min_device_utilization: Fraction | None = 0.9
    """Minimum GPU utilization as NVML reports it, from 0 to 1. An alert is raised below it."""
    max_host_memory_fraction: Fraction | None = 0.9
    """Maximum use of host memory, as a fraction of all host memory. An alert is raised above it."""
    max_rank_slowdown: Fraction | None = 0.25
    """Fraction by which a rank may be slower than the median of its pipeline stage. An alert is raised if a
    rank is slower than that in three consecutive log lines.
    """


class LoggingConfig(ConfigModel):
    """Log lines, scalars and alerts during training."""

    log_interval_steps: PositiveSteps = 10
    """Steps between log lines and alert checks. Scalars are written at every step."""
    alerts: AlertConfig = AlertConfig.model_construct()
    """Thresholds that raise alerts."""


class ProfileConfig(ConfigModel):
    """Profiling of a few steps with torch.profiler. Results are written to output/<run>/profiling."""

    enabled: bool = False
    """Whether to profile this run."""
    wait_steps: Steps = 1
    """Number of steps at the start of each cycle that are not profiled."""
    warmup_steps: Steps = 1
    """Number of steps after wait_steps in each cycle that are profiled, but whose results are discarded."""
    active_steps: PositiveSteps = 3
    """Number of steps after warmup_steps in each cycle that are profiled, and whose results are kept."""
    repeat: PositiveSteps = 2
    """Number of profiling cycles."""
    record_shapes: bool = True
    """Whether to record the shapes of every operator's inputs."""
    profile_memory: bool = True
    """Whether to record the memory that every operator allocates and frees."""
    with_stack: bool = False
    """Whether to record the source line of every operator. This is slow and makes traces large."""
    with_flops: bool = True
    """Whether to count the FLOPs of matrix products and convolutions."""
    with_modules: bool = False
    """Whether to record the module of every operator."""
    all_ranks: bool = False
    """Whether every rank writes a trace. Otherwise, only rank 0 does."""
    memory_snapshot: bool = False
    """GPU only: whether to record every allocation of the profiled steps, for pytorch.org/memory_viz."""
