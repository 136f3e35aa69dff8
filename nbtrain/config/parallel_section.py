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
    """fp16 only."""

    loss_scale: Annotated[float, Field(ge=0, le=2.0**MOST_SCALE_POWER)] = 0.0
    """A fixed scale, or 0 for a dynamic one."""
    initial_scale_power: Annotated[int, Field(ge=0, le=MOST_SCALE_POWER)] = 11
    """The dynamic scale starts at 2 to this power."""
    loss_scale_window: PositiveSteps = 500
    """Steps without overflow before the scale doubles."""
    hysteresis: PositiveSmallCount = 2
    """Overflows in a row before the scale halves."""
    min_loss_scale: Annotated[int, Field(ge=1, le=2**MOST_SCALE_POWER)] = 1
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
    interval_layers: Layers = 1
    """Blocks per recomputed piece."""


class OffloadConfig(ConfigModel):
    """Where ZeRO keeps something that a device's memory does not hold."""

    device: Literal["none", "cpu", "nvme"] = "none"
    """none: on the device; cpu: in host memory; nvme: in files under nvme_path, ZeRO 3 only."""
    nvme_path: PathText | None = None
    """A folder on a local NVMe disk."""
    pin_memory: bool = False
    """Page-locked host memory: faster copies, and memory that nothing else can use."""
    buffer_count: PositiveSmallCount = 5
    """Buffers for the traffic with NVMe."""


class ParallelConfig(ConfigModel):
    """How the model and the batch are cut over the ranks; what goes together stands in docs/parallelism.md."""

    data_parallel_size: Ranks = 1
    """Copies of the model (each cut by tensor and pipeline) that take different samples."""
    tensor_parallel_size: Ranks = 1
    """Ranks that share each layer's matrices."""
    pipeline_parallel_size: Ranks = 1
    """Ranks that each hold a run of layers."""
    pipeline_stage_layers: list[Layers] | None = None
    """Blocks of each pipeline stage; null cuts the layer list so that the slowest stage is as fast as it can be."""
    num_layers_per_virtual_pipeline_stage: Layers | None = None
    """Megatron's interleaved pipeline; refused, see docs/parallelism.md."""
    sequence_parallel: bool = False
    """Megatron sequence parallelism inside the tensor-parallel group."""
    ds_sequence_parallel_size: Ranks = 1
    """Ulysses: ranks that share each sequence, and its attention heads (arXiv:2309.14509)."""
    fpdt_chunk_tokens: ChunkTokens = 0
    """FPDT: attention and MLP of a long sequence in chunks of so many tokens (arXiv:2408.16978); GPU only, 0 is off."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What data-parallel ranks share out: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too."""
    offload_optimizer: OffloadConfig = OffloadConfig()
    """ZeRO: where masters and moments live; the step is then made on the CPU."""
    offload_param: OffloadConfig = OffloadConfig()
    """ZeRO 3: where parameters live between their uses."""
    zero_hpz: bool = False
    """ZeRO++ on stage 3: a second copy of the parameters, cut inside each machine (arXiv:2306.10209)."""
    zero_hpz_partition_size: Ranks | None = None
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
    reduce_bucket_size: PositiveElements = 500_000_000
    """ZeRO: elements reduced at once; never more than a rank has parameters."""
    allgather_bucket_size: PositiveElements = 500_000_000
    """ZeRO: elements gathered at once; never more than a rank has parameters."""
    sub_group_size: PositiveElements = 1_000_000_000
    """ZeRO 3: parameters stepped at once; smaller needs less memory with offloading."""
    stage3_max_live_parameters: Elements = 1_000_000_000
    """ZeRO 3: whole parameters held at one time."""
    stage3_prefetch_bucket_size: Elements = 50_000_000
    """ZeRO 3: elements gathered ahead of their use."""
    stage3_param_persistence_threshold: Elements = 100_000
    """ZeRO 3: parameters smaller than this stay whole."""
    communication_data_type: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Format in which gradients travel between data-parallel ranks."""
    prescale_gradients: bool = False
    """Divide gradients before their sum in place of after it; ZeRO 0 only."""
    wall_clock_breakdown: bool = False
    """DeepSpeed's own timers, to the rank's log; they wait for the device at every part of a step."""
    steps_per_print: PositiveSteps | None = None
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
