"""Log-probabilities of given continuations equal the results of full forward passes, whatever else the engine
generates.
"""

import random

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.inference.scored import ScoreRequest, scores_of
from tests.inference import made
from tests.inference.made import VOCAB_SIZE, engine_of, greedy, requests_of

chance = random.Random(11)


def tokens(count: int) -> list[int]:
    return chance.choices(range(1, VOCAB_SIZE), k=count)


BEGINNING = tokens(20)
# (context, continuations): one token, several, a common beginning, a context of one token, all positions.
ASKED = [
    (tokens(30), [[5], [6], [7], [8]]),
    (tokens(12), [tokens(9), tokens(4), tokens(1), tokens(17)]),
    ([*BEGINNING, *tokens(3)], [tokens(6), tokens(2)]),
    ([*BEGINNING, *tokens(8)], [tokens(3)]),
    ([3], [tokens(40)]),
    (tokens(1), [tokens(made.POSITIONS)]),
    (tokens(made.POSITIONS), [tokens(1)]),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return made.tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def model():
    return made.model()


def expected(model, context, continuation) -> tuple[list[float], bool]:
    whole = [*context, *continuation]
    with torch.inference_mode():
        logits = model(torch.tensor([whole[:-1]]))[0, len(context) - 1 :].double()
    ids = torch.tensor(continuation)
    found = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    return found.tolist(), bool((logits.argmax(-1) == ids).all())


def scored(engine, asked=ASKED, others=()) -> dict[tuple[str, int], dict]:
    """Return {(request, continuation): its event}, scored while the engine generates text for the requests in
    `others`.
    """
    for request in others:
        engine.add(request)
    for number, (context, continuations) in enumerate(asked):
        engine.score(ScoreRequest(f"s{number}", list(context), continuations))
    found, ends = {}, []
    while not engine.is_idle:
        for event in engine.step():
            if event["id"].startswith("s"):
                if "end" in event:
                    ends.append(event["id"])
                else:
                    found[event["id"], event["index"]] = event
    assert sorted(ends) == sorted(f"s{number}" for number in range(len(asked)))
    return found


@pytest.mark.parametrize("slots, budget", [(1, 1024), (4, 16), (16, 1024)])
def test_scores_are_those_of_full_passes(model, tokenizer, slots, budget):
    """Scores equal full forward passes with one slot and with many, with small and large token budgets, while
    other texts are generated.
    """
    engine = engine_of(model, tokenizer, slots, prefill_tokens=16)
    engine.scored_tokens = budget
    prompts = [tokens(7), tokens(25)]
    found = scored(engine, others=requests_of(prompts, greedy(max_new_tokens=8)))
    for number, (context, continuations) in enumerate(ASKED):
        for index, continuation in enumerate(continuations):
            event = found[f"s{number}", index]
            logprobs, is_greedy = expected(model, context, continuation)
            assert event["logprobs"] == pytest.approx(logprobs, abs=1e-5)
            assert event["greedy"] is is_greedy


def test_what_the_model_would_say_is_greedy(model, tokenizer):
    """A continuation is marked greedy only if greedy decoding would produce exactly these tokens."""
    context = tokens(10)
    text = made.without_cache(model, context, 6)
    other = [*text[:3], (text[3] + 1) % VOCAB_SIZE, *text[4:]]
    found = scored(engine_of(model, tokenizer), [(context, [text, other])])
    assert (found["s0", 0]["greedy"], found["s0", 1]["greedy"]) == (True, False)


def test_a_context_is_read_once(model, tokenizer, monkeypatch):
    """A context is read once for all its continuations, and a prefix shared by two contexts is read once for
    both.
    """
    engine, read = engine_of(model, tokenizer, 1), []
    plain = engine.runner.read
    monkeypatch.setattr(
        engine.runner,
        "read",
        lambda readings, wanted: (
            read.append(sum(len(one.tokens) for one in readings)) or plain(readings, wanted)
        ),
    )
    scored(engine, ASKED[:1])
    # The context, and its last token again for each further continuation of one token.
    assert read == [30, 1, 1, 1]
    del read[:]
    scored(engine, ASKED[2:4])
    first, second = (sum(len(one) - 1 for one in continuations) for _, continuations in ASKED[2:4])
    assert sum(read) == 23 + first + 1 + (28 - 20) + second


def test_the_likeliest_of_equal_logits_is_the_first():
    """If several tokens have the same highest logit, the first one counts as the most likely, as in argmax,
    also in rows after the first block.
    """
    logits = torch.zeros(600, 7)
    logits[:, 3] = logits[:, 5] = 2.0
    labels = [(3, 5, 0)[row % 3] for row in range(600)]
    found = scores_of(logits, labels)
    assert found.are_likeliest == [label == 3 for label in labels]
    row = logits[0].log_softmax(0)
    assert found.logprobs == pytest.approx([float(row[label]) for label in labels])


def test_what_cannot_be_scored_is_refused(model, tokenizer):
    engine = engine_of(model, tokenizer)
    for context, continuations, said in (
        ([], [[1]], "the context and each of its continuations must have at least one token."),
        ([1], [[2], []], "the context and each of its continuations must have at least one token."),
        ([1], [], "the context and each of its continuations must have at least one token."),
        ([1], [[VOCAB_SIZE]], "token id 320 in the prompt must be from 0 to 319."),
        (
            [1] * 90,
            [[1] * 8],
            "the longest text to score has 97 tokens to read, but the model has only 96 positions.",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            engine.score(ScoreRequest("a", context, continuations))
        assert str(error.value) == said
    assert engine.is_idle


def test_a_request_that_is_cancelled_says_nothing_more(model, tokenizer):
    """A cancelled request yields no more events, and its slot is freed."""
    engine = engine_of(model, tokenizer, 1)
    engine.score(ScoreRequest("gone", ASKED[0][0], ASKED[0][1]))
    engine.step()
    engine.cancel("gone")
    assert list(scored(engine, ASKED[1:2])) == [("s0", index) for index in range(4)]
