"""The schema of a run: frozen pydantic models, one per section, a docstring per field.

A run YAML says what differs from what it `extends:`; the resolved config.yaml in the run directory says
everything. A default exists once, here. Derived values are properties, never fields. A rule about one field
stands in its type; a rule that joins two fields stands in check.py. Amounts of training are in tokens, also where
they are given in samples or steps; periods in `_interval_steps`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from nbtrain.config.batch import BatchSchedule, Rampup, StepSizes
from nbtrain.config.data_section import DataConfig, TokenizerConfig
from nbtrain.config.fields import (
    BatchSize,
    ConfigModel,
    Count,
    Fraction,
    FractionBelowOne,
    Name,
    PositiveCount,
    PositiveFloat,
    RampSamples,
)
from nbtrain.config.yaml_source import OverridePlace
from nbtrain.errors import ConfigError
from nbtrain.topology import Topology

SCHEMA_VERSION = 1

# Megatron-LM starts there; the scaled loss is an fp32 number, which ends below 2 to the power of 128.
MOST_SCALE_POWER = 32

# Of mode: perf where max_steps is not set; the first quarter warms up (train/perf.py).
PERF_STEPS = 20
# Of a run: more than all text there is, many times over.
MOST_TRAIN_TOKENS = 10**15
# "0:16 2.4B:320 12B:1536"
STEP_SIZES = r"^0:[1-9]\d*( [1-9]\d*(\.\d+)?[KMBT]?:[1-9]\d*)*$"
UNITS = ("tokens", "samples", "steps")
NO_LENGTH = "{where}: batch.train_tokens is missing: set it, or train_samples or train_steps."


def given_unit(section: ConfigModel, stem: str) -> str | None:
    """The unit that an amount is given in: of `lr_warmup` "steps", where lr_warmup_steps is set. None where none is."""
    return next((unit for unit in UNITS if getattr(section, f"{stem}_{unit}") is not None), None)


class ModelConfig(ConfigModel):
    """GPT-3 architecture: learned positions, pre-LN, tied embeddings (arXiv:2005.14165, section 2.1)."""

    num_layers: PositiveCount
    """Transformer blocks."""
    hidden_size: PositiveCount
    """Width of the residual stream."""
    num_attention_heads: PositiveCount
    """Attention heads; hidden_size must be a multiple."""
    ffn_hidden_size: PositiveCount | None = None
    """Width of the MLP; null means 4 x hidden_size."""
    seq_length: PositiveCount = 2048
    """Tokens in one training sequence."""
    max_position_embeddings: PositiveCount | None = None
    """Learned positions; null means seq_length."""
    make_vocab_size_divisible_by: PositiveCount = 128
    """The vocabulary is padded to a multiple of this times tensor_parallel_size."""
    hidden_dropout: FractionBelowOne = 0.1
    """Dropout after the embedding, the attention output and the MLP."""
    attention_dropout: FractionBelowOne = 0.1
    """Dropout on the attention weights."""
    init_method_std: PositiveFloat = 0.02
    """Standard deviation of the initial weights; residual projections get it divided by sqrt(2 num_layers)."""
    layernorm_epsilon: PositiveFloat = 1e-5
    """Epsilon of every LayerNorm."""
    attention_backend: Literal["auto", "flash", "efficient", "math"] = "auto"
    """Which scaled_dot_product_attention kernel; auto lets PyTorch choose."""
    cross_entropy_chunk_tokens: Count = 1024
    """Tokens whose logits exist at one time in the fused linear + cross entropy; 0 means all at once."""
    compile: bool = False
    """torch.compile the model; needs a C++ compiler on CPU."""
    seed: Count = 1234
    """Seed of the initial weights and of dropout."""

    @property
    def resolved_ffn_hidden_size(self) -> int:
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def resolved_max_position_embeddings(self) -> int:
        return self.max_position_embeddings or self.seq_length


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
    train_tokens: PositiveCount | None = None
    """Tokens the run trains on. Exactly one of train_tokens, train_samples and train_steps is set."""
    train_samples: PositiveCount | None = None
    """The same in sequences."""
    train_steps: PositiveCount | None = None
    """The same in steps, those of a ramp-up counted; max_steps ends a run before that."""
    rampup: RampupConfig | None = None
    """Batch ramp-up; null trains every step at global_batch_size."""
    step_batch_size_schedule: Annotated[str, Field(pattern=STEP_SIZES)] | None = None
    """Each size and the tokens from which on it holds, as Megatron-LM writes it; the other way to grow the batch."""
    max_steps: PositiveCount | None = None
    """Stop after this many steps, schedules unchanged: a trial of the same run."""
    exit_interval_steps: PositiveCount | None = None
    """A job validates where that is due, saves and stops at each step that this divides; `resume` goes on."""
    exit_duration_minutes: PositiveFloat | None = None
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
    adam_eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Decoupled weight decay at the end of training; biases and LayerNorm have none."""
    start_weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of the first step; null means weight_decay from the first step on."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How it goes from start_weight_decay to weight_decay, over the run's tokens."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm; 0 does not clip."""


class LrScheduleConfig(ConfigModel):
    """Linear warm-up, then decay from lr to min_lr, counted in tokens; formulas in config/lr_schedule.py.

    Each amount may be given in samples or steps instead; in one of the three.
    """

    lr: PositiveFloat
    """Peak learning rate."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay and after it."""
    lr_warmup_init: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at which the warm-up begins."""
    lr_decay_style: Literal["cosine", "linear", "constant", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay. WSD (warm-up, stable, decay) stays at lr until lr_wsd_decay_tokens before its end."""
    lr_warmup_tokens: Count | None = None
    """Tokens over which the rate rises from 0; no warm-up where this, lr_warmup_samples and lr_warmup_steps are null."""
    lr_warmup_samples: Count | None = None
    """The same in sequences."""
    lr_warmup_steps: Count | None = None
    """The same in steps, those of a ramp-up counted."""
    lr_warmup_fraction: Fraction | None = None
    """The same as a share of the decay's tokens."""
    lr_decay_tokens: PositiveCount | None = None
    """Tokens, from the start, at which min_lr is reached; the run's length where this and the next two are null."""
    lr_decay_samples: PositiveCount | None = None
    """The same in sequences."""
    lr_decay_steps: PositiveCount | None = None
    """The same in steps, those of a ramp-up counted."""
    lr_wsd_decay_tokens: PositiveCount | None = None
    """WSD only, where this or one of the next two must be set: tokens of the last part, in which the rate falls."""
    lr_wsd_decay_samples: PositiveCount | None = None
    """The same in sequences."""
    lr_wsd_decay_steps: PositiveCount | None = None
    """The same in steps of global_batch_size."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """WSD only: shape of its last part."""


class LossScaleConfig(ConfigModel):
    """fp16 only."""

    loss_scale: Annotated[float, Field(ge=0, le=2.0**MOST_SCALE_POWER)] = 0.0
    """A fixed scale, or 0 for a dynamic one."""
    initial_scale_power: Annotated[int, Field(ge=0, le=MOST_SCALE_POWER)] = 11
    """The dynamic scale starts at 2 to this power."""
    loss_scale_window: PositiveCount = 500
    """Steps without overflow before the scale doubles."""
    hysteresis: PositiveCount = 2
    """Overflows in a row before the scale halves."""
    min_loss_scale: PositiveCount = 1
    """Never below this; DeepSpeed wants a whole number."""


class PrecisionConfig(ConfigModel):
    """The number format of weights and activations."""

    dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Format of the matrix products. Loss, masters and moments are fp32 always."""
    autocast: bool = False
    """bf16 only: keep fp32 weights and cast inside each product, in place of bf16 weights with fp32 masters."""
    fp8: bool = False
    """bf16 only, GPUs from Hopper on: the products of the blocks' linear layers in FP8 (e4m3 forward, e5m2 backward)."""
    fp16: LossScaleConfig = LossScaleConfig()
    """Loss scaling."""


