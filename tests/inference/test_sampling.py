"""Sampling of the next token: greedy decoding, every filter and penalty, and the resulting probabilities."""

import dataclasses

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.config.generation import Generation
from nbtrain.inference.sampling import LIKELIEST, choose, distribution, penalized

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
PLAIN = Generation(temperature=1.0, top_k=0)


def shares(**changes) -> torch.Tensor:
    """Return the probability of each of the four ids."""
    probabilities, ids = distribution(LOGITS, dataclasses.replace(PLAIN, **changes))
    found = torch.zeros(1, 4)
    return found.scatter(1, torch.arange(4)[None] if ids is None else ids, probabilities)[0]


def test_zero_temperature_takes_the_likeliest():
    assert choose(LOGITS, dataclasses.replace(PLAIN, temperature=0.0), None).tolist() == [0]


@pytest.mark.parametrize("top_k", [0, 2])
def test_a_temperature_near_zero_takes_the_likeliest(top_k):
    """A temperature near zero chooses the most likely token, although the logits divided by it overflow in
    fp32.
    """
    generation = dataclasses.replace(PLAIN, temperature=1e-40, top_k=top_k)
    assert choose(LOGITS, generation, torch.tensor([0.9], dtype=torch.float64)).tolist() == [0]


def test_top_k_keeps_k_tokens_in_their_proportions():
    torch.testing.assert_close(shares(top_k=2), torch.cat([LOGITS[0, :2].softmax(-1), torch.zeros(2)]))


def test_top_p_0_takes_the_likeliest():
    """With top_p 0, the most likely token is chosen, as in OpenAI's API and transformers, even if sampling
    would draw another token of equal probability.
    """
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    for changes in ({"top_p": 0.0}, {"top_p": 0.0, "temperature": 2.0, "top_k": 3}, {"top_k": 1}):
        generation = Generation(**{"temperature": 1.0, "top_k": 0, **changes})
        drawn = torch.tensor([0.99], dtype=torch.float64)
        assert generation.is_greedy and choose(logits, generation, drawn).tolist() == [1]


def test_top_p_keeps_the_smallest_set_that_reaches_the_share():
    """top_p keeps the smallest set of tokens whose probabilities reach it: with probabilities of 0.644,
    0.237, ..., 0.6 keeps one token and 0.7 keeps two.
    """
    assert (shares(top_p=0.6) > 0).tolist() == [True, False, False, False]
    assert (shares(top_p=0.7) > 0).tolist() == [True, True, False, False]


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    """min_p keeps each token whose probability, relative to the most likely token's, is at least min_p; here
    the ratios are 0.368, 0.135 and 0.050.
    """
    assert (shares(min_p=0.1) > 0).tolist() == [True, True, True, False]
    assert (shares(min_p=0.2) > 0).tolist() == [True, True, False, False]
    assert float(shares(min_p=0.2).sum()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
        {"top_p": 0.9},
        {"top_p": 0.97},
        {"temperature": 1.5, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.3},
    ],
)
def test_the_cuts_are_transformers(changes):
    """Every combination of filters gives the probabilities that transformers computes, for flat and peaked
    distributions, with vocabularies larger than the number of candidates that are searched first.
    """
    from transformers.generation import logits_process as theirs

    generation = dataclasses.replace(PLAIN, **changes)
    logits = torch.randn(2, 3 * LIKELIEST, generator=torch.Generator().manual_seed(1))
    logits[1] *= 8
    expected = logits / generation.temperature
    if generation.top_k:
        expected = theirs.TopKLogitsWarper(generation.top_k)(None, expected)
    if generation.top_p < 1:
        expected = theirs.TopPLogitsWarper(generation.top_p)(None, expected)
    if generation.min_p:
        expected = theirs.MinPLogitsWarper(generation.min_p)(None, expected)
    probabilities, ids = distribution(logits, generation)
    found = probabilities if ids is None else torch.zeros_like(logits).scatter(1, ids, probabilities)
    torch.testing.assert_close(found, expected.softmax(-1))


def test_draws_follow_the_distribution():
    """20,000 draws at temperature 0.5 match softmax(2 logits) within four standard errors."""
    generation, count = dataclasses.replace(PLAIN, temperature=0.5), 20_000
    drawn = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    draws = choose(LOGITS.expand(count, -1), generation, drawn)
    expected = (2 * LOGITS[0]).softmax(-1)
    counts = torch.bincount(draws, minlength=4) / count
    assert ((counts - expected).abs() < 4 * (expected / count).sqrt()).all()


def test_what_was_cut_is_never_drawn():
    """A filtered token is never drawn, neither with the smallest nor with the largest random number."""
    generation = dataclasses.replace(PLAIN, top_k=3, min_p=0.2)
    drawn = torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64)
    assert choose(LOGITS.expand(2, -1), generation, drawn).tolist() == [0, 1]


def test_penalties():
    """CTRL's penalty counts the tokens of prompt and text, as in transformers; OpenAI's penalties count only
    the generated text. Biases are added to the logits.
    """
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    logits, there = torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([0, 3])
    found = penalized(logits, dataclasses.replace(PLAIN, repetition_penalty=1.5), there, {})
    theirs = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[0, 3, 3]]), logits[None].clone())
    assert torch.equal(found, theirs[0])
    generation = dataclasses.replace(PLAIN, presence_penalty=0.5, frequency_penalty=0.25)
    assert penalized(logits, generation, there, {1: 2, 3: 1}).tolist() == [2.0, 0.0, -1.0, -2.75]
    assert penalized(logits, dataclasses.replace(PLAIN, logit_bias=((2, 5.0),)), there, {})[2] == 4.0
    assert logits.tolist() == [2.0, 1.0, -1.0, -2.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 must be at least 0 (0 is greedy)."),
        ({"temperature": float("nan")}, "temperature = nan must be at least 0 (0 is greedy)."),
        ({"top_k": -1}, "top_k = -1 must be at least 0 (0 turns it off)."),
        ({"top_p": -0.5}, "top_p = -0.5 must be from 0 to 1 (1 turns it off, 0 is greedy)."),
        ({"top_p": 1.5}, "top_p = 1.5 must be from 0 to 1 (1 turns it off, 0 is greedy)."),
        ({"min_p": 2.0}, "min_p = 2.0 must be from 0 to 1 (0 turns it off)."),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0 must be above 0 (1 turns it off)."),
        ({"presence_penalty": 3.0}, "presence_penalty = 3.0 must be from -2 to 2 (0 does nothing)."),
        ({"length_penalty": 60.0}, "length_penalty = 60.0 must be from -50 to 50."),
        ({"n": 65}, "n = 65 must be from 1 to 64."),
        ({"logprobs": 21}, "logprobs = 21 must be from 0 to 20, or null for none."),
        ({"stop": ("",)}, "stop = ('',) must be at most 16 texts of 1 to 1000 characters."),
        ({"n": 3, "num_beams": 2}, "n = 3 must be at most num_beams = 2."),
        (
            {"stop": ("a",), "num_beams": 2},
            "stop cannot be combined with num_beams = 2: set only one of them.",
        ),
    ],
)
def test_values_out_of_range_are_refused(changes, message):
    """A value that is out of range is rejected with a message that states the value and the rule."""
    with pytest.raises(ConfigError) as error:
        Generation(**changes)
    assert str(error.value) == message


def test_a_request_survives_json():
    import json

    generation = Generation(stop=("a", "b"), logit_bias=((1, 2.0),), logprobs=3, seed=None)
    assert Generation.of({**json.loads(json.dumps(generation.to_dict())), "id": "other"}) == generation
