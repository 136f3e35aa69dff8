"""Memory in published programs: the bytes of their states, and parts that never exist at the same time and so
are not added up.
"""

from dataclasses import replace
from typing import Any

import pytest

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.shape import Shape
from nbtrain.planner.memory import activations, buffers, estimate
from nbtrain.planner.memory.estimate import fullest_stage, stage_parts
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.setup.setup import Setup

SHAPE = Shape(
    num_layers=24,
    hidden_size=2048,
    num_attention_heads=16,
    ffn_hidden_size=8192,
    padded_vocab_size=50304,
    seq_length=2048,
    num_query_groups=16,
    kv_channels=128,
)
ONE = Setup(
    SHAPE, engine="megatron-lm", device=find_device("A100-80GB"), recompute="full", micro_batch_size=4
)


def test_the_larger_of_logits_and_recomputed_layer_counts():
    """The peak includes either the logits or the recomputed layer, whichever is larger; logits take 10 bytes
    each.
    """
    parts, stage = estimate(ONE).parts, stage_of(ONE, 0)
    logits, live = 10 * 4 * 2048 * 50304, activations.live(ONE, stage)
    assert 0 < live < logits
    assert parts["logits"] == logits - int(live)
    assert parts["activations"] == int(activations.kept(ONE, stage).total + live)


def test_a_tied_output_layers_gradient_waits_in_autograd():
    """In 16 bits, DeepSpeed's programs keep the gradient of a tied output layer while a layer is recomputed,
    if the embedding and output are on the same stage.
    """
    few = replace(ONE, engine="megatron-deepspeed", shape=replace(SHAPE, padded_vocab_size=4096))
    stage = stage_of(few, 0)
    assert buffers.logits_bytes(few, stage) == 10 * 4 * 2048 * 4096 < activations.live(few, stage)
    assert estimate(few).parts["logits"] == 2 * 4096 * 2048
    assert estimate(replace(few, shape=replace(few.shape, tied=False))).parts["logits"] == 0
    assert estimate(replace(few, engine="megatron-core")).parts["logits"] == 0
    two = replace(few, pipeline_parallel_size=2)
    assert buffers.loss_gradients(two, stage_of(two, 1)) == 0


def test_deepspeeds_pipeline_keeps_the_logits_of_the_micro_batch_before():
    """The last stage has 4 bytes more for each logit, if a step has several micro batches."""
    two = replace(ONE, engine="megatron-deepspeed", pipeline_parallel_size=2, global_batch_size=16)
    last = stage_of(two, 1)
    kept, core = (
        buffers.pipeline_bytes(replace(two, engine=name), last, 1)
        for name in ("megatron-deepspeed", "megatron-core")
    )
    assert kept - core == 4 * 4 * 2048 * 50304
    assert buffers.pipeline_bytes(replace(two, global_batch_size=4), last, 1) == core


def test_hpz_is_a_second_copy_of_the_weights_in_each_machine():
    layout = {"engine": "megatron-deepspeed", "zero_stage": 3, "data_parallel_size": 32}
    plain, second = (estimate(replace(ONE, **layout, hpz_size=size)).parts["weights"] for size in (1, 8))
    assert second - plain == 2 * stage_of(ONE, 0).elements // 8


def test_while_there_is_room_both_keep_their_segments():
    stage, allocated = stage_of(ONE, 0), estimate(ONE).allocated_bytes
    small = replace(ONE, micro_batch_size=1)
    again = activations.live(ONE, stage)
    assert buffers.free_block_bytes(ONE, stage, allocated) > buffers.FREE_FRACTION * allocated + again
    assert buffers.free_block_bytes(small, stage, 79 * 2**30) == int(buffers.RESERVE_FRACTION * 79 * 2**30)


@pytest.mark.parametrize(("name", "gib"), [("A100-80GB", 79.2), ("V100-32GB", 31.68)])
def test_a_gpu_gives_a_hundredth_less_than_its_name_says(name, gib):
    found = estimate(replace(ONE, device=find_device(name))).device_bytes
    assert found == pytest.approx(gib * 2**30, abs=1)


def test_fsdp_without_resharding_keeps_whole_16_bit_weights_and_cut_fp32_ones():
    """FSDP with SHARD_GRAD_OP on 8 ranks keeps 4 / 8 bytes of each fp32 weight and 2 bytes of its gathered
    16-bit copy.
    """
    setup = replace(ONE, engine="metaseq", data_parallel_size=8, global_batch_size=32, zero_stage=2)
    parts, count = estimate(setup).parts, stage_of(setup, 0).elements
    assert parts["weights"] == 4 * count // 8
    assert 2 * count < parts["communication"] < 3 * count


