"""Partitions of layers into pipeline stages, compared with every other partition."""

import itertools

import pytest

from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.load import load

# A block's forward pass is 24 h^2 + 4 s h = 1,024 FLOPs per token, the logits' 2 h V = 8 V.
BASE = load(
    "gpt-1-3b-4xdp-4xpp",
    {
        "model.hidden_size": 4,
        "model.num_attention_heads": 1,
        "model.seq_length": 40,
        "model.make_vocab_size_divisible_by": 1,
    },
    check=False,
)


def config(
    stages: int, layers: int, vocabulary: int, granularity: str = "none", cut: list[int] | None = None
):
    parallel = BASE.parallel
    recomputed = parallel.activation_checkpointing.model_copy(update={"granularity": granularity})
    changes = {
        "pipeline_parallel_size": stages,
        "pipeline_stage_layers": cut,
        "activation_checkpointing": recomputed,
    }
    return BASE.model_copy(
        update={
            "parallel": parallel.model_copy(update=changes),
            "model": BASE.model.model_copy(update={"num_layers": layers}),
            "tokenizer": BASE.tokenizer.model_copy(update={"vocab_size": vocabulary}),
        }
    )


def slowest_of_the_best(stages: int, layers: int, block: float, logits: float) -> float:
    """Return the time of the slowest stage in the best partition, found by trying all of them."""
    cuts = (
        [end - begin for begin, end in itertools.pairwise([0, *inner, layers])]
        for inner in itertools.combinations(range(1, layers), stages - 1)
    )
    return min(max(*(count * block for count in cut[:-1]), cut[-1] * block + logits) for cut in cuts)


@pytest.mark.parametrize("granularity, passes", [("none", 3), ("selective", 3), ("full", 4)])
@pytest.mark.parametrize("blocks_of_logits", [0.01, 0.9, 1.1, 1.4, 2.2, 3.5, 9.0])
def test_no_cut_has_a_faster_slowest_stage(granularity, passes, blocks_of_logits):
    """No other partition has a faster slowest stage, also with full recomputation
    (block 4 parts, logits 3).
    """
    vocabulary = round(blocks_of_logits * 1024 / 8)
    for stages, layers in itertools.product((2, 3, 4), range(4, 13)):
        cut = stage_layers(config(stages, layers, vocabulary, granularity))
        assert (len(cut), sum(cut), min(cut) >= 1) == (stages, layers, True)
        block, logits = passes * 1024, 3 * 8 * vocabulary
        pace = max(*(count * block for count in cut[:-1]), cut[-1] * block + logits)
        assert pace == slowest_of_the_best(stages, layers, block, logits), cut


def test_of_equally_good_cuts_the_most_even_and_later_stages_first():
    assert stage_layers(config(4, 8, 1)) == [2, 2, 2, 2]
    assert stage_layers(config(4, 9, 1)) == [2, 2, 3, 2]
    assert stage_layers(config(4, 11, 1)) == [3, 3, 3, 2]
    assert stage_layers(config(1, 5, 1000)) == [5]
    # Logits of 1.5 blocks; with full recomputation they are 1.125 blocks.
    assert stage_layers(config(2, 10, 192)) == [6, 4]
    assert stage_layers(config(2, 9, 192)) == [5, 4]
    assert stage_layers(config(2, 9, 192, "full")) == [5, 4]


def test_a_cut_of_the_yaml_is_taken_as_it_is():
    assert stage_layers(config(3, 10, 1, cut=[5, 3, 2])) == [5, 3, 2]