class ActivationCheckpointingConfig(ConfigModel):
    """Recompute activations in the backward pass instead of keeping them."""

    granularity: Literal["none", "selective", "full"] = "none"
    """selective recomputes what is large and cheap: the attention core and the MLP's activation. full keeps only the
    input of every `interval_layers` blocks."""
    interval_layers: PositiveCount = 1
    """Blocks per recomputed piece."""


class OffloadConfig(ConfigModel):
    """Where ZeRO keeps something that a device's memory does not hold."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """none: on the device; cpu: in host memory; nvme: in files under nvme_path, ZeRO 3 only."""
    nvme_path: str | None = None
    """A folder on a local NVMe disk."""
    pin_memory: bool = False
    """Page-locked host memory: faster copies, and memory that nothing else can use."""
    buffer_count: PositiveCount = 5
    """Buffers for the traffic with NVMe."""


class ParallelConfig(ConfigModel):
    """How the model and the batch are cut over the ranks; what goes together stands in docs/parallelism.md."""

    data_parallel_size: PositiveCount = 1
    """Copies of the model (each cut by tensor and pipeline) that take different samples."""
    tensor_parallel_size: PositiveCount = 1
    """Ranks that share each layer's matrices."""
    pipeline_parallel_size: PositiveCount = 1
    """Ranks that each hold a run of layers."""
    pipeline_stage_layers: list[PositiveCount] | None = None
    """Blocks of each pipeline stage; null cuts the layer list so that the slowest stage is as fast as it can be."""
    num_layers_per_virtual_pipeline_stage: PositiveCount | None = None
    """Megatron's interleaved pipeline; refused, see docs/parallelism.md."""
    sequence_parallel: bool = False
    """Megatron sequence parallelism inside the tensor-parallel group."""
    ds_sequence_parallel_size: PositiveCount = 1
    """Ulysses: ranks that share each sequence, and its attention heads (arXiv:2309.14509)."""
    fpdt_chunk_tokens: Count = 0
    """FPDT: attention and MLP of a long sequence in chunks of so many tokens (arXiv:2408.16978); GPU only, 0 is off."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What data-parallel ranks share out: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too."""
    offload_optimizer: OffloadConfig = OffloadConfig()
    """ZeRO: where masters and moments live; the step is then made on the CPU."""
    offload_param: OffloadConfig = OffloadConfig()
    """ZeRO 3: where parameters live between their uses."""
    zero_hpz: bool = False
    """ZeRO++ on stage 3: a second copy of the parameters, cut inside each machine (arXiv:2306.10209)."""
    zero_hpz_partition_size: PositiveCount | None = None
    """Ranks that share that copy; null means those of one machine."""
    zero_quantized_weights: bool = False
    """ZeRO++ on stage 3: gather parameters in INT8; GPU only."""
    zero_quantized_gradients: bool = False
    """ZeRO++ on stage 3: reduce gradients between machines in INT4; GPU only."""
    activation_checkpointing: ActivationCheckpointingConfig = ActivationCheckpointingConfig()
    """Memory against recomputation."""
    overlap_comm: bool = True
    """ZeRO: reduce gradients while the backward pass runs; a pipeline does so behind it."""
    contiguous_gradients: bool = True
    """ZeRO: copy gradients to one buffer as they appear."""
    reduce_scatter: bool = True
    """ZeRO: each rank gets the sum of its part only, in place of an all-reduce."""
    reduce_bucket_size: PositiveCount = 500_000_000
    """ZeRO: elements reduced at once; never more than a rank has parameters."""
    allgather_bucket_size: PositiveCount = 500_000_000
    """ZeRO: elements gathered at once; never more than a rank has parameters."""
    sub_group_size: PositiveCount = 1_000_000_000
    """ZeRO 3: parameters stepped at once; smaller needs less memory with offloading."""
    stage3_max_live_parameters: Count = 1_000_000_000
    """ZeRO 3: whole parameters held at one time."""
    stage3_prefetch_bucket_size: Count = 50_000_000
    """ZeRO 3: elements gathered ahead of their use."""
    stage3_param_persistence_threshold: Count = 100_000
    """ZeRO 3: parameters smaller than this stay whole."""
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Format in which gradients travel between data-parallel ranks."""
    prescale_gradients: bool = False
    """Divide gradients before their sum in place of after it; ZeRO 0 only."""
    wall_clock_breakdown: bool = False
    """DeepSpeed's own timers, to the rank's log; they wait for the device at every part of a step."""
    steps_per_print: PositiveCount | None = None
    """Steps between DeepSpeed's own step reports; null leaves them out, as nbtrain writes its own."""
    elastic_checkpoint: bool = False
    """DeepSpeed's older way to reload on other ranks; refused: every checkpoint here loads into any layout."""
    process_group_timeout_seconds: Annotated[float, Field(ge=1, le=2_592_000)] = 600.0
    """A collective that waits longer ends the rank; at most 30 days."""
    deepspeed_extra: dict[str, Any] = {}
    """DeepSpeed keys that have no field here; refused where they collide with one that nbtrain derives."""

    @property
    def data_axis_size(self) -> int:
        """Ranks that hold the same weights and take other tokens: data times Ulysses."""
        return self.data_parallel_size * self.ds_sequence_parallel_size


