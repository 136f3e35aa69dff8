"""Decoding with the cache gives what the whole model gives, also past the window."""

import pytest
import torch

from nbtrain.inference.decode import generate_tokens
from nbtrain.inference.sampling import Sampling
from nbtrain.model.gpt import GPT, GPTConfig

GREEDY = Sampling(temperature=0)


@pytest.fixture
def model() -> GPT:
    config = GPTConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=64,
        padded_vocab_size=64,
        max_position_embeddings=16,
        init_method_std=0.5,
    )
    return GPT(config).eval()


def without_cache(model: GPT, prompt: list[int], count: int, vocab_size: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1, :vocab_size].argmax()))
    return tokens[len(prompt) :]


def test_cached_decoding_equals_the_whole_model(model):
    """Greedy tokens inside the window are those of full forward passes."""
    tokens = list(generate_tokens(model, [1, 2, 3], GREEDY, 12, vocab_size=60, eod_id=-1))
    assert tokens == without_cache(model, [1, 2, 3], 12, vocab_size=60)


def test_decoding_goes_on_past_the_window(model):
    """After position 16 the newest 8 tokens are read again, and each new token follows from them."""
    tokens = [5, 6, 7, *generate_tokens(model, [5, 6, 7], GREEDY, 20, vocab_size=60, eod_id=-1)]
    assert len(tokens) == 23
    # Token 16 is the first one after a full window: the model has read tokens 8 to 15 anew.
    assert tokens[17] == without_cache(model, tokens[9:17], 1, vocab_size=60)[0]


def test_a_prompt_longer_than_the_window_is_cut_from_the_left(model):
    """Only the newest 16 tokens of a long prompt count."""
    long = list(range(40))
    assert list(generate_tokens(model, long, GREEDY, 1, 60, -1)) == without_cache(model, long[-16:], 1, 60)


def test_padding_ids_are_never_chosen_and_eod_ends(model):
    """Ids from vocab_size on do not occur; the end-of-document token ends the text and is not part of it."""
    free = list(generate_tokens(model, [1], GREEDY, 10, vocab_size=60, eod_id=-1))
    assert max(free) < 60
    assert list(generate_tokens(model, [1], GREEDY, 10, vocab_size=60, eod_id=free[0])) == []
