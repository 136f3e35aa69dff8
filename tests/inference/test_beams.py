"""Beam search returns the same texts and scores as transformers, also with other requests in the batch."""

import pytest
import torch

from nbtrain.config.generation import Generation
from nbtrain.config.load import load
from nbtrain.inference.choice import Request
from nbtrain.model.gpt import build_model
from tests.inference import made
from tests.inference.made import VOCAB_SIZE, engine_of, greedy, run, tokens_of
from tests.model.test_llama import as_ours

pytestmark = pytest.mark.slow

PROMPT = [5, 17, 300, 41]
# A length penalty with which short texts score better.
SHORT = {"length_penalty": -0.5, "repetition_penalty": 1.3}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return (our model, the transformers model with the same weights, a tokenizer)."""
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds, for every process that collects tests

    sizes = {"num_attention_heads": 4, "hidden_size": 32, "max_position_embeddings": 64}
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        intermediate_size=48,
        num_hidden_layers=2,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        **sizes,
    )
    theirs = LlamaForCausalLM(config).eval()
    run_config = load(
        "gpt-tiny",
        {
            "model.architecture": "llama",
            "model.num_layers": 2,
            "model.hidden_size": 32,
            "model.num_attention_heads": 4,
            "model.num_query_groups": 2,
            "model.ffn_hidden_size": 48,
            "model.seq_length": 64,
            "model.norm_epsilon": config.rms_norm_eps,
            "model.rotary_base": 10000.0,
            "tokenizer.vocab_size": VOCAB_SIZE,
        },
    )
    ours = build_model(run_config).eval().requires_grad_(False)
    ours.load_state_dict(as_ours(theirs.state_dict(), run_config))
    tokenizer = made.tokenizer_in(tmp_path_factory.mktemp("tokenizer"))
    # A token that some beams choose is made the end-of-document token.
    free = run(
        engine_of(ours, tokenizer, 4),
        [Request("a", PROMPT, Generation(num_beams=4, max_new_tokens=9), False)],
    )
    tokenizer.eod_id = free["a", 0][0]["tokens"][8]
    return ours, theirs, tokenizer


@pytest.mark.parametrize(
    "changes",
    [
        {"num_beams": 4, "n": 4},
        {"num_beams": 3, "length_penalty": 2.0},
        {"num_beams": 2, "n": 2, **SHORT},
    ],
)
@pytest.mark.parametrize("more_ends", [0, 3])
def test_texts_and_scores_are_transformers(both, changes, more_ends):
    ours, theirs, tokenizer = both
    others = made.without_cache(ours, PROMPT, 2 * more_ends)[::2]
    ends = [tokenizer.eod_id, *others]
    generation = Generation(max_new_tokens=16, **changes)
    expected = theirs.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=16,
        num_beams=generation.num_beams,
        num_return_sequences=generation.n,
        length_penalty=generation.length_penalty,
        repetition_penalty=generation.repetition_penalty,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=tokenizer.eod_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    # Other requests join, leave and compete for its slots.
    engine = engine_of(ours, tokenizer, slots=6, end_ids=frozenset(others))
    engine.add(Request("first", [9, 8, 7], greedy(max_new_tokens=5), False))
    engine.add(Request("second", [9, 8, 6, 5], greedy(max_new_tokens=9), False))
    found = run(engine, [Request("beams", PROMPT, generation, False)])
    for index in range(generation.n):
        (event,) = found["beams", index]
        tokens = expected.sequences[index, len(PROMPT) :].tolist()
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        ended, tokens = end is not None, tokens[:end]
        assert event["tokens"] == tokens
        assert event["finish_reason"] == ("stop" if ended else "length")
        assert event["score"] == pytest.approx(float(expected.sequences_scores[index]), abs=1e-4)
        assert event["text"] == tokenizer.decode([*PROMPT, *tokens])[len(tokenizer.decode(PROMPT)) :]
    assert tokens_of(found["first", 0]) == made.without_cache(ours, [9, 8, 7], 5)
    assert tokens_of(found["second", 0]) == made.without_cache(ours, [9, 8, 6, 5], 9)
    assert engine.is_idle and not engine.running


def test_an_end_among_the_beams_was_compared(both):
    """Some beams in the comparison above end with the end-of-document token, so the comparison covers it."""
    ours, _, tokenizer = both
    found = run(
        engine_of(ours, tokenizer, 4),
        [Request("a", PROMPT, Generation(max_new_tokens=16, num_beams=2, n=2, **SHORT), False)],
    )
    assert "stop" in {found["a", index][0]["finish_reason"] for index in range(2)}


def test_without_a_new_token_there_are_as_many_texts_as_were_asked_for(both):
    ours, _, tokenizer = both
    engine = engine_of(ours, tokenizer, 4)
    found = run(engine, [Request("a", PROMPT, Generation(max_new_tokens=0, num_beams=4, n=2), False)])
    assert sorted(found) == [("a", -1), ("a", 0), ("a", 1)] and engine.is_idle
    assert [found["a", index][0]["finish_reason"] for index in range(2)] == ["length", "length"]
