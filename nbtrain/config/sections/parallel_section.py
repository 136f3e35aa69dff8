"""Sections of a run YAML about devices: precision, recomputation, offloading, parallelism."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    ChunkTokens,
    ConfigModel,
    Elements,
    Layers,
    PathText,
    PositiveElements,
    PositiveSmallCount,
    PositiveSteps,
    Ranks,
)
from nbtrain.config.sections.markers import Binds, WithoutEffect

# Megatron-LM starts there; the scaled loss is an fp32 number, which ends below 2 to the power of 128.
MOST_SCALE_POWER = 32


class LossScaleConfig(ConfigModel):
    """Loss scaling; read with precision.dtype: fp16 only."""

    loss_scale: Annotated[float, Field(ge=0, le=2.0**MOST_SCALE_POWER)] = 0.0
    """Fixed loss scale, or 0 for a dynamic one."""
    initial_scale_power: Annotated[int, Field(ge=0, le=MOST_SCALE_POWER)] = 11
    """Exponent of the first dynamic loss scale: it starts at 2 to this power."""
    loss_scale_window: PositiveSteps = 500
    """Number of steps without overflow after which the dynamic loss scale doubles."""
    hysteresis: PositiveSmallCount = 2
    """Number of overflows, consecutive or not, after which the dynamic loss scale halves; each further
    overflow halves it again. The count restarts when the scale doubles.
    """
    min_loss_scale: Annotated[int, Field(ge=1, le=2**MOST_SCALE_POWER)] = 1
    """Smallest dynamic loss scale; DeepSpeed requires a whole number."""


class PrecisionConfig(ConfigModel):
    """Number format of weights and activations."""

    dtype: Annotated[Literal["fp32", "bf16", "fp16"], Binds()] = "bf16"
    """Format of the matrix products. Loss, master weights and moments are always fp32."""
    autocast: Annotated[bool, Binds()] = False
    """Whether the weights stay in fp32 and are cast to bf16 for each product, instead of bf16 weights with
    fp32 masters; bf16 only.
    """
    fp8: bool = False
    """Whether the linear layers of the blocks multiply in FP8 (e4m3 forward, e5m2 backward); bf16 only, on
    Hopper GPUs and later.
    """
    fp16: LossScaleConfig = LossScaleConfig.model_construct()
    """Loss scaling of fp16."""


class ActivationCheckpointingConfig(ConfigModel):
    """Recomputation of activations in the backward pass, so that they need not be kept in memory."""

    granularity: Literal["none", "selective", "full"] = "none"
    """Activations that are recomputed in the backward pass. selective recomputes what is large and cheap: the
    attention core and the MLP's activation. full keeps only the input of every `interval_layers` blocks."""
    interval_layers: Layers = 1
    """Number of blocks that are recomputed together, with granularity: full."""


