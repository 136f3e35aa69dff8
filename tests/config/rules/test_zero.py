"""The rules of zero.py at their limits: the last value that passes and the first that does not."""

import pytest

from nbtrain.config.load import load
from nbtrain.config.rules import zero

NVME = "parallel.offload_optimizer={device: nvme, nvme_path: /nvme}"
ON_CPU = "resources={device: cpu, gpu_type: null}"
FP16 = "precision.dtype=fp16"
# nbtrain derives train_batch_size from batch.
COLLIDING = "parallel.deepspeed_extra={train_batch_size: 3}"


def messages(rule: str, *overrides: str) -> list[str]:
    config = load("gpt-125m", list(overrides), check=False)
    return [str(finding) for finding in getattr(zero, rule)(config)]


@pytest.mark.parametrize(
    ("rule", "overrides"),
    [
        ("offload_has_its_place", [NVME, "parallel.offload_optimizer.buffer_count=4"]),
        ("offload_has_its_place", ["parallel.offload_optimizer={device: cpu, buffer_count: 3}"]),
        (
            "offload_has_its_place",
            ["parallel.offload_param={device: nvme, nvme_path: /nvme, buffer_count: 1}"],
        ),
        ("offload_has_its_place", ["parallel.offload_optimizer={device: cpu, pin_memory: true}"]),
        ("offload_has_its_place", [NVME, "parallel.offload_optimizer.pin_memory=true"]),
        ("offload_has_its_place", [ON_CPU, "parallel.offload_optimizer.device=cpu"]),
        ("hpz_divides", ["parallel={zero_hpz: true, data_parallel_size: 3}"]),
        ("hpz_divides", ["parallel={zero_hpz: true, data_parallel_size: 4, zero_hpz_partition_size: 2}"]),
        ("quantized_gradients_are_scattered", ["parallel.reduce_scatter=false"]),
        ("quantized_gradients_are_scattered", ["parallel.zero_quantized_gradients=true"]),
        ("prescale_is_without_zero", ["parallel={prescale_gradients: true, zero_stage: 0}"]),
        ("prescale_is_without_zero", ["parallel.zero_stage=1"]),
        ("elastic_checkpoint_is_not_needed", []),
        ("autocast_is_bf16", ["precision={autocast: true, dtype: bf16}"]),
        ("autocast_is_bf16", ["precision.dtype=fp32"]),
        ("loss_scale_has_room", [FP16, "precision.fp16={loss_scale: 8, min_loss_scale: 8}"]),
        ("loss_scale_has_room", [FP16, "precision.fp16={initial_scale_power: 3, min_loss_scale: 8}"]),
        ("loss_scale_has_room", [FP16, "precision.fp16={initial_scale_power: 11, min_loss_scale: 2048}"]),
        (
            "loss_scale_has_room",
            ["precision.dtype=bf16", "precision.fp16={loss_scale: 1, min_loss_scale: 8}"],
        ),
        ("deepspeed_extra_is_extra", ["parallel.deepspeed_extra={aio: {queue_depth: 2}, dump_state: true}"]),
        ("deepspeed_extra_is_extra", []),
    ],
)
def test_what_just_passes(rule, overrides):
    """Settings that are off, or exactly at the limit, pass."""
    assert messages(rule, *overrides) == []


@pytest.mark.parametrize(
    ("rule", "overrides", "words"),
    [
        ("offload_has_its_place", [NVME, "parallel.offload_optimizer.buffer_count=3"], "must be at least 4"),
        ("offload_has_its_place", ["parallel.offload_param.device=nvme"], "needs offload_param.nvme_path"),
        (
            "offload_has_its_place",
            ["parallel.offload_param={device: cpu, nvme_path: /n}"],
            "but offload_param.device is cpu.",
        ),
        (
            "offload_has_its_place",
            ["parallel.offload_param={device: none, nvme_path: /n}"],
            "but offload_param.device is none.",
        ),
        (
            "offload_has_its_place",
            ["parallel.offload_param.pin_memory=true"],
            "but offload_param.device is none.",
        ),
        (
            "offload_has_its_place",
            [ON_CPU, "parallel.offload_param={device: cpu, pin_memory: true}"],
            "resources.device is cpu.",
        ),
        ("hpz_divides", ["parallel.zero_hpz_partition_size=1"], "applies only to zero_hpz: true"),
        (
            "hpz_divides",
            [
                "parallel={zero_hpz: true, data_parallel_size: 2, ds_sequence_parallel_size: 3, "
                "zero_hpz_partition_size: 4}"
            ],
            "ds_sequence_parallel_size * context_parallel_size = 6; nearest: 3, 6.",
        ),
        (
            "quantized_gradients_are_scattered",
            ["parallel={zero_quantized_gradients: true, reduce_scatter: false}"],
            "must be true with zero_quantized_gradients",
        ),
        (
            "prescale_is_without_zero",
            ["parallel={prescale_gradients: true, zero_stage: 1}"],
            "but zero_stage is 1.",
        ),
        (
            "elastic_checkpoint_is_not_needed",
            ["parallel.elastic_checkpoint=true"],
            "Set elastic_checkpoint: false",
        ),
        ("autocast_is_bf16", ["precision={autocast: true, dtype: fp16}"], "precision.dtype is fp16."),
        (
            "loss_scale_has_room",
            [FP16, "precision.fp16={loss_scale: 7, min_loss_scale: 8}"],
            "fp16.loss_scale = 7",
        ),
        (
            "loss_scale_has_room",
            [FP16, "precision.fp16={initial_scale_power: 2, min_loss_scale: 8}"],
            "starts the loss scale at 4, but it must be at least min_loss_scale(8).",
        ),
        ("deepspeed_extra_is_extra", [COLLIDING], "sets train_batch_size, which nbtrain derives as"),
        (
            "deepspeed_extra_is_extra",
            ["parallel.deepspeed_extra={zero_optimization: {offload_param: {}}}"],
            "through the setting parallel.offload_param",
        ),
    ],
)
def test_what_just_does_not(rule, overrides, words):
    """A setting one step beyond the limit gives one message."""
    [message] = messages(rule, *overrides)
    assert words in message


@pytest.mark.parametrize(
    "broken",
    [
        "parallel={pipeline_parallel_size: 2, zero_stage: 2}",
        "parallel={pipeline_parallel_size: 13, zero_stage: 1}",
    ],
)
def test_a_broken_layout_is_reported_by_its_own_rule_alone(broken):
    """ZeRO 2 with a pipeline, or more stages than layers, is reported by one rule only."""
    assert messages("deepspeed_extra_is_extra", COLLIDING, broken) == []


def test_a_key_that_is_decided_or_unknown_is_reported_before_what_collides():
    """A reserved or unknown key is reported first; conflicts between keys are reported once that is fixed."""
    extra = "parallel.deepspeed_extra={train_batch_size: 3, %s}"
    [message] = messages("deepspeed_extra_is_extra", extra % "optimizer: {}")
    assert "sets optimizer" in message
    [message] = messages("deepspeed_extra_is_extra", extra % "foo: 1")
    assert "sets foo" in message