class CheckpointConfig(ConfigModel):
    """When checkpoints are written and how many stay."""

    save_interval_steps: PositiveCount = 1000
    """Steps between checkpoints; one is always written at the end and on a stop."""
    keep_last: PositiveCount = 2
    """Newest checkpoints that stay."""
    keep_every_steps: PositiveCount | None = None
    """Checkpoints at multiples of this stay for ever."""
    keep_best: bool = False
    """The checkpoint of the lowest validation loss stays too; validations without one at their step do not count."""
    async_save: bool = False
    """Copy the state to host memory and write it while training goes on; needs host memory for one more copy."""


class EvaluationConfig(ConfigModel):
    """Validation while training, and test at its end."""

    eval_interval_steps: PositiveCount = 100
    """Steps between validations; one is always run after the last step."""
    eval_iters: Count = 10
    """Global batches in one validation or test; 0 turns both off."""


class StabilityConfig(ConfigModel):
    """What is done about a step whose loss or gradient is no number, or whose loss jumps."""

    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """stop: the job fails with the step's name; skip: the step's weights are left as they were, its samples are passed
    (every step then waits for the device once, as its loss is looked at before the weights move); rollback: go back to
    the newest checkpoint and pass the samples from there to the bad step."""
    on_loss_spike: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """The same for a loss above loss_spike_factor; skip acts before the weights move."""
    loss_spike_factor: Annotated[float, Field(gt=1)] = 2.0
    """A spike is a loss above this times the mean of the last loss_spike_window_steps steps."""
    loss_spike_window_steps: PositiveCount = 100
    """Steps of that mean; nothing counts as a spike before there are so many."""
    max_skipped_steps: PositiveCount = 10
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

    log_interval_steps: PositiveCount = 10
    """Steps between log lines and alert checks; scalars are written at every step."""
    alerts: AlertConfig = AlertConfig()
    """Thresholds; null turns one off."""


