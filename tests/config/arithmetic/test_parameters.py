"""Parameters of a model that is small enough to count by hand, in total and per rank."""

import pytest

from nbtrain.config.arithmetic.parameters import (
    Parameters,
    count_parameters,
    count_stage_parameters,
    largest_parameter,
)
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig


def small(**changes: object) -> RunConfig:
    """Return a model with L = 3, h = 4, f = 10, s = p = 5 and V = 128."""
    model = {
        "num_layers": 3,
        "hidden_size": 4,
        "num_attention_heads": 2,
        "ffn_hidden_size": 10,
        "seq_length": 5,
        "max_position_embeddings": None,
        "make_vocab_size_divisible_by": 64,
    }
    vocabulary = changes.pop("vocab_size", 128)
    parallel = {key: changes.pop(key) for key in list(changes) if key.endswith("parallel_size")}
    overrides = {"model": model | changes, "tokenizer.vocab_size": vocabulary, "parallel": parallel}
    return load("gpt3-tiny", overrides, check=False)


def test_each_part_is_counted_once():
    """Counts are V h; p h; per layer 4 h^2 + 4 h, 2 h f + f + h and 4 h; and 2 h for the final LayerNorm."""
    counted = count_parameters(small())
    assert counted == Parameters(512, 20, 3 * (64 + 16), 3 * (80 + 14), 3 * 16 + 8)
    assert counted.total == 512 + 20 + 240 + 282 + 56
    assert counted.to_dict()["mlp"] == 282


def test_a_rank_holds_its_stages_layers_and_its_part_of_each():
    """With two stages of two tensor ranks, each rank also has its stage's unsharded
    biases, LayerNorms and positions.
    """
    config = small(tensor_parallel_size=2, pipeline_parallel_size=2, num_layers=4)
    first, last = (count_stage_parameters(config, stage) for stage in range(2))
    attention, mlp = (64 + 12) // 2 + 4, (80 + 10) // 2 + 4
    # The logits cost more than a block, so the last stage has one of four layers.
    assert first == Parameters(256, 20, 3 * attention, 3 * mlp, 3 * 16)
    assert last == Parameters(256, 0, attention, mlp, 16 + 8)


def test_stages_between_hold_layers_alone():
    config = small(pipeline_parallel_size=3, num_layers=3)
    between = count_stage_parameters(config, 1)
    assert between == Parameters(0, 0, 80, 94, 16)
    assert count_stage_parameters(config, 2) == Parameters(512, 0, 80, 94, 24)


def test_one_stage_is_the_whole_model():
    assert count_stage_parameters(small(), 0) == count_parameters(small())


@pytest.mark.parametrize(
    ("changes", "elements"),
    [
        ({}, 128 * 4),
        ({"tensor_parallel_size": 2}, 128 * 4 // 2),
        ({"hidden_size": 100, "ffn_hidden_size": 100}, 3 * 100 * 100),
        ({"hidden_size": 100, "ffn_hidden_size": 500, "tensor_parallel_size": 2}, 100 * 500 // 2),
        ({"max_position_embeddings": 1000, "tensor_parallel_size": 2}, 1000 * 4),
    ],
    ids=["embedding", "embedding-cut", "query-key-value", "mlp-cut", "positions-whole"],
)
def test_the_largest_parameter(changes, elements):
    """The largest parameter of a rank is its shard of a matrix or the position
    embeddings, which are not sharded.
    """
    assert largest_parameter(small(**changes)) == elements
