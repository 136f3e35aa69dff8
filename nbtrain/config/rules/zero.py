"""Rules of ZeRO, of number formats and of DeepSpeed's own keys: one function for each rule.

Which kinds of parallelism, offloading and formats go together is in combinations.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

from nbtrain.base.text.nearest import nearest
from nbtrain.config.deepspeed.ds_config import KNOWN_KEYS, collisions, derived_config
from nbtrain.config.deepspeed.known_keys import UNKNOWN_KEY, key_problems, nearest_key
from nbtrain.config.findings import mistake
from nbtrain.config.rules.combinations import kinds_go_together, kinds_have_what_they_need
from nbtrain.config.rules.layout import layers_fill_the_stages
from nbtrain.config.rules.limits import hpz_partition, prescaled_gradients, problems_of
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.parallel_section import ParallelConfig

# An optimizer's group in NVMe's buffers: parameters, their gradients and Adam's two moments.
NVME_OPTIMIZER_BUFFERS = 4


def offload_has_its_place(config: RunConfig) -> Problems:
    """NVMe has a folder and enough buffers. Without offloading, its settings are not set."""
    for name in ("offload_optimizer", "offload_param"):
        key, offload = f"parallel.{name}", getattr(config.parallel, name)
        if offload.device == "nvme" and not offload.nvme_path:
            yield broken(
                config,
                f"{key}.device",
                f"needs {name}.nvme_path, a folder on a local NVMe disk; or set device: cpu.",
            )
        if offload.device != "nvme" and offload.nvme_path:
            yield broken(
                config,
                f"{key}.nvme_path",
                f"is for device: nvme, but device is {offload.device}.",
                "Set device: nvme, or nvme_path: null.",
            )
        if offload.pin_memory and offload.device == "none":
            yield broken(
                config,
                f"{key}.pin_memory",
                "is for device: cpu or nvme, but device is none.",
                "Set pin_memory: false.",
            )
        if offload.pin_memory and config.resources.device == "cpu":
            yield broken(
                config,
                f"{key}.pin_memory",
                "makes copies between host and GPU faster, but resources.device is cpu.",
                "Set pin_memory: false.",
            )
    offload = config.parallel.offload_optimizer
    if offload.device == "nvme" and offload.buffer_count < NVME_OPTIMIZER_BUFFERS:
        yield broken(
            config,
            "parallel.offload_optimizer.buffer_count",
            f"must be at least {NVME_OPTIMIZER_BUFFERS}: masters, gradients and Adam's two moments.",
        )


def initial_weights_have_masters(config: RunConfig) -> Problems:
    """With init_from, state is not on NVMe: initial weights are written to masters in memory, not to swap
    files.
    """
    for name in ("offload_optimizer", "offload_param"):
        if config.init_from is not None and getattr(config.parallel, name).device == "nvme":
            yield broken(
                config,
                f"parallel.{name}.device",
                "with init_from: initial weights are not read into state on NVMe.",
                "Set device: cpu.",
            )


def hpz_divides(config: RunConfig) -> Problems:
    """ZeRO++'s second copy is sharded across equal groups of ranks."""
    parallel = config.parallel
    if parallel.zero_hpz_partition_size is not None and not parallel.zero_hpz:
        yield broken(
            config,
            "parallel.zero_hpz_partition_size",
            "is for zero_hpz: true, but zero_hpz is false.",
            "Set it to null, or set zero_hpz: true.",
        )
    # null means a machine's ranks, which divide unless another rule is broken, which reports it.
    if parallel.zero_hpz and (size := parallel.zero_hpz_partition_size) is not None:
        yield from problems_of(config, hpz_partition(size, parallel.data_axis_size))


def quantized_gradients_are_scattered(config: RunConfig) -> Problems:
    """Quantized gradients need reduce_scatter, because DeepSpeed quantizes them only there."""
    parallel = config.parallel
    if parallel.zero_quantized_gradients and not parallel.reduce_scatter:
        yield broken(
            config,
            "parallel.reduce_scatter",
            "must be true with zero_quantized_gradients: DeepSpeed quantizes gradients in its "
            "reduce-scatter only.",
        )


def prescale_is_without_zero(config: RunConfig) -> Problems:
    """prescale_gradients is off with ZeRO, which divides gradients only after their sum."""
    parallel = config.parallel
    if parallel.prescale_gradients:
        broken = prescaled_gradients(parallel.zero_stage, parallel.communication_data_type)
        yield from problems_of(config, broken)


def elastic_checkpoint_is_not_needed(config: RunConfig) -> Problems:
    """DeepSpeed's elastic checkpoints are off. Files for Megatron-DeepSpeed set this key, so the message says
    why.
    """
    if config.parallel.elastic_checkpoint:
        yield broken(
            config,
            "parallel.elastic_checkpoint",
            "is DeepSpeed's older way to load on another number of ranks.",
            "Set it to false: every checkpoint of nbtrain loads into any layout (docs/parallelism.md).",
        )


