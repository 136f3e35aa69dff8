"""A batched text equals the text that is generated alone, whichever requests join, leave, share a prompt or
wait.
"""

import functools
import operator
import random

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.config.generation import Generation
from nbtrain.inference.choice import Request
from nbtrain.model import kv_cache
from tests.inference import made
from tests.inference.made import POSITIONS, VOCAB_SIZE, engine_of, greedy, requests_of, run, tokens_of

chance = random.Random(5)
PROMPTS = [chance.choices(range(1, VOCAB_SIZE), k=length) for length in (3, 40, 7, 19, 1, 33, 12, 26, 5, 60)]
COUNT = 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return made.tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def model():
    return made.model()


@pytest.fixture(scope="module")
def alone(model):
    """Return the greedy tokens for each prompt, generated alone and without a cache."""
    found = [made.without_cache(model, prompt, COUNT) for prompt in PROMPTS]
    distinct = len({token for tokens in found for token in tokens})
    # A model that repeats itself would pass whatever the batch does.
    assert distinct > 60 and sum(len(set(tokens)) for tokens in found) > COUNT * len(found) / 2
    return found


def together(engine, joining: int = 10**9) -> list[list[int]]:
    found = run(engine, requests_of(PROMPTS, greedy(max_new_tokens=COUNT)), joining)
    return [tokens_of(found[str(number), 0]) for number in range(len(PROMPTS))]


@pytest.mark.parametrize("slots", [1, 4, 16])
@pytest.mark.parametrize("joining", [10**9, 2])
def test_texts_of_a_batch_are_those_of_each_prompt_alone(model, tokenizer, alone, slots, joining):
    """Each prompt in a batch gets the same text as alone, with prompts of unequal lengths, prefill in chunks
    of 16 tokens, and more prompts than slots.
    """
    assert together(engine_of(model, tokenizer, slots, prefill_tokens=16), joining) == alone


def test_padded_keys_are_masked_and_the_test_would_notice_if_not(model, tokenizer, alone, monkeypatch):
    """When all single tokens run in one call, as on a GPU, padded keys are masked. Without the mask, the
    texts differ from those generated alone.
    """
    monkeypatch.setattr(kv_cache, "PADDED_SHARE", 1.0)
    engine = engine_of(model, tokenizer, 16)
    # Keys of other texts are stored where a row has none.
    engine.runner.cache.tensor.normal_(generator=torch.Generator().manual_seed(1))
    assert together(engine) == alone
    monkeypatch.setattr(kv_cache.Singles, "mask", lambda self, window: None)
    engine = engine_of(model, tokenizer, 16)
    engine.runner.cache.tensor.normal_(generator=torch.Generator().manual_seed(1))
    unmasked = together(engine)
    assert sum(found == expected for found, expected in zip(unmasked, alone)) < len(PROMPTS) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {
            "position_embedding_type": "rope",
            "rotary_size": 8,
            "num_query_groups": 2,
            "normalization": "RMSNorm",
        },
        {"windows": (8, None), "activation": "swiglu", "add_bias_linear": False},
    ],
    ids=["rope and groups", "windows"],
)
def test_other_models_too(tokenizer, changes):
    model = made.model(**changes)
    expected = [made.without_cache(model, prompt, COUNT) for prompt in PROMPTS]
    assert together(engine_of(model, tokenizer, 4)) == expected


def test_draws_do_not_depend_on_the_batch(model, tokenizer):
    """Sampled tokens depend on the request's seed and the index of the text, not on the other requests in the
    batch.
    """
    how = {"temperature": 1.0, "top_k": 0, "max_new_tokens": 15, "ignore_eod": True}
    generation = Generation(**how, n=3, seed=7)
    many = run(engine_of(model, tokenizer, 5), requests_of(PROMPTS, generation))
    few = run(engine_of(model, tokenizer, 1), requests_of(PROMPTS[2:3], generation))
    texts = [tokens_of(few["0", index]) for index in range(3)]
    assert [tokens_of(many["2", index]) for index in range(3)] == texts
    assert len({tuple(text) for text in texts}) == 3
    other = run(engine_of(model, tokenizer, 1), requests_of(PROMPTS[2:3], Generation(**how, seed=8)))
    assert tokens_of(other["0", 0]) != texts[0]
    unseeded = Generation(**how, seed=None, n=2)
    found = run(engine_of(model, tokenizer, 2), requests_of(PROMPTS[2:3], unseeded))
    assert tokens_of(found["0", 0]) != tokens_of(found["0", 1])


