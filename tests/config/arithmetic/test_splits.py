"""Megatron's two rules for the split into training, validation and test; the texts of a split."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.arithmetic.splits import split_bounds, split_weights


def test_split_rules_differ_by_a_document():
    """With ten documents and the split 949,50,1, Megatron-DeepSpeed trains on 10 and megatron-core on 9."""
    assert split_bounds("949,50,1", "megatron-deepspeed", 10) == [(0, 10), (10, 10), (10, 10)]
    assert split_bounds("949,50,1", "megatron-core", 10) == [(0, 9), (9, 10), (10, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("split", "expected"), [("949,50,1", 4940), ("98,2,0", 400), ("100,0,0", 0)])
def test_how_often_the_rules_differ(split, expected):
    """Over sizes 1 to 20,000, the two rules differ as often as the two functions of upstream do."""
    differ = 0
    for size in range(1, 20_001):
        upstream, core = (split_bounds(split, rule, size) for rule in ("megatron-deepspeed", "megatron-core"))
        assert upstream[0][0] == core[0][0] == 0
        assert upstream[2][1] == core[2][1] == size
        differ += upstream != core
    assert differ == expected


def test_split_texts():
    """A split is one to three numbers separated by commas or slashes; anything else is refused."""
    assert split_weights("98/2") == [98, 2, 0]
    assert split_weights("1") == [1, 0, 0]
    for bad in ("", "a,b", "1,2,3,4", "-1,2,3", "0,0,0", "nan,1"):
        with pytest.raises(ConfigError) as caught:
            split_weights(bad)
        assert str(caught.value) == (
            f'data.split = {bad!r}: must be one to three relative sizes, e.g. "949,50,1".'
        )
    with pytest.raises(ConfigError, match="must be megatron-deepspeed or megatron-core"):
        split_bounds("1,1,1", "other", 10)
