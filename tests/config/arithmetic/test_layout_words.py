"""A layout as text, and the kinds of parallelism."""

from nbtrain.config.arithmetic.layout_words import SIZE_KEYS, layout_words
from nbtrain.config.sections.parallel_section import ParallelConfig


def test_every_size_of_the_section_is_a_kind_of_parallelism():
    sizes = [name for name in ParallelConfig.model_fields if name.endswith("_parallel_size")]
    assert sorted(SIZE_KEYS) == sorted(sizes)


def test_only_sizes_above_one_are_named():
    assert layout_words({}) == layout_words(dict.fromkeys(SIZE_KEYS, 1)) == "1 rank"
    sizes = {
        "tensor_parallel_size": 4,
        "data_parallel_size": 2,
        "ds_sequence_parallel_size": 8,
        "zero_stage": 1,
    }
    assert layout_words(sizes) == "data 2 x tensor 4 x Ulysses 8"
