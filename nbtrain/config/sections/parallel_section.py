"""Sections of a run YAML about precision, recomputation, offloading and parallelism."""

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

# Megatron-LM's initial scale. The scaled loss is an fp32 number and must stay below 2 to the power of 128.
MOST_SCALE_POWER = 32


class LossScaleConfig(ConfigModel):
    """Loss scaling. Used only with precision.dtype: fp16."""

    loss_scale: Annotated[float, Field(ge=0, le=2.0**MOST_SCALE_POWER)] = 0.0
    """Fixed loss scale. 0 means dynamic loss scaling."""
    initial_scale_power: Annotated[int, Field(ge=0, le=MOST_SCALE_POWER)] = 11
    """Exponent of the initial dynamic loss scale, which is 2 to this power."""
    loss_scale_window: PositiveSteps = 500
    """Number of steps without overflow after which the dynamic loss scale doubles."""
    hysteresis: PositiveSmallCount = 2
    """Number of overflows, not necessarily consecutive, after which the dynamic loss scale is halved. Each
    further overflow halves it again. The count restarts when the scale doubles.
    """
    min_loss_scale: Annotated[int, Field(ge=1, le=2**MOST_SCALE_POWER)] = 1
    """Minimum dynamic loss scale. DeepSpeed requires a whole number."""


class PrecisionConfig(ConfigModel):
    """Number formats of weights and activations."""

    dtype: Annotated[Literal["fp32", "bf16", "fp16"], Binds()] = "bf16"
    """Number format of the matrix products. The loss, the master weights and the moments are always fp32."""
    autocast: Annotated[bool, Binds()] = False
    """Whether to keep the weights in fp32 and cast them to bf16 for each product, instead of keeping bf16
    weights with fp32 master weights. Only with bf16.
    """
    fp8: bool = False
    """Whether the linear layers of the transformer blocks multiply in FP8 (e4m3 in the forward pass, e5m2 in
    the backward pass). Only with bf16, on Hopper or newer GPUs.
    """
    fp16: LossScaleConfig = LossScaleConfig.model_construct()
    """Loss scaling for fp16."""


class ActivationCheckpointingConfig(ConfigModel):
    """Recomputation of activations in the backward pass, so that they need not be kept in memory."""

    granularity: Literal["none", "selective", "full"] = "none"
    """Activations to recompute in the backward pass. none recomputes nothing. selective recomputes
    activations that are large and cheap to compute: the attention core and the MLP's activation function.
    full keeps only the input of every `interval_layers` blocks and recomputes all other activations.
    """
    interval_layers: Layers = 1
    """Number of blocks that are recomputed together with granularity: full."""


