"""DeepSpeed's memory estimate next to the plan's: its formulas by hand, and the reasons for differences."""

import pytest

from nbtrain.config.load import load
from nbtrain.planner.second_opinion import second_opinion, zero2_bytes, zero3_bytes
from nbtrain.planner.setup.setup import setup_of


def test_the_formulas_by_hand():
    """DeepSpeed's formulas, in bytes per parameter: ZeRO 2 takes 2 + 18 / gpus on the GPU; with offloading it
    takes 2, and 1.5 max(4 gpus, 16) in host memory. ZeRO 3 takes 18 / gpus plus a layer.
    """
    assert zero2_bytes(1000, 4, 2, False) == (4 * 4 * 1000 * 1.5, 2 * 1000 + 18 * 1000 // 8)
    assert zero2_bytes(1000, 4, 2, True) == (32 * 1000 * 1.5, 2 * 1000)
    assert zero2_bytes(1000, 1, 1, True) == (16 * 1000 * 1.5, 2 * 1000)
    assert zero3_bytes(1000, 50, 4, 2, False, False) == (50 * 4 * 4 * 1.5, 4 * 50 + 18 * 1000 // 8)
    assert zero3_bytes(1000, 50, 4, 2, True, False) == (16 * 1000 / 2 * 1.5, 4 * 50 + 2 * 1000 // 8)
    assert zero3_bytes(1000, 50, 4, 2, True, True) == (18 * 1000 / 2 * 1.5, 4 * 50)


@pytest.mark.parametrize(
    ("run", "overrides", "reason"),
    [
        ("gpt-125m-4xdp", ["parallel.zero_stage=1"], "DeepSpeed has no formula for stage 1"),
        ("gpt-125m-4xdp", ["parallel.zero_stage=2"], "The 18 bytes per parameter that DeepSpeed shards"),
        ("gpt-125m-4xdp", ["parallel.zero_stage=3"], "DeepSpeed counts the largest layer unsharded"),
        ("gpt-13b-4xdp-4xpp", [], "DeepSpeed's formula does not support tensor or pipeline parallelism"),
        ("gpt-125m-4xdp", ["precision.dtype=fp32"], "DeepSpeed assumes 16-bit weights"),
    ],
)
def test_it_says_why(run, overrides, reason):
    found = second_opinion(setup_of(load(run, overrides)))
    assert any(text.startswith(reason) for text in found.reasons)
    assert found.lines()[0].startswith("DeepSpeed 0.19.8 (runtime/zero/stage")


def test_where_both_count_the_same_they_agree():
    """With ZeRO 2 in bf16 on one GPU, DeepSpeed counts 20 bytes per parameter and the plan 18; the difference
    is the 16-bit gradients, which are freed.
    """
    found = second_opinion(setup_of(load("gpt-125m", ["parallel.zero_stage=2"])))
    assert found.planned_device_bytes / found.device_bytes == pytest.approx(18 / 20, rel=0.02)


def test_an_output_layer_of_its_own_is_counted():
    """An untied output layer is counted: with ZeRO 2 on one GPU, at 20 bytes for each of its parameters."""
    zero_2 = "parallel.zero_stage=2"
    tied = load("gpt-125m", [zero_2])
    own = load("gpt-125m", [zero_2, "model.untie_embeddings_and_output_weights=true"])
    more = second_opinion(setup_of(own)).device_bytes - second_opinion(setup_of(tied)).device_bytes
    assert more == 20 * tied.padded_vocab_size * 768


def test_without_zero_there_is_no_opinion():
    assert second_opinion(setup_of(load("gpt-tiny"))) is None
