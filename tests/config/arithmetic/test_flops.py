"""FLOPs of a model that is small enough to count by hand."""

import pytest

from nbtrain.config.arithmetic.flops import (
    attention_flops_per_token,
    block_flops_per_token,
    hardware_flops_per_token,
    logits_flops_per_token,
    megatron_deepspeed_tflops,
    model_flops_per_token,
)
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig


def small(granularity: str = "none", backend: str = "auto") -> RunConfig:
    """Return a model with L = 3, h = 4, f = 10, s = 5 and V = 128 (100 padded)."""
    return load(
        "gpt3-tiny",
        {
            "model": {
                "num_layers": 3,
                "hidden_size": 4,
                "num_attention_heads": 2,
                "ffn_hidden_size": 10,
                "seq_length": 5,
                "max_position_embeddings": None,
                "make_vocab_size_divisible_by": 128,
                "attention_backend": backend,
            },
            "tokenizer.vocab_size": 100,
            "parallel.activation_checkpointing.granularity": granularity,
        },
        check=False,
    )


def test_each_product_is_counted_once():
    """A block takes 8 h^2 = 128 and 4 h f = 160, its attention 4 s h = 80, and the
    logits 2 h V = 1,024 FLOPs.
    """
    config = small()
    assert attention_flops_per_token(config) == 80
    assert block_flops_per_token(config) == 128 + 160 + 80
    assert logits_flops_per_token(config) == 1024
    assert model_flops_per_token(config) == 3 * (3 * 368 + 1024)


@pytest.mark.parametrize(
    ("granularity", "backend", "again"),
    [
        ("none", "auto", 0),
        ("none", "math", 0),
        ("selective", "flash", 0),
        ("selective", "auto", 0),
        ("selective", "math", 3 * 80),
        ("full", "auto", 3 * 368),
    ],
)
def test_hardware_flops_count_what_is_computed_again(granularity, backend, again):
    """Hardware FLOPs include what is recomputed: full layers, or the attention
    core if its scores are kept.
    """
    config = small(granularity, backend)
    assert model_flops_per_token(config) == model_flops_per_token(small())
    assert hardware_flops_per_token(config) == model_flops_per_token(config) + again


def test_on_a_cpu_dropout_keeps_the_scores():
    """On a CPU, dropout requires the math kernel, which keeps the attention scores."""
    config = load(small("selective"), {"model.attention_dropout": 0.1}, check=False)
    assert hardware_flops_per_token(config) == model_flops_per_token(config) + 3 * 80


def test_the_formula_of_megatron_deepspeeds_log():
    """Megatron-DeepSpeed's log counts 24 f L h^2 (1 + s/6h + V/16Lh) per token, over the ranks."""
    per_token = 24 * 3 * 48 * (1 + 5 / 24 + 128 / 192)
    assert megatron_deepspeed_tflops(small(), 7.0) == pytest.approx(per_token * 35 / 1e12, rel=1e-12)
    two = load(small(), ["parallel.data_parallel_size=2"], check=False)
    assert megatron_deepspeed_tflops(two, 7.0) == pytest.approx(per_token * 35 / 2e12, rel=1e-12)
    assert megatron_deepspeed_tflops(small("full"), 7.0) == pytest.approx(
        per_token * 35 * 4 / 3e12, rel=1e-12
    )
