"""The next token: greedy, cut to k, cut to a share, and drawn in the right proportions."""

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.inference.sampling import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def test_zero_temperature_takes_the_likeliest():
    """Without temperature there is no chance."""
    assert Sampling(temperature=0).choose(LOGITS) == 0


def test_top_k_keeps_k_tokens_in_their_proportions():
    """The two likeliest stay, renormalised."""
    probabilities = Sampling(top_k=2).probabilities(LOGITS)
    expected = torch.cat([LOGITS[:2].softmax(-1), torch.zeros(2)])
    torch.testing.assert_close(probabilities, expected)


def test_top_p_keeps_the_smallest_set_that_reaches_the_share():
    """Shares are 0.644, 0.237, ...: 0.6 needs one token, 0.7 needs two."""
    assert (Sampling(top_p=0.6).probabilities(LOGITS) > 0).sum() == 1
    assert (Sampling(top_p=0.7).probabilities(LOGITS) > 0).sum() == 2


def test_draws_follow_the_distribution_and_the_seed():
    """20,000 draws at temperature 0.5 match softmax(2 logits) within four standard errors; a seed repeats."""
    sampling = Sampling(temperature=0.5)
    generator = torch.Generator().manual_seed(3)
    draws = [sampling.choose(LOGITS, generator) for _ in range(20_000)]
    expected = (2 * LOGITS).softmax(-1)
    counts = torch.bincount(torch.tensor(draws), minlength=4) / len(draws)
    assert ((counts - expected).abs() < 4 * (expected / len(draws)).sqrt()).all()
    assert [sampling.choose(LOGITS, torch.Generator().manual_seed(3)) for _ in range(2)] == draws[:1] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 must be at least 0 (0 is greedy)."),
        ({"top_k": -1}, "top_k = -1 must be at least 0 (0 does not cut)."),
        ({"top_p": 0.0}, "top_p = 0.0 must be above 0 and at most 1 (1 does not cut)."),
        ({"top_p": 1.5}, "top_p = 1.5 must be above 0 and at most 1 (1 does not cut)."),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    """The message holds the value and the rule."""
    with pytest.raises(ConfigError) as error:
        Sampling(**arguments)
    assert str(error.value) == message
