"""The GPT family: the presets, and models between two presets with an interpolated width and depth.

A preset is the model of a shipped run YAML (config/names/presets.py), so a search for "13B" can write a run.
"""

import functools
import itertools
from dataclasses import replace

from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.load import load
from nbtrain.config.names.presets import PRESETS
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape

# Presets between which models are interpolated, smallest first. The presets 345M and 3.7B are variants of
# others and are not used.
LINE = ("125M", "350M", "760M", "1.3B", "2.7B", "6.7B", "13B", "175B")
# Interpolated widths are multiples of this, so that up to 8 tensor-parallel ranks each get a multiple of 64,
# which tensor cores compute efficiently (NVIDIA, matrix multiplication background, section 2).
WIDTH_STEP = 512
HEAD_SIZE = 128


def preset(name: str) -> RunConfig:
    """Load the shipped run of a preset."""
    return load(PRESETS[name], check=False)


def parameters(shape: Shape) -> int:
    """Return the number of parameters in the whole model."""
    return count_layers(shape, shape.num_layers, first=True, last=True, tensor=1).total


@functools.cache
def line(vocab_size: int, seq_length: int) -> tuple[tuple[str, Shape], ...]:
    """Return the models of the family as (name, shape), smallest first.

    The name is a preset's name, or the depth and width, such as "48 layers, hidden 6144". Between two
    presets, the width grows in steps of WIDTH_STEP, and the depth is interpolated by width.
    """
    named = [(name, _fitted(preset(name).shape, vocab_size, seq_length)) for name in LINE]
    found = named[:1]
    for (_, small), (name, large) in itertools.pairwise(named):
        for width in range(small.hidden_size + 1, large.hidden_size):
            if width % WIDTH_STEP == 0:
                shape = _between(small, large, width)
                found.append((f"{shape.num_layers} layers, hidden {width}", shape))
        found.append((name, large))
    return tuple(sorted(found, key=lambda entry: parameters(entry[1])))


def _fitted(shape: Shape, vocab_size: int, seq_length: int) -> Shape:
    return replace(shape, padded_vocab_size=vocab_size, seq_length=seq_length, learned_positions=seq_length)


def _between(small: Shape, large: Shape, width: int) -> Shape:
    share = (width - small.hidden_size) / (large.hidden_size - small.hidden_size)
    # The depth is rounded to a multiple of 4, so that pipelines of 2 and 4 stages divide it.
    depth = small.num_layers + share * (large.num_layers - small.num_layers)
    heads = width // HEAD_SIZE
    return replace(
        small,
        num_layers=max(round(depth / 4) * 4, small.num_layers),
        hidden_size=width,
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=HEAD_SIZE,
        ffn_hidden_size=4 * width,
    )
