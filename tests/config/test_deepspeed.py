"""What DeepSpeed is told, derived from a run."""

import pytest

from nbtrain.config.deepspeed import deepspeed_config
from nbtrain.config.load import load
from nbtrain.errors import ConfigError


def config_of(**overrides):
    return load(
        "gpt-125m-2xdp", {key.replace("__", "."): value for key, value in overrides.items()}, check=False
    )


def test_batch_clipping_and_zero_come_from_the_run():
    derived = deepspeed_config(config_of())
    assert derived["train_batch_size"] == 256
    assert derived["train_micro_batch_size_per_gpu"] == 16
    assert derived["gradient_accumulation_steps"] == 8
    assert derived["gradient_clipping"] == 1.0
    assert derived["zero_optimization"]["stage"] == 2
    assert "optimizer" not in derived


@pytest.mark.parametrize(
    "dtype, autocast, enabled",
    [("fp32", False, None), ("bf16", True, None), ("bf16", False, "bf16"), ("fp16", False, "fp16")],
)
def test_precision(dtype, autocast, enabled):
    """Autocast is the model's business: DeepSpeed holds fp32. 16-bit weights get fp32 gradient sums."""
    derived = deepspeed_config(config_of(precision__dtype=dtype, precision__autocast=autocast))
    assert [key for key in ("bf16", "fp16") if key in derived] == ([enabled] if enabled else [])
    assert derived.get("data_types") == ({"grad_accum_dtype": "fp32"} if enabled else None)
    assert derived["communication_data_type"] == "fp32"


def test_zero_0_with_16_bit_weights_is_refused():
    """DeepSpeed would train with a wrong bias correction and say nothing."""
    with pytest.raises(ConfigError) as caught:
        deepspeed_config(config_of(parallel__zero_stage=0, precision__dtype="bf16"))
    assert str(caught.value) == (
        "override parallel.zero_stage=0: parallel.zero_stage = 0 with 16-bit weights (precision.dtype = bf16) trains "
        "wrongly in DeepSpeed; set zero_stage: 1, which costs nothing, or precision.dtype: fp32."
    )


def test_extra_keys_are_added_and_collisions_refused():
    extra = {"zero_optimization": {"round_robin_gradients": True}, "memory_breakdown": True}
    derived = deepspeed_config(config_of(parallel__deepspeed_extra=extra))
    assert derived["zero_optimization"]["round_robin_gradients"] is True
    assert derived["zero_optimization"]["stage"] == 2
    assert derived["memory_breakdown"] is True
    with pytest.raises(ConfigError) as caught:
        deepspeed_config(config_of(parallel__deepspeed_extra={"zero_optimization": {"stage": 3}}))
    assert str(caught.value).endswith(
        "parallel.deepspeed_extra sets zero_optimization.stage, which nbtrain derives as 2. Take it out, and change "
        "the field it comes from."
    )


@pytest.mark.parametrize(
    ("run", "overrides", "elements"),
    [
        ("gpt-125m", [], 121 * 2**20),  # 126,638,592 parameters
        (
            "gpt-125m",
            ["parallel.reduce_bucket_size=1000000", "parallel.allgather_bucket_size=1000000"],
            1_000_000,
        ),
        ("gpt-1-3b-4xdp", [], 500_000_000),
        # The fullest of four stages, 413,036,544 parameters: every rank is told the same.
        ("gpt-1-3b-4xdp-4xpp", [], 394 * 2**20),
    ],
)
def test_a_bucket_is_as_large_as_asked_but_no_larger_than_the_model(run, overrides, elements):
    """DeepSpeed's buffers are as large as it is told, whatever the model: 5e8 elements cost a small one gigabytes."""
    told = deepspeed_config(load(run, overrides, check=False))["zero_optimization"]
    assert (told["reduce_bucket_size"], told["allgather_bucket_size"]) == (elements, elements)
