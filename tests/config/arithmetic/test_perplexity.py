"""The perplexity of a mean loss per token."""

import math

import pytest

from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.config.load import load


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (0.0, 1.0),
        (2.0, math.exp(2.0)),
        (21.0, math.exp(21.0)),
        (709.0, math.exp(709.0)),
        (710.0, None),
        (math.nan, None),
        (math.inf, None),
        (None, None),
    ],
)
def test_a_perplexity_is_a_finite_number_or_none(loss, expected):
    assert perplexity(loss) == expected


def test_a_run_with_pairs_has_no_perplexity():
    assert load("gpt-tiny").has_perplexity
    assert not load("gpt-tiny", {"dpo": {"beta": 0.2}}, check=False).has_perplexity
