"""The one place that spells DeepSpeed's keys: its configuration is derived from the run's, never written.

What is decided here, and why:
- ZeRO 0 in fp32 only: with bf16 or fp16 DeepSpeed's stage 0 makes a dummy optimizer step at start, so that
  Adam's bias correction is wrong from the first step on.
- gradients are summed over micro batches and over ranks in fp32, whatever the format of the weights.
- with precision.autocast DeepSpeed sees an fp32 model; the model casts by itself.
- no `optimizer` key: the engine is given torch's AdamW, whose kernel needs no compiler.
- no bucket is larger than all parameters of a rank: DeepSpeed makes its reduce buffers as large as it is told (two
  of them with overlap_comm, of 2 GB each at 5e8 elements in fp32), however few gradients there are to put in.
"""

from typing import Any

from nbtrain.config.parameters import count_stage_parameters
from nbtrain.config.schema import RunConfig
from nbtrain.errors import ConfigError

# DeepSpeed's own step reports; ours are written by the trainer.
_NEVER = 2**31
# Buckets cut down to a rank's parameters are a multiple of this; DeepSpeed wants an even number.
_BUCKET_MULTIPLE = 2**20


def deepspeed_config(config: RunConfig) -> dict[str, Any]:
    """The dictionary for deepspeed.initialize.

    Raises ConfigError where parallel.deepspeed_extra sets a key that is derived, or where ZeRO 0 is asked for
    with 16-bit weights.
    """
    parallel, precision = config.parallel, config.precision
    bf16 = precision.dtype == "bf16" and not precision.autocast
    fp16 = precision.dtype == "fp16"
    if parallel.zero_stage == 0 and (bf16 or fp16):
        raise ConfigError(
            f"{config.where('parallel.zero_stage')}: parallel.zero_stage = 0 with 16-bit weights "
            f"(precision.dtype = {precision.dtype}) trains wrongly in DeepSpeed; set zero_stage: 1, "
            "which costs nothing, or precision.dtype: fp32."
        )
    derived: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.batch.micro_batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
        "train_batch_size": config.batch.global_batch_size,
        "gradient_clipping": config.optimizer.clip_grad,
        "prescale_gradients": False,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": parallel.zero_stage,
            "overlap_comm": parallel.overlap_comm and parallel.zero_stage > 0,
            "contiguous_gradients": parallel.contiguous_gradients,
            "reduce_bucket_size": bucket_elements(config, parallel.reduce_bucket_size),
            "allgather_bucket_size": bucket_elements(config, parallel.allgather_bucket_size),
        },
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
    return _with_extra(derived, parallel.deepspeed_extra, config)


def bucket_elements(config: RunConfig, asked: int) -> int:
    """A bucket of `asked` elements, but of no more than hold all parameters of the fullest pipeline stage.

    A bucket that holds them all is emptied once, at the end, as every larger one is: the sums are the same, bit by bit.
    """
    stages = range(config.parallel.pipeline_parallel_size)
    count = max(count_stage_parameters(config, stage).total for stage in stages)
    return min(asked, -(-count // _BUCKET_MULTIPLE) * _BUCKET_MULTIPLE)


def _with_extra(
    derived: dict[str, Any], extra: dict[str, Any], config: RunConfig, prefix: str = ""
) -> dict[str, Any]:
    merged = dict(derived)
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(derived.get(key), dict):
            merged[key] = _with_extra(derived[key], value, config, f"{prefix}{key}.")
        elif key in derived:
            raise ConfigError(
                f"{config.where('parallel.deepspeed_extra')}: parallel.deepspeed_extra sets {prefix}{key}, which "
                f"nbtrain derives as {derived[key]!r}. Take it out, and change the field it comes from."
            )
        else:
            merged[key] = value
    return merged
