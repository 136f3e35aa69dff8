"""Rules about ZeRO, number formats and DeepSpeed's own keys: one function for each rule.

combinations.py has the rules about which kinds of parallelism, offloading and formats can be combined.
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

# Minimum number of buffers for an optimizer on NVMe: master weights, gradients and Adam's two moments.
NVME_OPTIMIZER_BUFFERS = 4


def offload_has_its_place(config: RunConfig) -> Problems:
    """Check that offloading to NVMe has a folder and enough buffers.

    The other settings for offloading must not be set if offloading is off.
    """
    for name in ("offload_optimizer", "offload_param"):
        key, offload = f"parallel.{name}", getattr(config.parallel, name)
        if offload.device == "nvme" and not offload.nvme_path:
            yield broken(
                config,
                f"{key}.device",
                f"needs {name}.nvme_path. Set nvme_path to a folder on a local NVMe disk, or set device: "
                "cpu.",
            )
        if offload.device != "nvme" and offload.nvme_path:
            yield broken(
                config,
                f"{key}.nvme_path",
                f"applies only to device: nvme, but {name}.device is {offload.device}.",
                "Set device: nvme, or set nvme_path: null.",
            )
        if offload.pin_memory and offload.device == "none":
            yield broken(
                config,
                f"{key}.pin_memory",
                f"applies only to device: cpu or nvme, but {name}.device is none.",
                "Set pin_memory: false.",
            )
        if offload.pin_memory and config.resources.device == "cpu":
            yield broken(
                config,
                f"{key}.pin_memory",
                "speeds up copies between host and GPU, but resources.device is cpu.",
                "Set pin_memory: false.",
            )
    offload = config.parallel.offload_optimizer
    if offload.device == "nvme" and offload.buffer_count < NVME_OPTIMIZER_BUFFERS:
        yield broken(
            config,
            "parallel.offload_optimizer.buffer_count",
            f"must be at least {NVME_OPTIMIZER_BUFFERS}: one buffer each for master weights, gradients and "
            "Adam's two moments.",
        )


def initial_weights_have_masters(config: RunConfig) -> Problems:
    """Check that a run with init_from keeps its state off NVMe.

    Initial weights are copied to master weights in memory, not to swap files.
    """
    for name in ("offload_optimizer", "offload_param"):
        if config.init_from is not None and getattr(config.parallel, name).device == "nvme":
            yield broken(
                config,
                f"parallel.{name}.device",
                "cannot be combined with init_from, because initial weights cannot be loaded into state on "
                "NVMe.",
                f"Set {name}.device: cpu and {name}.nvme_path: null.",
            )


def hpz_divides(config: RunConfig) -> Problems:
    """Check that the ranks divide into the groups that shard ZeRO++'s second copy of the weights."""
    parallel = config.parallel
    if parallel.zero_hpz_partition_size is not None and not parallel.zero_hpz:
        yield broken(
            config,
            "parallel.zero_hpz_partition_size",
            "applies only to zero_hpz: true, but zero_hpz is false.",
            "Set zero_hpz: true, or set zero_hpz_partition_size: null.",
        )
    # With null, the number of ranks on a machine is used. If it does not divide the ranks, the rule about the
    # number of machines reports an error.
    if parallel.zero_hpz and (size := parallel.zero_hpz_partition_size) is not None:
        yield from problems_of(config, hpz_partition(size, parallel.data_axis_size))


def quantized_gradients_are_scattered(config: RunConfig) -> Problems:
    """Check that quantized gradients use reduce_scatter.

    DeepSpeed quantizes gradients in no other collective.
    """
    parallel = config.parallel
    if parallel.zero_quantized_gradients and not parallel.reduce_scatter:
        yield broken(
            config,
            "parallel.reduce_scatter",
            "must be true with zero_quantized_gradients: true, because DeepSpeed quantizes gradients only "
            "in its reduce-scatter.",
        )


def prescale_is_without_zero(config: RunConfig) -> Problems:
    """Check that prescale_gradients is off with ZeRO, which divides gradients only after summing them."""
    parallel = config.parallel
    if parallel.prescale_gradients:
        broken = prescaled_gradients(parallel.zero_stage, parallel.communication_data_type)
        yield from problems_of(config, broken)