class ProfileConfig(ConfigModel):
    """torch.profiler over a few steps, into output/<run>/profiling."""

    enabled: bool = False
    """Profile this run."""
    wait_steps: Count = 1
    """Steps skipped in each cycle."""
    warmup_steps: Count = 1
    """Steps profiled and thrown away in each cycle."""
    active_steps: PositiveCount = 3
    """Steps kept in each cycle."""
    repeat: PositiveCount = 2
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


class ResourcesConfig(ConfigModel):
    """What the run takes."""

    device: Literal["cpu", "gpu"] = "gpu"
    """Kind of device a rank computes on."""
    gpu_type: str | None = None
    """A name of the planner's device table, e.g. A100-40GB: memory and peak for the plan."""
    nodes: PositiveCount = 1
    """Machines."""
    gpus_per_node: Count = 1
    """GPUs on each machine, one rank each; on device cpu the ranks are spread evenly and this is not read."""
    cpus_per_node: PositiveCount | None = None
    """Cores asked for on each machine."""
    memory_per_node_bytes: PositiveCount | None = None
    """Host memory asked for on each machine."""
    image: str | None = None
    """Container image, for backends that start containers."""


class LocalBackendConfig(ConfigModel):
    """Processes on this machine under a detached supervisor."""

    kind: Literal["local"] = "local"
    max_restarts: Count = 3
    """Restarts from the last good checkpoint after a failure."""
    restart_backoff_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Wait before the first restart; doubles each time, up to 5 minutes."""
    shutdown_timeout_seconds: PositiveFloat = 60.0
    """How long ranks may take to save and leave when asked; after that they are killed."""
    heartbeat_timeout_seconds: Annotated[float, Field(ge=2)] = 1800.0
    """A rank that makes no progress (step, micro batch, phase, collective) for this long counts as hanging."""
    disk_wait_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Where the disk is full: how long to wait for room for a checkpoint before the job fails."""
    elastic: bool = False
    """A restart counts the devices that are usable and takes as many data-parallel ranks as they hold; the global batch
    stays. On CPU an operator says how many (nbtrain.jobs.control.ask_devices)."""
    env: dict[str, str] = {}
    """Environment variables for every rank."""
    debug: Literal["none", "nccl", "distributed"] = "none"
    """nccl sets NCCL_DEBUG=INFO; distributed sets TORCH_DISTRIBUTED_DEBUG=DETAIL."""


