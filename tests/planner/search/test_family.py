"""The GPT family: presets match their names, and the models between them increase in small steps."""

import itertools

import pytest

from nbtrain.config.load import load
from nbtrain.config.names.presets import PRESETS
from nbtrain.planner.search.family import LINE, line, parameters


def test_presets_are_runs_of_their_size():
    """Each preset is an example run whose model has about as many parameters as its name says."""
    units = {"M": 1e6, "B": 1e9}
    # Llama 3.2's 1B has 1.24 billion parameters, its 3B 3.21 billion.
    rounded_off = {"1B": 0.25, "3B": 0.08}
    for name in PRESETS:
        count = parameters(load(name.lower(), check=False).shape)
        near = rounded_off.get(name, 0.04)
        assert count == pytest.approx(float(name[:-1]) * units[name[-1]], rel=near), name


def test_the_line_rises_in_small_steps():
    """Models grow from 125M to 175B in width and depth, each at most about twice as large as the one before
    from 760M on; the number of heads divides the width.
    """
    models = line(50304, 2048)
    assert [name for name, _ in models if name in LINE] == list(LINE)
    for (_, small), (_, big) in itertools.pairwise(models):
        assert parameters(small) < parameters(big)
        assert big.hidden_size % big.num_attention_heads == 0
        if parameters(small) > 7e8:
            assert parameters(big) < 2.1 * parameters(small)