def elastic_checkpoint_is_not_needed(config: RunConfig) -> Problems:
    """Check that DeepSpeed's elastic checkpoints are off.

    Files for Megatron-DeepSpeed often set this key, so the message explains why nbtrain does not need it.
    """
    if config.parallel.elastic_checkpoint:
        yield broken(
            config,
            "parallel.elastic_checkpoint",
            "turns on DeepSpeed's older format for loading a checkpoint on another number of ranks.",
            "Set elastic_checkpoint: false. Every nbtrain checkpoint loads into any layout "
            "(docs/parallelism.md).",
        )


def autocast_is_bf16(config: RunConfig) -> Problems:
    """Check that autocast is used with bf16 only.

    With fp32, there is nothing to cast. With fp16, the run would need a loss scale, which autocast does not
    have.
    """
    precision = config.precision
    if precision.autocast and precision.dtype != "bf16":
        yield broken(
            config,
            "precision.autocast",
            f"needs precision.dtype: bf16, but precision.dtype is {precision.dtype}.",
            "Set precision.dtype: bf16, or set precision.autocast: false.",
        )


def loss_scale_has_room(config: RunConfig) -> Problems:
    """Check that the initial loss scale is at least min_loss_scale."""
    scale = config.precision.fp16
    if config.precision.dtype != "fp16":
        return
    start = scale.loss_scale or 2.0**scale.initial_scale_power
    if start < scale.min_loss_scale:
        key = "loss_scale" if scale.loss_scale else "initial_scale_power"
        yield broken(
            config,
            f"precision.fp16.{key}",
            f"starts the loss scale at {start:g}, but it must be at least "
            f"min_loss_scale({scale.min_loss_scale:g}).",
        )


# {key of DeepSpeed's configuration that deepspeed_extra must not set: the field that controls it instead}
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
    """Check that DeepSpeed keeps parameters in their original order if the optimizer is Muon."""
    extra = config.parallel.deepspeed_extra.get("zero_optimization")
    key = "round_robin_gradients"
    if config.optimizer.type == "Muon" and isinstance(extra, dict) and extra.get(key):
        yield mistake(
            config,
            f"parallel.deepspeed_extra.zero_optimization.{key}",
            f"parallel.deepspeed_extra sets zero_optimization.{key}, which makes DeepSpeed reorder "
            "parameters, so that Muon could not find its matrices.",
            f"Remove {key}, or set optimizer.type: AdamW.",
        )


def _is_below(path: str, above: list[str]) -> bool:
    return any(f"{path}.".startswith(f"{key}.") for key in above)


def deepspeed_extra_is_extra(config: RunConfig) -> Problems:
    """Check that DeepSpeed reads every key in deepspeed_extra and accepts its value.

    No field of the run may control the same key.
    """
    extra = config.parallel.deepspeed_extra
    decided = sorted(_decided(extra))
    for key, owner in decided:
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{key}",
            f"parallel.deepspeed_extra sets {key}, but nbtrain controls that key through the setting "
            f"{owner}.",
            f"Remove {key} from deepspeed_extra, and change {owner} instead.",
        )
    unknown = [key for key in extra if key not in KNOWN_KEYS and key not in DECIDED_ELSEWHERE]
    for key in unknown:
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{key}",
            f"parallel.deepspeed_extra sets {key}, which "
            f"DeepSpeed does not read.{nearest(key, KNOWN_KEYS)} Remove the key, or correct its name.",
        )
    inside = [
        problem for problem in key_problems(extra) if not _is_below(problem.key, [key for key, _ in decided])
    ]
    for problem in inside:
        near = nearest_key(problem.key) if problem.rule == UNKNOWN_KEY else ""
        own = f" To set {near}, use parallel.{near}." if near in ParallelConfig.model_fields else ""
        yield mistake(
            config,
            f"parallel.deepspeed_extra.{problem.key}",
            f"parallel.deepspeed_extra: {problem.message}{own}",
        )
    # No configuration can be derived from a layout that breaks other rules, which report it.
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