def test_a_common_beginning_is_read_once(model, tokenizer, alone, monkeypatch):
    """A common prefix is read only once: by several texts of one prompt, and by a prompt that continues an
    earlier text.
    """
    engine, read = engine_of(model, tokenizer, 4), []
    plain = engine.runner.read
    monkeypatch.setattr(
        engine.runner,
        "read",
        lambda readings, wanted: (
            read.append(sum(len(one.tokens) for one in readings)) or plain(readings, wanted)
        ),
    )
    found = run(engine, [Request("a", PROMPTS[1], greedy(n=3), False)])
    assert all(tokens_of(found["a", index]) == alone[1] for index in range(3))
    # 40 tokens of the prompt once, its last token again for two more texts, and 19 tokens of each text.
    assert sum(read) == 40 + 2 + 3 * 19
    del read[:]
    longer = [*PROMPTS[1], *alone[1][:10], 9, 8]
    found = run(engine, [Request("b", longer, greedy(), False)])
    assert tokens_of(found["b", 0]) == made.without_cache(model, longer, COUNT)
    assert sum(read) == 2 + 19


def test_a_text_goes_on_past_the_window(model, tokenizer):
    """When the window is full, a text continues from its newest 48 tokens, which are read again. The
    beginning of a prompt that is too long is dropped.
    """
    prompt = PROMPTS[9] * 2
    engine = engine_of(model, tokenizer, 2)
    found = run(engine, [Request("a", prompt, greedy(max_new_tokens=60), slides=True)])
    tokens = [*prompt, *tokens_of(found["a", 0])]
    assert len(tokens) == 120 + 60
    assert tokens[120] == made.without_cache(model, prompt[-POSITIONS:], 1)[0]
    # Token 120 does not fit: the window starts 48 tokens before it, and has space for 48 more.
    assert tokens[121:169] == made.without_cache(model, tokens[73:121], 48)


def test_what_comes_before_a_text_stays_before_the_window(model, tokenizer):
    """Llama's <s> stays at position 0 when the window moves, as in training."""
    prompt, before = [7, 8, *PROMPTS[9] * 2], 2
    engine = engine_of(model, tokenizer, 2)
    found = run(engine, [Request("a", prompt, greedy(max_new_tokens=60), slides=True, kept=before)])
    tokens = [*prompt, *tokens_of(found["a", 0])]
    kept = POSITIONS - before
    assert tokens[122] == made.without_cache(model, [7, 8, *prompt[-kept:]], 1)[0]
    again = [7, 8, *tokens[123 - 46 : 123]]
    assert tokens[123:171] == made.without_cache(model, again, 48)


def test_the_end_of_a_document_ends_a_text(model, tokenizer, alone):
    """The end-of-document token ends a text; it is not part of the text and is not counted."""
    last_id = alone[0][5]
    count = alone[0].index(last_id)
    tokenizer.eod_id, kept = last_id, tokenizer.eod_id
    try:
        asked = greedy(ignore_eod=False, logprobs=0)
        found = run(engine_of(model, tokenizer), requests_of(PROMPTS[:1], asked))
    finally:
        tokenizer.eod_id = kept
    (*_, last), (end,) = found["0", 0], found["0", -1]
    assert tokens_of(found["0", 0]) == alone[0][:count]
    assert last["finish_reason"] == "stop" and last["new_tokens"] == count > 0
    with torch.no_grad():
        values = model(torch.tensor([[*PROMPTS[0], *alone[0][:count]]]))[0, -1].log_softmax(-1)
    entry = last["end_logprob"]
    assert (entry["id"], entry["logprob"]) == (last_id, pytest.approx(float(values[last_id]), abs=1e-4))
    # The position where it begins, after the texts of the prompt and of the new tokens.
    written = (
        tokenizer.decode_finished(PROMPTS[0])[0],
        tokenizer.decode_finished([*PROMPTS[0], *alone[0][:count]])[0],
    )
    assert (entry["offset"], found["0", 0][0]["logprobs"][0]["offset"]) == (len(written[1]), len(written[0]))
    assert end == {"id": "0", "end": True, "prompt_tokens": 3, "new_tokens": count}


def test_any_of_several_tokens_ends_a_text(model, tokenizer, alone):
    """Several tokens can end a text, as in Llama 3 Instruct, in addition to the tokenizer's end-of-document
    token.
    """
    text = alone[1]
    third, fifth = text[2], text[4]
    assert (text.index(third), text.index(fifth)) == (2, 4) and tokenizer.eod_id not in text
    for ends, count in ((frozenset({third, fifth}), 2), (frozenset({fifth}), 4), (frozenset(), COUNT)):
        engine = engine_of(model, tokenizer, end_ids=ends)
        assert engine.end_ids == ends | {tokenizer.eod_id}
        found = run(engine, requests_of(PROMPTS[1:2], greedy(ignore_eod=False)))
        assert tokens_of(found["0", 0]) == text[:count]
        assert found["0", 0][-1]["finish_reason"] == ("stop" if ends else "length")


def test_a_stop_string_ends_a_text_before_it(model, tokenizer, alone):
    """A text ends before a stop string. No part of the stop string is returned, even if it spans several
    tokens.
    """
    whole = "".join(event["text"] for event in run_one(model, tokenizer, 0, greedy()))
    stop = whole[7:10]
    assert len(stop) == 3
    events = run_one(model, tokenizer, 0, greedy(stop=("never there", stop)))
    assert "".join(event["text"] for event in events) == whole[: whole.index(stop)]
    assert events[-1]["finish_reason"] == "stop" and events[-1]["stop"] == stop