class OffloadConfig(ConfigModel):
    """Where ZeRO keeps state that does not fit into the device's memory."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """Where the state is kept: none on the device, cpu in host memory, nvme in files under nvme_path (ZeRO 3
    only).
    """
    nvme_path: PathText | None = None
    """Folder on a local NVMe disk, for device: nvme."""
    pin_memory: bool = False
    """Whether the host memory is page-locked. Copies are then faster, but no other program can use that
    memory.
    """
    buffer_count: PositiveSmallCount = 5
    """Number of buffers in host memory for state on NVMe."""


class ParallelConfig(ConfigModel):
    """Sharding of the model and the batch across the ranks; docs/parallelism.md lists the combinations that
    are supported.
    """

    data_parallel_size: Ranks = 1
    """Number of replicas of the model, which train on different samples. Tensor and pipeline parallelism
    shard each replica.
    """
    tensor_parallel_size: Ranks = 1
    """Number of ranks that share each layer's matrices (tensor parallelism)."""
    pipeline_parallel_size: Ranks = 1
    """Number of stages, each with consecutive layers (pipeline parallelism)."""
    pipeline_stage_layers: list[Layers] | None = None
    """Number of blocks of each pipeline stage, e.g. [7, 5]; null makes the slowest stage as fast as
    possible."""
    num_layers_per_virtual_pipeline_stage: Layers | None = None
    """Megatron's interleaved pipeline, which is not supported: see docs/parallelism.md."""
    sequence_parallel: bool = False
    """Whether Megatron's sequence parallelism is used inside the tensor-parallel group (arXiv:2205.05198)."""
    ds_sequence_parallel_size: Ranks = 1
    """Number of ranks that share each sequence and its attention heads (Ulysses, arXiv:2309.14509)."""
    context_parallel_size: Ranks = 1
    """Number of ranks that share each sequence, and each of which gathers its keys and values (context
    parallelism)."""
    fpdt_chunk_tokens: ChunkTokens = 0
    """Number of tokens in the chunks in which attention and MLP process a long sequence (FPDT,
    arXiv:2408.16978). GPU only; 0 turns it off."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """State that ZeRO shards across the data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3
    parameters too."""
    offload_optimizer: OffloadConfig = OffloadConfig.model_construct()
    """Where ZeRO's master weights and moments are kept. If that is off the device, the CPU computes the
    optimizer's step.
    """
    offload_param: OffloadConfig = OffloadConfig.model_construct()
    """ZeRO 3: where parameters are kept between their uses."""
    zero_hpz: bool = False
    """Whether each machine has a second copy of the parameters, sharded inside it (ZeRO++ on stage 3,
    arXiv:2306.10209)."""
    zero_hpz_partition_size: Ranks | None = None
    """Number of ranks that share the second copy of the parameters (ZeRO++ on stage 3); null means the ranks
    of one machine."""
    zero_quantized_weights: bool = False
    """Whether parameters are gathered in INT8 (ZeRO++ on stage 3); GPU only."""
    zero_quantized_gradients: bool = False
    """Whether gradients are reduced between machines in INT4 (ZeRO++ on stage 3); GPU only."""
    activation_checkpointing: ActivationCheckpointingConfig = ActivationCheckpointingConfig.model_construct()
    """Activation checkpointing: less memory for more computation."""
    overlap_comm: bool = True
    """ZeRO: whether gradients are reduced while the backward pass runs. A pipeline always reduces them after
    the backward pass, and a single data-parallel rank has nothing to reduce.
    """
    contiguous_gradients: bool = True
    """ZeRO: whether gradients are copied into one buffer as they are computed."""
    reduce_scatter: bool = True
    """ZeRO: whether gradients are reduced by reduce-scatter instead of all-reduce, so that each rank receives
    only its own part of the sum."""
    reduce_bucket_size: PositiveElements = 500_000_000
    """ZeRO: number of gradient elements that are reduced at once, limited to the number of parameters of a
    rank.
    """
    allgather_bucket_size: PositiveElements = 500_000_000
    """ZeRO: number of parameter elements that are gathered at once, limited to the number of parameters of a
    rank.
    """
    sub_group_size: PositiveElements = 1_000_000_000
    """ZeRO 3: number of parameter elements that the optimizer updates at once. With offloading, a smaller
    number needs less memory.
    """
    stage3_max_live_parameters: Elements = 1_000_000_000
    """ZeRO 3: largest number of parameter elements that are gathered at one time."""
    stage3_prefetch_bucket_size: Elements = 50_000_000
    """ZeRO 3: largest number of parameter elements that are gathered before they are used."""
    stage3_param_persistence_threshold: Elements = 100_000
    """ZeRO 3: number of elements below which a parameter is not sharded."""
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format in which gradients are summed between data-parallel ranks."""
    prescale_gradients: bool = False
    """Whether gradients are divided before they are summed instead of after; ZeRO 0 only."""
    wall_clock_breakdown: Annotated[bool, WithoutEffect()] = False
    """Whether DeepSpeed's own timers are logged. They make the host wait for the device in every part of a
    step.
    """
    steps_per_print: Annotated[PositiveSteps | None, WithoutEffect()] = None
    """Steps between DeepSpeed's own reports; null turns them off, because nbtrain writes its own. With
    reports on, DeepSpeed waits for the device before and after each micro-batch.
    """
    elastic_checkpoint: bool = False
    """DeepSpeed's older way to load a checkpoint on a different number of ranks. It is not supported, because
    every checkpoint of nbtrain loads into any layout.
    """
    process_group_timeout_seconds: Annotated[float, Field(ge=1, le=2_592_000), WithoutEffect()] = 600.0
    """Seconds that a collective may wait before its rank ends; at most 30 days."""
    deepspeed_extra: dict[str, Any] = {}
    """DeepSpeed keys for which nbtrain has no field. Keys that nbtrain sets itself are refused."""

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the complete state: ZeRO 0 without tensor and pipeline parallelism."""
        return self.zero_stage == 0 and self.tensor_parallel_size == self.pipeline_parallel_size == 1

    @property
    def sequence_ranks(self) -> int:
        """Number of ranks that share each sequence, by Ulysses or by context parallelism."""
        return self.ds_sequence_parallel_size * self.context_parallel_size

    @property
    def data_axis_size(self) -> int:
        """Number of ranks that hold the same weights and receive different tokens: the data-parallel ranks
        times those that share each sequence.
        """
        return self.data_parallel_size * self.sequence_ranks
