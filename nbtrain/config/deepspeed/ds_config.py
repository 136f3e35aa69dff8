"""DeepSpeed's configuration, derived from the run's. No other module writes DeepSpeed's keys.

Decisions that are made here, and their reasons:
- ZeRO 0 is for fp32 only. With bf16 or fp16, DeepSpeed's stage 0 makes a dummy optimizer step at start, so
  that Adam's bias correction is wrong from the first step on.
- Gradients are summed over micro batches in fp32, whatever the format of the weights, and over ranks in
  communication_data_type. With bf16 weights, stage 1 is DeepSpeed's BF16_Optimizer, with or without a
  pipeline: it reduces the fp32 sums once a step and ignores the bucket sizes. With offloading, stage 1 uses
  the optimizer of stage 2.
- With precision.autocast, DeepSpeed sees an fp32 model, and the model itself casts its weights.
- There is no `optimizer` key. The engine gets torch's AdamW, whose kernel needs no compiler even with
  offloading, or nbtrain's Muon.
- DeepSpeed does not know that Ulysses and context parallelism split each sequence between ranks. It treats
  these ranks as data-parallel ranks with other tokens, and counts the batch over all of them.
- A pipeline sends complete activations. DeepSpeed would shard them across the tensor-parallel ranks, as if
  all of these ranks held the same activations, which is not so with Megatron's sequence parallelism. The list
  of layers does its own recomputation.
- No bucket is larger than all parameters of a rank. DeepSpeed allocates its reduce buffers in full size (two
  with overlap_comm, of 2 GB each at 5e8 fp32 elements), however few gradients there are.
- A buffer for parameters on NVMe holds a rank's shard of the largest parameter. DeepSpeed gives its buffers
  the configured size without checking whether a parameter is larger.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import Finding
from nbtrain.config.arithmetic.parameters import count_stage_parameters, largest_parameter
from nbtrain.config.findings import mistake
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.parallel_section import OffloadConfig

# Turns DeepSpeed's own step reports off, because the trainer writes nbtrain's.
_NEVER = 2**31
# A bucket that is limited to a rank's parameters is rounded up to a multiple of this. DeepSpeed requires an
# even number.
BUCKET_MULTIPLE = 2**20

# Keys that DeepSpeed 0.19.8 reads at the top of its configuration (runtime/config.py, DeepSpeedConfig). It
# ignores every other key without a warning. tests/config/deepspeed/test_ds_config.py compares this list with
# DeepSpeed's code.
_KNOWN = """
activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet comms_logger
communication_data_type compile compression_training csv_monitor curriculum_learning data_efficiency
data_types dataloader_drop_last datastates_ckpt disable_allgather disable_python_gc dump_state eigenvalue
elasticity expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
gradient_clipping gradient_predivide_factor graph_harvesting hybrid_engine log_level
managed_gradient_accumulation memory_breakdown nebula optimizer pipeline prescale_gradients
progressive_layer_drop quantize_training scheduler seq_parallel_communication_data_type sparse_attention
sparse_gradients steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size
train_micro_batch_size_per_gpu use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown
wandb weight_quantization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
"""
KNOWN_KEYS = tuple(_KNOWN.split())


def deepspeed_config(config: RunConfig) -> dict[str, Any]:
    """Return the dictionary for deepspeed.initialize.

    Raises ConfigError if parallel.deepspeed_extra sets keys that nbtrain derives, or if the run has ZeRO 0
    with 16-bit weights.
    """
    derived = derived_config(config)
    refuse(collisions(config, derived), ConfigError)
    return _merged(derived, config.parallel.deepspeed_extra)


def derived_config(config: RunConfig) -> dict[str, Any]:
    """Return the part of DeepSpeed's configuration that nbtrain derives from the run's fields.

    parallel.deepspeed_extra is not included. Raises ConfigError for ZeRO 0 with 16-bit weights.
    """
    parallel, precision = config.parallel, config.precision
    bf16 = precision.dtype == "bf16" and not precision.autocast
    fp16 = precision.dtype == "fp16"
    if parallel.zero_stage == 0 and (bf16 or fp16):
        raise ConfigError(
            f"{config.where('parallel.zero_stage')}: parallel.zero_stage = 0 with 16-bit weights "
            f"(precision.dtype = {precision.dtype}) trains incorrectly in DeepSpeed. Set zero_stage: 1, "
            "which costs nothing, or precision.dtype: fp32."
        )
    derived: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.batch.micro_batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
        "train_batch_size": config.batch.global_batch_size * parallel.sequence_ranks,
        "gradient_clipping": config.optimizer.clip_grad,
        "prescale_gradients": parallel.prescale_gradients,
        "steps_per_print": parallel.steps_per_print or _NEVER,
        "wall_clock_breakdown": parallel.wall_clock_breakdown,
        # DeepSpeed's own throughput timer waits for the device before and after every micro-batch.
        "timers": {"throughput": {"enabled": parallel.steps_per_print is not None}},
        "communication_data_type": parallel.communication_data_type,
        "zero_force_ds_cpu_optimizer": False,
        # DeepSpeed recognizes AdamW by its class, but does not know nbtrain's Muon.
        **({"zero_allow_untested_optimizer": True} if config.optimizer.type == "Muon" else {}),
        "zero_optimization": _zero_optimization(config),
    }
    if parallel.pipeline_parallel_size > 1:
        derived["pipeline"] = {
            "pipe_partitioned": False,
            "grad_partitioned": False,
            "activation_checkpoint_interval": 0,
        }
    if bf16:
        derived["bf16"] = {"enabled": True}
        derived["data_types"] = {"grad_accum_dtype": "fp32"}
    if fp16:
        scale = precision.fp16
        derived["fp16"] = {
            "enabled": True,
            "loss_scale": scale.loss_scale,
            "initial_scale_power": scale.initial_scale_power,
            "loss_scale_window": scale.loss_scale_window,
            "hysteresis": scale.hysteresis,
            "min_loss_scale": scale.min_loss_scale,
        }
        derived["data_types"] = {"grad_accum_dtype": "fp32"}
    return derived


def _zero_optimization(config: RunConfig) -> dict[str, Any]:
    parallel = config.parallel
    zero: dict[str, Any] = {
        "stage": parallel.zero_stage,
        # The pipeline engine reduces after its last micro-batch, and warns if overlap is requested. A single
        # rank on the data axis has nothing to send, but would allocate a second buffer and wait for the
        # device.
        "overlap_comm": parallel.overlap_comm
        and parallel.zero_stage > 0
        and parallel.pipeline_parallel_size == 1
        and parallel.data_axis_size > 1,
        "contiguous_gradients": parallel.contiguous_gradients,
        "reduce_scatter": parallel.reduce_scatter,
        "reduce_bucket_size": bucket_elements(config, parallel.reduce_bucket_size),
        "allgather_bucket_size": bucket_elements(config, parallel.allgather_bucket_size),
        "sub_group_size": parallel.sub_group_size,
        "stage3_max_live_parameters": parallel.stage3_max_live_parameters,
        "stage3_prefetch_bucket_size": parallel.stage3_prefetch_bucket_size,
        "stage3_param_persistence_threshold": parallel.stage3_param_persistence_threshold,
        "zero_hpz_partition_size": config.zero_hpz_partition_size if parallel.zero_hpz else 1,
        "zero_quantized_weights": parallel.zero_quantized_weights,
        "zero_quantized_gradients": parallel.zero_quantized_gradients,
        "elastic_checkpoint": parallel.elastic_checkpoint,
    }
    if parallel.offload_optimizer.device != "none":
        zero["offload_optimizer"] = _offload(parallel.offload_optimizer, config.name)
    if parallel.offload_param.device != "none":
        zero["offload_param"] = _offload(parallel.offload_param, config.name)
        if parallel.offload_param.device == "nvme":
            zero["offload_param"]["buffer_size"] = nvme_buffer_elements(config)
    return zero


def _offload(offload: OffloadConfig, run: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"device": offload.device, "pin_memory": offload.pin_memory}
    if offload.device == "nvme":
        assert offload.nvme_path is not None
        # DeepSpeed separates the files of ranks but not of runs, so two runs would share files.
        folder = str(Path(offload.nvme_path) / run)
        settings |= {"nvme_path": folder, "buffer_count": offload.buffer_count}
    return settings


def nvme_buffer_elements(config: RunConfig) -> int:
    """Return the number of elements in one buffer for parameters on NVMe.

    A buffer holds a rank's shard of the largest parameter.
    """
    return -(-largest_parameter(config) // config.parallel.data_axis_size)


def bucket_elements(config: RunConfig, asked: int) -> int:
    """Return the bucket size, in elements, for a run that sets `asked` elements.

    The size is at most the number of parameters of the largest pipeline stage. A bucket that holds all
    gradients is emptied once, at the end, just as a larger one would be: the sums are equal bit for bit.
    """
    stages = range(config.parallel.pipeline_parallel_size)
    count = max(count_stage_parameters(config, stage).total for stage in stages)
    return min(asked, -(-count // BUCKET_MULTIPLE) * BUCKET_MULTIPLE)


def collisions(
    config: RunConfig, derived: dict[str, Any], extra: dict[str, Any] | None = None, prefix: str = ""
) -> Iterator[Finding]:
    """Yield a finding for every key in parallel.deepspeed_extra that nbtrain itself derives."""
    for key, value in (config.parallel.deepspeed_extra if extra is None else extra).items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and isinstance(derived.get(key), dict):
            yield from collisions(config, derived[key], value, f"{dotted}.")
        elif key in derived:
            yield mistake(
                config,
                f"parallel.deepspeed_extra.{dotted}",
                f"parallel.deepspeed_extra sets {dotted}, which nbtrain derives as {derived[key]!r}.",
                "Remove the key, and change the field of the run from which nbtrain derives it.",
            )


def _merged(derived: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(derived)
    for key, value in extra.items():
        is_section = isinstance(value, dict) and isinstance(derived.get(key), dict)
        merged[key] = _merged(derived[key], value) if is_section else value
    return merged