class OffloadConfig(ConfigModel):
    """Place where ZeRO keeps state that does not fit into the device's memory."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """Place where the state is kept. none keeps it on the device, cpu in host memory, and nvme in files under
    nvme_path (ZeRO 3 only).
    """
    nvme_path: PathText | None = None
    """Folder on a local NVMe disk. Used with device: nvme."""
    pin_memory: bool = False
    """Whether to use page-locked host memory. Copies between host and device are then faster, but no other
    program can use that memory.
    """
    buffer_count: PositiveSmallCount = 5
    """Number of buffers in host memory through which state on NVMe is read and written."""


class ParallelConfig(ConfigModel):
    """Sharding of the model and the batch across the ranks. docs/parallelism.md lists the supported
    combinations.
    """

    data_parallel_size: Ranks = 1
    """Number of replicas of the model, each of which trains on different samples (data parallelism). Tensor
    and pipeline parallelism shard each replica.
    """
    tensor_parallel_size: Ranks = 1
    """Number of ranks across which each layer's matrices are sharded (tensor parallelism)."""
    pipeline_parallel_size: Ranks = 1
    """Number of pipeline stages, each of which holds consecutive layers (pipeline parallelism)."""
    pipeline_stage_layers: list[Layers] | None = None
    """Number of transformer blocks in each pipeline stage, e.g. [7, 5]. null makes the slowest stage as fast
    as possible.
    """
    num_layers_per_virtual_pipeline_stage: Layers | None = None
    """Megatron's interleaved pipeline, which is not supported: see docs/parallelism.md."""
    sequence_parallel: bool = False
    """Whether to use Megatron's sequence parallelism inside the tensor-parallel group (arXiv:2205.05198)."""
    ds_sequence_parallel_size: Ranks = 1
    """Number of ranks across which each sequence and its attention heads are sharded (Ulysses,
    arXiv:2309.14509).
    """
    context_parallel_size: Ranks = 1
    """Number of ranks across which each sequence is sharded. Each of these ranks gathers the keys and values
    of the sequence (context parallelism).
    """
    fpdt_chunk_tokens: ChunkTokens = 0
    """Chunk size, in tokens, with which attention and MLP process a long sequence (FPDT, arXiv:2408.16978).
    GPU only. 0 turns chunking off.
    """
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """ZeRO stage, which decides what is sharded across the data-parallel ranks: 0 nothing, 1 the optimizer
    state, 2 the gradients too, 3 the parameters too.
    """
    offload_optimizer: OffloadConfig = OffloadConfig.model_construct()
    """Place where ZeRO's master weights and moments are kept. If they are not on the device, the optimizer
    step runs on the CPU.
    """
    offload_param: OffloadConfig = OffloadConfig.model_construct()
    """ZeRO 3: place where parameters are kept between their uses."""
    zero_hpz: bool = False
    """Whether each machine keeps a secondary copy of the parameters, sharded across its ranks (ZeRO++ with
    stage 3, arXiv:2306.10209).
    """
    zero_hpz_partition_size: Ranks | None = None
    """Number of ranks across which the secondary copy of the parameters is sharded (ZeRO++ with stage 3).
    null means the ranks of one machine.
    """
    zero_quantized_weights: bool = False
    """Whether parameters are gathered in INT8 (ZeRO++ with stage 3). GPU only."""
    zero_quantized_gradients: bool = False
    """Whether gradients are reduced between machines in INT4 (ZeRO++ with stage 3). GPU only."""
    activation_checkpointing: ActivationCheckpointingConfig = ActivationCheckpointingConfig.model_construct()
    """Activation checkpointing: activations are recomputed, which saves memory but takes time."""
    overlap_comm: bool = True
    """ZeRO: whether gradients are reduced while the backward pass runs. A pipeline always reduces them after
    the backward pass, and a single data-parallel rank has nothing to reduce.
    """
    contiguous_gradients: bool = True
    """ZeRO: whether gradients are copied into one buffer as they are computed."""
    reduce_scatter: bool = True
    """ZeRO: whether gradients are reduced by reduce-scatter instead of all-reduce, so that each rank receives
    only its own shard of the sum.
    """
    reduce_bucket_size: PositiveElements = 500_000_000
    """ZeRO: number of gradient elements that are reduced at once, limited to the number of parameters on a
    rank.
    """
    allgather_bucket_size: PositiveElements = 500_000_000
    """ZeRO: number of parameter elements that are gathered at once, limited to the number of parameters on a
    rank.
    """
    sub_group_size: PositiveElements = 1_000_000_000
    """ZeRO 3: number of parameter elements that the optimizer updates at once. With offloading, a smaller
    number needs less memory.
    """
    stage3_max_live_parameters: Elements = 1_000_000_000
    """ZeRO 3: maximum number of parameter elements that are gathered at the same time."""
    stage3_prefetch_bucket_size: Elements = 50_000_000
    """ZeRO 3: maximum number of parameter elements that are gathered ahead of their use."""
    stage3_param_persistence_threshold: Elements = 100_000
    """ZeRO 3: size, in elements, below which a parameter is not sharded."""
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format in which gradients are summed across data-parallel ranks."""
    prescale_gradients: bool = False
    """Whether gradients are divided before they are summed instead of afterwards. ZeRO 0 only."""
    wall_clock_breakdown: Annotated[bool, WithoutEffect()] = False
    """Whether to log DeepSpeed's own timers. They make the host wait for the device in every part of a
    step.
    """
    steps_per_print: Annotated[PositiveSteps | None, WithoutEffect()] = None
    """Number of steps between DeepSpeed's own reports. With reports on, DeepSpeed waits for the device before
    and after each micro-batch. null turns them off, because nbtrain writes its own reports.
    """
    elastic_checkpoint: bool = False
    """DeepSpeed's older way to load a checkpoint on a different number of ranks. It is not supported, because
    every nbtrain checkpoint loads into any layout.
    """
    process_group_timeout_seconds: Annotated[float, Field(ge=1, le=2_592_000), WithoutEffect()] = 600.0
    """Seconds that a collective operation may take before its rank exits with an error. The maximum is 30
    days.
    """
    deepspeed_extra: dict[str, Any] = {}
    """Additional keys of DeepSpeed's configuration for which nbtrain has no field. Keys that nbtrain itself
    sets are refused.
    """

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the complete state: ZeRO 0 without tensor and pipeline parallelism."""
        return self.zero_stage == 0 and self.tensor_parallel_size == self.pipeline_parallel_size == 1

    @property
    def sequence_ranks(self) -> int:
        """Number of ranks across which each sequence is sharded, by Ulysses or by context parallelism."""
        return self.ds_sequence_parallel_size * self.context_parallel_size

    @property
    def data_axis_size(self) -> int:
        """Number of ranks that hold the same weights and receive different tokens.

        It is the number of data-parallel ranks times the number of ranks across which each sequence is
        sharded.
        """
        return self.data_parallel_size * self.sequence_ranks