@pytest.mark.parametrize("stop", [(), ("never there",)])
def test_a_text_that_is_not_streamed_has_two_events(model, tokenizer, stop):
    """A client that waits for the whole text gets its first piece and the rest: all that a stream has."""
    generation = greedy(stop=stop, logprobs=1)
    pieces = run_one(model, tokenizer, 0, generation)
    first, rest = run_one(model, tokenizer, 0, generation, streams=False)
    assert first == pieces[0] and len(pieces) > 3
    for key in ("text", "tokens", "logprobs"):
        assert rest[key] == functools.reduce(operator.add, (piece[key] for piece in pieces[1:]))
    assert [rest[key] for key in ("finish_reason", "new_tokens")] == ["length", COUNT]


def run_one(model, tokenizer, number: int, generation: Generation, **how) -> list[dict]:
    request = Request("0", PROMPTS[number], generation, False, **how)
    return run(engine_of(model, tokenizer), [request])["0", 0]


def test_log_probabilities_are_the_models(model, tokenizer, alone):
    """Log-probabilities are computed from the model's logits before temperature, top-k and top-p are applied;
    with echo, the prompt's are returned too.
    """
    prompt = PROMPTS[3]
    generation = greedy(logprobs=2, echo=True, n=2, max_new_tokens=6)
    found = run(engine_of(model, tokenizer, prefill_tokens=8), [Request("a", prompt, generation, False)])
    events = found["a", -1]
    assert events[0]["prompt"]["text"] == tokenizer.decode(prompt)
    of_prompt = [entry for event in events for entry in event.get("prompt_logprobs", [])]
    with torch.no_grad():
        values = model(torch.tensor([[*prompt, *alone[3][:6]]]))[0].log_softmax(-1)
    assert [entry["id"] for entry in of_prompt] == prompt[1:]
    tokens = [*prompt, *alone[3][:6]]
    for index in range(2):
        own = [entry for event in found["a", index] for entry in event["logprobs"]]
        for place, entry in enumerate([*of_prompt, *own]):
            assert entry["id"] == tokens[place + 1]
            assert entry["logprob"] == pytest.approx(float(values[place, entry["id"]]), abs=1e-4)
            best = values[place].topk(2)
            assert [one["id"] for one in entry["top"]] == best.indices.tolist()
            assert bytes(entry["bytes"]) == tokenizer.bytes_of(entry["id"])


def test_a_prompt_can_be_scored_alone(model, tokenizer):
    """A prompt can be scored without generating a token."""
    generation = greedy(logprobs=0, echo=True, max_new_tokens=0)
    found = run(engine_of(model, tokenizer), [Request("a", PROMPTS[2], generation, False)])
    assert len([e for event in found["a", -1] for e in event.get("prompt_logprobs", [])]) == 6
    assert found["a", 0][-1]["finish_reason"] == "length" and found["a", -1][-1]["new_tokens"] == 0


def test_a_cancelled_request_gives_its_slots_back(model, tokenizer, alone):
    """A cancelled request frees its slots, and the others continue unchanged."""
    engine = engine_of(model, tokenizer, 3)
    for request in requests_of(PROMPTS[:5], greedy(max_new_tokens=COUNT)):
        engine.add(request)
    found: dict[str, list[int]] = {}
    for step in range(200):
        for event in engine.step():
            found.setdefault(event["id"], []).extend(event.get("tokens", []))
        if step == 4:
            engine.cancel("0")
            engine.cancel("3")
            engine.cancel("never there")
    assert engine.is_idle and engine.running == []
    assert [found[str(number)] for number in (1, 2, 4)] == [alone[1], alone[2], alone[4]]
    assert "3" not in found and len(found["0"]) < COUNT


@pytest.mark.parametrize(
    ("prompt", "changes", "message"),
    [
        ([], {}, "the prompt has no tokens; it must have at least one."),
        ([1, 320], {}, "token id 320 in the prompt must be from 0 to 319."),
        (
            [1] * 80,
            {},
            "the prompt has 80 tokens and the request is for 20 new tokens, but the model has only 96 "
            "positions. Shorten the prompt or request at most 16 new tokens.",
        ),
        (
            [1] * 96,
            {},
            "the prompt has 96 tokens and the request is for 20 new tokens, but the model has only 96 "
            "positions. Shorten the prompt.",
        ),
        ([1], {"logit_bias": ((400, 1.0),)}, "logit_bias: token id 400 must be from 0 to 319."),
        ([1], {"num_beams": 5}, "num_beams = 5 must be at most 4, the number of slots in the batch."),
    ],
)
def test_what_the_model_has_no_room_for_is_refused(model, tokenizer, prompt, changes, message):
    engine = engine_of(model, tokenizer)
    with pytest.raises(ConfigError) as error:
        engine.add(Request("a", prompt, greedy(**changes), False))
    assert str(error.value) == message and engine.is_idle