def autocast_is_bf16(config: RunConfig) -> Problems:
    """Autocast is for bf16 only, because it keeps fp32 weights and has no loss scale."""
    precision = config.precision
    if precision.autocast and precision.dtype != "bf16":
        yield broken(
            config,
            "precision.autocast",
            f"needs precision.dtype: bf16, but precision.dtype is {precision.dtype}.",
            "Set dtype: bf16, or autocast: false.",
        )


def loss_scale_has_room(config: RunConfig) -> Problems:
    """The initial loss scale is at least the minimum."""
    scale = config.precision.fp16
    if config.precision.dtype != "fp16":
        return
    start = scale.loss_scale or 2.0**scale.initial_scale_power
    if start < scale.min_loss_scale:
        key = "loss_scale" if scale.loss_scale else "initial_scale_power"
        yield broken(
            config,
            f"precision.fp16.{key}",
            f"starts the loss scale at {start:g}, below min_loss_scale({scale.min_loss_scale:g}).",
        )


# Keys that nbtrain does not set in DeepSpeed's configuration on purpose, and the field that decides instead.
DECIDED_ELSEWHERE = {
    "optimizer": "optimizer",
    "scheduler": "lr_schedule",
    "fp16": "precision",
    "bf16": "precision",
    "amp": "precision",
    "torch_autocast": "precision.autocast",
    "data_types": "precision",
    "gradient_accumulation_dtype": "precision",
    "activation_checkpointing": "parallel.activation_checkpointing",
    "tensor_parallel": "parallel.tensor_parallel_size",
    "sequence_parallel_size": "parallel.ds_sequence_parallel_size",
    "data_parallel_size": "parallel.data_parallel_size",
    "pipeline": "parallel.pipeline_parallel_size",
    "checkpoint": "checkpoint",
    "compile": "model.compile",
    "tensorboard": "logging",
    "elasticity": "parallel.data_parallel_size",
    "zero_optimization.offload_optimizer": "parallel.offload_optimizer",
    "zero_optimization.offload_param": "parallel.offload_param",
    "zero_optimization.cpu_offload": "parallel.offload_optimizer",
    "zero_optimization.cpu_offload_param": "parallel.offload_param",
}


def _decided(extra: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in extra.items():
        if f"{prefix}{key}" in DECIDED_ELSEWHERE:
            yield f"{prefix}{key}", DECIDED_ELSEWHERE[f"{prefix}{key}"]
        elif isinstance(value, dict):
            yield from _decided(value, f"{prefix}{key}.")


def muon_finds_its_matrices(config: RunConfig) -> Problems:
    """With Muon, DeepSpeed must keep parameters in their original order."""
    extra = config.parallel.deepspeed_extra.get("zero_optimization")
    key = "round_robin_gradients"
    if config.optimizer.type == "Muon" and isinstance(extra, dict) and extra.get(key):
        yield mistake(
            config,
            f"parallel.deepspeed_extra.zero_optimization.{key}",
            f"parallel.deepspeed_extra sets zero_optimization.{key}, with which DeepSpeed reorders "
            "parameters, so that Muon would not find its matrices.",
            "Remove it, or set optimizer.type: AdamW.",
        )


def _is_below(path: str, above: list[str]) -> bool:
    return any(f"{path}.".startswith(f"{key}.") for key in above)


def deepspeed_extra_is_extra(config: RunConfig) -> Problems:
    """Every key in deepspeed_extra is one that DeepSpeed reads and no field sets, with a value that DeepSpeed
    accepts.
    """
    extra = config.parallel.deepspeed_extra
    decided = sorted(_decided(extra))
    for key, owner in decided:
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{key}",
            f"parallel.deepspeed_extra sets {key}, which {owner} decides.",
            "Remove it from deepspeed_extra and change the field.",
        )
    unknown = [key for key in extra if key not in KNOWN_KEYS and key not in DECIDED_ELSEWHERE]
    for key in unknown:
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{key}",
            f"parallel.deepspeed_extra sets {key}, which "
            f"DeepSpeed does not read.{nearest(key, KNOWN_KEYS)} Remove it, or correct its name.",
        )
    inside = [
        problem for problem in key_problems(extra) if not _is_below(problem.key, [key for key, _ in decided])
    ]
    for problem in inside:
        near = nearest_key(problem.key) if problem.rule == UNKNOWN_KEY else ""
        own = f" parallel.{near} sets {near}." if near in ParallelConfig.model_fields else ""
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{problem.key}",
            f"parallel.deepspeed_extra sets {problem.key}, which {problem.message}{own}",
        )
    # Broken layouts and stages, which other rules report, have no derived configuration.
    reported = any(kinds_go_together(config)) or any(layers_fill_the_stages(config))
    if extra and not decided and not unknown and not inside and not reported:
        yield from collisions(config, derived_config(config))


ZERO_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    kinds_have_what_they_need,
    kinds_go_together,
    offload_has_its_place,
    initial_weights_have_masters,
    hpz_divides,
    quantized_gradients_are_scattered,
    prescale_is_without_zero,
    elastic_checkpoint_is_not_needed,
    autocast_is_bf16,
    loss_scale_has_room,
    deepspeed_extra_is_extra,
    muon_finds_its_matrices,
)