def test_nvfp4_keeps_half_a_byte_and_a_scale_of_each_input():
    eight = replace(ONE, engine="megatron-core", recompute="none", fp8=True)
    four = replace(eight, fp8=False, fp4=True)
    saved = activations.layer(eight).total - activations.layer(four).total
    # The inputs of four products: 3 x hidden and the MLP's inner width, 1 byte compared with 9/16.
    assert saved == 7 / 16 * four.tokens_per_micro_batch * (3 * 2048 + 8192)


def bytes_each(engine: str, **changes: Any) -> tuple[float, ...]:
    """Return a rank's bytes per parameter for weights, gradients, master weights and moments."""
    found = estimate(replace(ONE, engine=engine, **changes)).parts
    parts = ("weights", "gradients", "master_copy", "optimizer")
    return tuple(found[part] / stage_of(ONE, 0).elements for part in parts)


@pytest.mark.parametrize(
    ("engine", "changes", "expected"),
    [
        # Megatron-LM's README: 18 bytes in bf16; 20 in fp16, with the fp32 copy that the step makes.
        ("megatron-lm", {"dtype": "fp16"}, (2, 2, 4, 8)),
        ("megatron-lm", {"dtype": "bf16"}, (2, 4, 4, 8)),
        ("megatron-lm", {"dtype": "fp32"}, (4, 4, 0, 8)),
        ("megatron-core", {}, (2, 4, 4, 8)),
        ("megatron-core", {"zero_stage": 1, "data_parallel_size": 4}, (2, 4, 1, 2)),
        ("megatron-bridge", {}, (2, 2, 4, 8)),
        ("megatron-deepspeed", {"dtype": "fp16", "zero_stage": 1, "data_parallel_size": 4}, (2, 2, 1, 2)),
        ("megatron-deepspeed", {"zero_stage": 1, "data_parallel_size": 4}, (2, 6, 1, 2)),
        ("megatron-deepspeed", {"zero_stage": 2, "data_parallel_size": 4}, (2, 0.5, 1, 2)),
        ("torchtitan", {"zero_stage": 3, "data_parallel_size": 4}, (1, 1, 0, 2)),
        ("nanotron", {}, (2, 4, 4, 8)),
        ("colossalai", {}, (2, 2, 4, 8)),
    ],
)
def test_each_program_keeps_the_bytes_that_it_is_known_for(engine, changes, expected):
    assert bytes_each(engine, **changes) == pytest.approx(expected, rel=1e-6)


def test_autocast_keeps_the_cast_matrices_of_a_program_with_whole_fp32_weights():
    """Autocast adds 2 bytes for each number of a matrix; under ZeRO 3, the gathered copy is already in 16
    bits.
    """
    cast, plain = (
        estimate(replace(ONE, engine="composer", autocast=on)).parts["weights"] for on in (True, False)
    )
    stage = stage_of(ONE, 0)
    assert cast - plain == 2 * stage.matrices and 0 < stage.matrices < stage.elements
    cut = replace(ONE, engine="composer", zero_stage=3, data_parallel_size=4)
    assert estimate(replace(cut, autocast=True)).parts["weights"] == estimate(cut).parts["weights"]


@pytest.mark.parametrize("tied", [True, False])
def test_words_that_are_looked_up_are_not_cast(tied):
    """On the first stage, the embedding is only looked up and needs no 16-bit copy; on the last stage, a
    product reads it, so it needs one.
    """
    setup = replace(ONE, engine="nbtrain", shape=replace(SHAPE, tied=tied), pipeline_parallel_size=2)
    first, last = stage_of(setup, 0), stage_of(setup, 1)
    assert first.parameters.word_embeddings == 50304 * 2048
    blocks = [stage.parameters.attention + stage.parameters.mlp for stage in (first, last)]
    assert [first.matrices, last.matrices] == [blocks[0], blocks[1] + 50304 * 2048]


def test_a_later_stage_with_more_windows_may_be_the_fullest():
    """If middle stages have the same number of layers, each kind of stage is checked: the one with more
    windows may need the most memory, because each window keeps a mask.
    """
    shape = replace(SHAPE, padded_vocab_size=128, window_size=512)
    shape = replace(shape, window_layers=(False,) * 12 + (True,) * 6 + (False,) * 6)
    setup = replace(
        ONE, engine="nbtrain", shape=shape, pipeline_parallel_size=4, stage_layers=(6,) * 4,
        masks_windows=True, recompute="none", micro_batch_size=1, global_batch_size=1,
    )  # fmt: skip
    found, *_ = fullest_stage(setup)
    totals = [sum(stage_parts(setup, index).values()) for index in range(4)]
    assert totals[2] > totals[1] and found.number == totals.index(max(totals)) == 2
