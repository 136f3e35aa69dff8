"""The largest model and the longest sequence that fit, for three kinds of layout."""

from dataclasses import replace

import pytest

from nbtrain.planner.search.family import line, parameters
from nbtrain.planner.search.largest import (
    SEQUENCE_STEP,
    WAYS,
    Largest,
    largest,
    legal,
    longest_sequence,
    with_length,
    with_model,
)
from nbtrain.planner.search.legal import space_of
from nbtrain.planner.search.search import run_on, search


@pytest.fixture(scope="module")
def found() -> Largest:
    return largest(space_of(run_on("13B", 4, None, "A100-40GB")), "13B")


def test_the_largest_model_fits_and_the_next_does_not(found):
    """The largest model has a layout that fits; for the next larger model, the search finds none."""
    assert found.model is not None and found.next_model is not None
    name, shape, one = found.model
    assert one.fits and parameters(shape) < parameters(found.next_model[1])
    config = run_on("13B", 4, None, "A100-40GB")
    sizes = {
        "model.num_layers": found.next_model[1].num_layers,
        "model.hidden_size": found.next_model[1].hidden_size,
        "model.num_attention_heads": found.next_model[1].num_attention_heads,
    }
    assert len(search(config, overrides=sizes).ranked) == 0
    assert " on 4 x A100-40GB with sequences of 2,048 tokens has " in str(found)
    assert f"parameters ({name}). The layout is " in str(found)


def test_the_longest_sequence_is_at_the_edge(found):
    """The longest sequence of each kind of layout is a multiple of the step, and a sequence that is an eighth
    longer does not fit.
    """
    fused = found.ways[-1].longest_sequence
    assert fused == found.longest_sequence and fused is not None and fused % SEQUENCE_STEP == 0
    config = run_on("13B", 4, None, "A100-40GB")

    def fits(tokens: int) -> bool:
        sizes = {
            "model.seq_length": tokens,
            "model.max_position_embeddings": tokens,
            "batch.micro_batch_size": 1,
        }
        return len(search(config, overrides=sizes).ranked) > 0

    assert fits(fused)
    assert not fits((fused + fused // 8) // SEQUENCE_STEP * SEQUENCE_STEP)


def test_three_ways_are_compared(found):
    """Three kinds of layout are compared: TP x PP with a single replica, ZeRO 3 alone, and their combination,
    which is at least as fast as both.
    """
    rows = {way.name: way for way in found.ways}
    assert list(rows) == list(WAYS)
    tensor, zero, fused = (rows[name].best for name in WAYS)
    assert tensor is not None and tensor.layout.cut.data == 1
    assert zero is not None and zero.layout.cut[:3] == (1, 1, 1) and zero.layout.options.zero_stage == 3
    assert fused is not None and fused.cost <= min(tensor.cost, zero.cost)
    assert tuple(found.as_report().blocks[-1].heads) == (
        "",
        "layout",
        "memory",
        "step",
        "MFU",
        "longest sequence",
    )
    assert "<table " in found._repr_html_()


@pytest.mark.slow
def test_a_way_without_a_layout_says_why():
    """A kind of layout that cannot be used has a reason: 175B's batch ramp-up is not divisible by 64
    replicas, or nothing fits on one small GPU.
    """
    ways = {way.name: way for way in largest(space_of(run_on("175B", 64, 8, "A100-80GB")), "175B").ways}
    assert ways["pure ZeRO 3"].best is None
    assert ways["pure ZeRO 3"].reason == (
        "data_parallel_size(64) does not divide every batch size (greatest common divisor 16)"
    )
    alone = largest(space_of(run_on("13B", 1, None, "L4")), "13B")
    assert " needs " in f" {alone.ways[2].reason}" and alone.longest_sequence is None
    assert "does not fit with sequences of 1,024 tokens or more." in str(alone)


@pytest.mark.slow
def test_gpus_that_no_layout_takes_are_not_called_too_small():
    """If no layout of a number of GPUs is legal, that is the message, and not that the model does not fit: a
    million H100s could hold it.
    """
    found = largest(space_of(run_on("175B", 1_000_000, None, "H100")), "gpt-175b")
    assert str(found).startswith(
        "No layout of gpt-175b on 1,000,000 x H100 is legal. The batch limits the number of model replicas "
        "(DP): the batch sizes of the ramp-up have the greatest common divisor 16, which with "
        "micro_batch_size(1) allows at most 16. With 1,000,000 GPUs, each replica must then be divided "
        "across at least 62,500 GPUs (TP x PP x Ulysses or CP). Use fewer GPUs or larger batches. "
    )
    assert "does not fit" not in str(found)


def test_no_way_no_sequence():
    """A kind of layout in which no layout is legal has no longest sequence."""
    space = space_of(run_on("1.3B", 4, None, "A100-40GB"))
    assert longest_sequence(space, lambda layout: False) is None


def test_longer_sequences_and_other_models_are_of_the_run():
    """A space with longer sequences equals the space of the run with this length, and a space with another
    model keeps the run's adapters and their rules.
    """
    machines = (4, None, "A100-40GB")
    settings = {"model.window_size": 4096, "lora.rank": 16, "lora.load_in_4bit": True, "init_from": "base"}
    space = space_of(run_on("13B", *machines, settings))
    length = {"model.seq_length": 8192, "model.max_position_embeddings": 8192}
    longer, wanted = with_length(space, 8192), space_of(run_on("13B", *machines, settings | length))
    assert longer.base == wanted.base and longer.base.shape.window_size == 4096
    smaller, preset = dict(line(space.vocab_size, 2048))["6.7B"], run_on("6.7B", *machines, settings)
    other, wanted = with_model(space, smaller), space_of(preset)
    assert other.adapters(2) == wanted.adapters(2) != space.adapters(2)
    for one in (longer, other):
        assert {cut.pipeline for cut in legal(one)} == {1}, "weights in 4 bits have no pipeline"
    plain = space_of(run_on("13B", *machines))
    for _, shape in line(plain.vocab_size, 2048):
        found = with_model(plain, shape).base.shape
        assert parameters(found) >= parameters(shape) and found.learned_positions == 2048
        assert replace(shape, padded_vocab_size=0, hidden_dropout=0.1, attention_dropout=0.1) == replace(
            found, padded_vocab_size=0
        )
