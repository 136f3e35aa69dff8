"""Sections of a run YAML about devices: precision, recomputation, offloading, parallelism."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nbtrain.config.fields import (
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

# Megatron-LM starts there; the scaled loss is an fp32 number, which ends below 2 to the power of 128.
MOST_SCALE_POWER = 32


class LossScaleConfig(ConfigModel):
    """Loss scaling; read with precision.dtype: fp16 only."""

    loss_scale: Annotated[float, Field(ge=0, le=2.0**MOST_SCALE_POWER)] = 0.0
    """A fixed loss scale, or 0 for a dynamic one."""
    initial_scale_power: Annotated[int, Field(ge=0, le=MOST_SCALE_POWER)] = 11
    """The dynamic loss scale starts at 2 to this power."""
    loss_scale_window: PositiveSteps = 500
    """Steps without overflow after which the dynamic loss scale doubles."""
    hysteresis: PositiveSmallCount = 2
    """Overflows, in a row or not, until the dynamic loss scale halves; each one after that halves it again.
    The count begins anew when the scale doubles."""
    min_loss_scale: Annotated[int, Field(ge=1, le=2**MOST_SCALE_POWER)] = 1
    """The dynamic loss scale never falls below this; DeepSpeed wants a whole number."""


class PrecisionConfig(ConfigModel):
    """The number format of weights and activations."""

    dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Format of the matrix products. Loss, master weights and moments are always fp32."""
    autocast: bool = False
    """bf16 only: fp32 weights that each product casts, in place of bf16 weights with fp32 masters."""
    fp8: bool = False
    """bf16 only, from Hopper on: each block's linear layers multiply in FP8 (e4m3 forward, e5m2 backward)."""
    fp16: LossScaleConfig = LossScaleConfig()
    """Loss scaling of fp16."""


class ActivationCheckpointingConfig(ConfigModel):
    """Recompute activations in the backward pass instead of keeping them."""

    granularity: Literal["none", "selective", "full"] = "none"
    """selective recomputes what is large and cheap: the attention core and the MLP's activation. full keeps
    only the input of every `interval_layers` blocks."""
    interval_layers: Layers = 1
    """Blocks that are recomputed together, with granularity: full."""


class OffloadConfig(ConfigModel):
    """Where ZeRO keeps state that the device's memory does not hold."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """none keeps the state on the device, cpu in host memory, nvme in files under nvme_path (ZeRO 3 only)."""
    nvme_path: PathText | None = None
    """Folder on a local NVMe disk, for device: nvme."""
    pin_memory: bool = False
    """Page-locked host memory: copies are faster, and nothing else can use that memory."""
    buffer_count: PositiveSmallCount = 5
    """Buffers in host memory through which state on NVMe passes."""


class ParallelConfig(ConfigModel):
    """How the model and the batch are cut over the ranks; docs/parallelism.md says what goes together."""

    data_parallel_size: Ranks = 1
    """Copies of the model that take different samples; tensor and pipeline parallelism cut each copy."""
    tensor_parallel_size: Ranks = 1
    """Tensor parallelism: ranks that share each layer's matrices."""
    pipeline_parallel_size: Ranks = 1
    """Pipeline parallelism: stages, each of which holds consecutive layers."""
    pipeline_stage_layers: list[Layers] | None = None
    """Blocks of each pipeline stage, e.g. [7, 5]; null makes the slowest stage as fast as possible."""
    num_layers_per_virtual_pipeline_stage: Layers | None = None
    """Megatron's interleaved pipeline. Refused: see docs/parallelism.md."""
    sequence_parallel: bool = False
    """Megatron's sequence parallelism, inside the tensor-parallel group (arXiv:2205.05198)."""
    ds_sequence_parallel_size: Ranks = 1
    """Ulysses: ranks that share each sequence and its attention heads (arXiv:2309.14509)."""
    fpdt_chunk_tokens: ChunkTokens = 0
    """FPDT: attention and MLP take a long sequence in chunks of this many tokens (arXiv:2408.16978). GPU
    only; 0 is off."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What ZeRO divides among the data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3
    parameters too."""
    offload_optimizer: OffloadConfig = OffloadConfig()
    """ZeRO: where master weights and moments are kept. Off the device, the CPU makes the optimizer's step."""
    offload_param: OffloadConfig = OffloadConfig()
    """ZeRO 3: where parameters are kept between their uses."""
    zero_hpz: bool = False
    """ZeRO++ on stage 3: a second copy of the parameters, cut inside each machine (arXiv:2306.10209)."""
    zero_hpz_partition_size: Ranks | None = None
    """ZeRO++ on stage 3: ranks that share the second copy of the parameters; null: those of one machine."""
    zero_quantized_weights: bool = False
    """ZeRO++ on stage 3: gather parameters in INT8; GPU only."""
    zero_quantized_gradients: bool = False
    """ZeRO++ on stage 3: reduce gradients between machines in INT4; GPU only."""
    activation_checkpointing: ActivationCheckpointingConfig = ActivationCheckpointingConfig()
    """Activation checkpointing: less memory for more computation."""
    overlap_comm: bool = True
    """ZeRO: reduce gradients while the backward pass runs. A pipeline reduces them after it in any case, and
    one data-parallel rank has nothing to reduce."""
    contiguous_gradients: bool = True
    """ZeRO: copy gradients into one buffer as they are computed."""
    reduce_scatter: bool = True
    """ZeRO: reduce-scatter in place of all-reduce, so that each rank gets the sum of its own part only."""
    reduce_bucket_size: PositiveElements = 500_000_000
    """ZeRO: gradient elements reduced at once; never more than a rank has parameters."""
    allgather_bucket_size: PositiveElements = 500_000_000
    """ZeRO: parameter elements gathered at once; never more than a rank has parameters."""
    sub_group_size: PositiveElements = 1_000_000_000
    """ZeRO 3: parameter elements that the optimizer steps at once; fewer need less memory with offloading."""
    stage3_max_live_parameters: Elements = 1_000_000_000
    """ZeRO 3: most parameter elements that are gathered at one time."""
    stage3_prefetch_bucket_size: Elements = 50_000_000
    """ZeRO 3: most parameter elements that are gathered before they are used."""
    stage3_param_persistence_threshold: Elements = 100_000
    """ZeRO 3: parameters with fewer elements than this are not cut."""
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Format in which gradients are summed between data-parallel ranks."""
    prescale_gradients: bool = False
    """Divide gradients before they are summed in place of after it; ZeRO 0 only."""
    wall_clock_breakdown: bool = False
    """DeepSpeed's own timers, in the rank's log. They wait for the device in every part of a step."""
    steps_per_print: PositiveSteps | None = None
    """Steps between DeepSpeed's own reports; null leaves them out, because nbtrain writes its own. With them
    DeepSpeed waits for the device before and after each micro batch."""
    elastic_checkpoint: bool = False
    """DeepSpeed's older way to load on other ranks. Refused: checkpoints of nbtrain load into any layout."""
    process_group_timeout_seconds: Annotated[float, Field(ge=1, le=2_592_000)] = 600.0
    """A collective that waits longer than this ends the rank; at most 30 days."""
    deepspeed_extra: dict[str, Any] = {}
    """DeepSpeed keys that have no field here. A key that nbtrain derives is refused."""

    @property
    def data_axis_size(self) -> int:
        """Ranks that hold the same weights and take different tokens: data-parallel times Ulysses ranks."""
        return self.data_parallel_size * self.ds_sequence_parallel_size