class RunConfig(ConfigModel):
    """One run: everything that decides what is trained, on what, how and where."""

    schema_version: Literal[1] = 1
    """Version of this schema."""
    name: Name
    """The run's name: its folder under the output root."""
    mode: Literal["full", "perf", "eval"] = "full"
    """perf measures how fast the run is: max_steps or 20 steps, no evaluation, no checkpoint, throughput told at the end.
    eval tells validation and test loss of the newest checkpoint and trains nothing; the next resume is full again."""
    model: ModelConfig
    """Architecture."""
    tokenizer: TokenizerConfig
    """Vocabulary."""
    data: DataConfig
    """Dataset and order."""
    batch: BatchConfig
    """Batch and length of training."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW."""
    lr_schedule: LrScheduleConfig
    """Learning rate."""
    precision: PrecisionConfig = PrecisionConfig()
    """Number format."""
    parallel: ParallelConfig = ParallelConfig()
    """Layout."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Validation and test."""
    stability: StabilityConfig = StabilityConfig()
    """Steps that go wrong."""
    logging: LoggingConfig = LoggingConfig()
    """Logs and alerts."""
    profile: ProfileConfig = ProfileConfig()
    """Profiler."""
    resources: ResourcesConfig = ResourcesConfig()
    """Devices."""
    backend: LocalBackendConfig = LocalBackendConfig()
    """Where it runs, told apart by `kind`."""

    # Where each dotted key was written ("file.yaml:12" or "override a.b=c"); set by load.py.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _run: str | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        # Two runs are equal when their values are, wherever those were written.
        return isinstance(other, RunConfig) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.name)

    def where(self, key: str) -> str:
        """The place that set a dotted key: "gpt.yaml:12", "override batch.x=1" or "default"."""
        while key:
            if key in self._origins:
                return self._origins[key]
            key = key.rpartition(".")[0]
        return "default"

    @property
    def as_arguments(self) -> list[str]:
        """What stands behind a verb of the command line to mean this configuration: RUN and its overrides."""
        places = dict.fromkeys(self._origins.values())
        overridden = [place.argument for place in places if isinstance(place, OverridePlace)]
        return [self._run or self.name, *overridden]

    @property
    def topology(self) -> Topology:
        return Topology(
            self.parallel.pipeline_parallel_size,
            self.parallel.data_axis_size,
            self.parallel.tensor_parallel_size,
        )

    @property
    def world_size(self) -> int:
        return self.topology.world_size

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each machine; at least one."""
        if self.resources.device == "gpu" and self.resources.gpus_per_node:
            return self.resources.gpus_per_node
        return max(self.world_size // self.resources.nodes, 1)

    @property
    def zero_hpz_partition_size(self) -> int:
        """Ranks that share ZeRO++'s second copy of the parameters; read where parallel.zero_hpz is on."""
        return self.parallel.zero_hpz_partition_size or self.ranks_per_node

    @property
    def padded_vocab_size(self) -> int:
        """tokenizer.vocab_size up to a multiple of make_vocab_size_divisible_by x tensor_parallel_size."""
        multiple = self.model.make_vocab_size_divisible_by * self.parallel.tensor_parallel_size
        return -(-self.tokenizer.vocab_size // multiple) * multiple

    @property
    def accumulation_steps(self) -> int:
        """Micro batches per rank and step, at the full batch; exact once check.py has passed."""
        return self.batch.global_batch_size // (
            self.batch.micro_batch_size * self.parallel.data_parallel_size
        )

    @property
    def tokens_per_step(self) -> int:
        return self.batch.global_batch_size * self.model.seq_length

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Sizes of all steps, the ramp-up counted."""
        return BatchSchedule(
            self.batch.global_batch_size, self.model.seq_length, self.train_tokens, self.ramp
        )

    @property
    def ramp(self) -> Rampup | StepSizes | None:
        """How the batch grows; None where it does not."""
        if self.batch.step_batch_size_schedule is not None:
            return StepSizes.parse(self.batch.step_batch_size_schedule, self.model.seq_length)
        return Rampup(**self.batch.rampup.model_dump()) if self.batch.rampup else None

    def in_tokens(self, unit: str, amount: int) -> int:
        """`amount` tokens, samples or steps from the start of the run, in tokens."""
        if unit == "steps":
            sizes = BatchSchedule(self.batch.global_batch_size, self.model.seq_length, 1, self.ramp)
            return sizes.tokens_after(amount)
        return amount * self.model.seq_length if unit == "samples" else amount

    def _given_in_tokens(self, section: ConfigModel, stem: str) -> int | None:
        unit = given_unit(section, stem)
        return self.in_tokens(unit, getattr(section, f"{stem}_{unit}")) if unit else None

    @property
    def train_tokens(self) -> int:
        """What batch.train_tokens, train_samples or train_steps says; ConfigError where none is set."""
        return self.in_tokens(*self.batch.train_amount)

    @property
    def scheduled_steps(self) -> int:
        """Steps that reach train_tokens, rounded up, the ramp-up counted."""
        return self.batch_schedule.total_steps

    @property
    def train_samples(self) -> int:
        """Sequences in scheduled_steps: what the training order must hold."""
        return self.batch_schedule.total_samples

    @property
    def train_steps(self) -> int:
        """Steps this run makes: scheduled_steps, or max_steps or those of mode: perf where they are less."""
        limit = self.batch.max_steps or (PERF_STEPS if self.mode == "perf" else self.scheduled_steps)
        return min(self.scheduled_steps, limit)

    @property
    def shortened_by(self) -> str:
        """What makes train_steps less than scheduled_steps: "batch.max_steps", "mode: perf", or "" where nothing does."""
        if self.train_steps == self.scheduled_steps:
            return ""
        return "batch.max_steps" if self.batch.max_steps else "mode: perf"

    @property
    def lr_warmup_tokens(self) -> int:
        """The warm-up in tokens; 0 without one."""
        if (fraction := self.lr_schedule.lr_warmup_fraction) is not None:
            return int(fraction * self.lr_decay_tokens)
        return self._given_in_tokens(self.lr_schedule, "lr_warmup") or 0

    @property
    def lr_decay_tokens(self) -> int:
        """Where the decay ends, in tokens; the run's length where nothing else is said."""
        return self._given_in_tokens(self.lr_schedule, "lr_decay") or self.train_tokens

    @property
    def lr_wsd_decay_tokens(self) -> int | None:
        """WSD's last part in tokens; its steps are those at its end, of the full batch."""
        schedule = self.lr_schedule
        if given_unit(schedule, "lr_wsd_decay") == "steps":
            assert schedule.lr_wsd_decay_steps is not None
            return schedule.lr_wsd_decay_steps * self.tokens_per_step
        return self._given_in_tokens(schedule, "lr_wsd_decay")
