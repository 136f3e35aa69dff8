"""Scores of questions, computed from known log-probabilities."""

import math

import pytest

from nbtrain.evaluation.encoding import encode_pair, fitted
from nbtrain.evaluation.questions import Questions
from nbtrain.evaluation.requests import Scored
from tests.evaluation import made
from tests.inference.made import beginning_tokenizer_in, tokenizer_in


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


def answered(task: Questions, nats_of):
    """Return the outcome for a model whose -ln p of a continuation is nats_of(context, continuation)."""
    asked = list(task.requests())
    done = 0
    # In another order than requested, as an engine answers.
    for number in reversed(range(len(asked))):
        context, continuations = asked[number]
        scored = [Scored([-nats_of(context, one)], nats_of(context, one) < 1) for one in continuations]
        done += task.take(number, scored)
    assert done == task.total
    return task.outcome()


def test_the_likeliest_choice(tmp_path, tokenizer):
    """acc compares sums of log-probabilities and acc_norm sums per character, both also for each group."""
    lines = [
        {"context": "a b", "choices": ["cc", "dddddddd"], "answer": 0, "group": "x"},
        {"context": "a c", "choices": ["cc", "dddddddd"], "answer": 1, "group": "x"},
        {"context": "a d", "choices": ["cc", "cc"], "answer": 1, "group": "y"},
        {"context": "a e", "choices": ["cc", "cc"], "answer": 0},
    ]
    path = made.write_lines(tmp_path / "own.jsonl", lines)
    task = Questions("multiple_choice", path, tokenizer, 96)
    nats = {" cc": 2.0, " dddddddd": 4.0}
    outcome = answered(task, lambda context, one: nats[tokenizer.decode(one)])
    # Per character 1.0 and 0.5, so the second one. A tie goes to the first one.
    assert (outcome.metrics["acc"].value, outcome.metrics["acc_norm"].value) == (0.5, 0.5)
    assert outcome.groups["x"]["acc"] == {"value": 0.5, "stderr": 0.5}
    assert outcome.groups["y"] == {"examples": 1, "acc": {"value": 0.0, "stderr": None}}
    assert outcome.counts == {"examples": 4, "truncated": 0}
    assert task.name == "multiple-choice-own"
    assert Questions("lambada", made.files_in(tmp_path)["lambada"], tokenizer, 96).name == "lambada"


def test_last_words(tmp_path, tokenizer):
    """acc says whether the last word is the greedy choice; perplexity is per word, not per token."""
    task = Questions("lambada", made.files_in(tmp_path)["lambada"], tokenizer, 96)
    nats = iter([0.5, 2.0, 6.5] * 2)
    kept = {}
    outcome = answered(task, lambda context, one: kept.setdefault(tuple(one), next(nats)))
    assert outcome.metrics["acc"].value == pytest.approx(1 / 3)
    assert outcome.metrics["perplexity"].value == pytest.approx(math.exp(3.0))


def test_a_pair_is_cut_where_the_context_ends(tokenizer):
    """Spaces belong to the continuation; an empty context is the end-of-document token."""
    assert encode_pair(tokenizer, "", " yes") == ([tokenizer.eod_id], tokenizer.encode(" yes").tolist())
    before, after = encode_pair(tokenizer, "a text ", "here")
    assert tokenizer.decode(before) == "a text" and tokenizer.decode(after) == " here"


def test_a_pair_begins_as_a_text_of_its_tokenizer(tmp_path):
    """A context begins with <s> if the tokenizer puts it before a text, once; an empty context is <s>."""
    begins = beginning_tokenizer_in(tmp_path / "mine", tmp_path / "theirs")
    text, here = begins.encode("a text").tolist(), begins.encode(" here").tolist()
    for context in ("a text", "a text ", "<s>a text"):
        continuation = "here" if context.endswith(" ") else " here"
        assert encode_pair(begins, context, continuation) == ([begins.bos_id, *text], here)
    for continuation in (" here", "<s> here"):
        assert encode_pair(begins, "", continuation) == ([begins.bos_id], here)


def test_what_is_too_long_is_cut_on_the_left(tmp_path, tokenizer):
    """Context and continuation are truncated on the left to one token more than the model's positions."""
    assert fitted([1, 2, 3, 4, 5], [6, 7], 4) == ([3, 4, 5], [6, 7])
    assert fitted([1, 2, 3], [6, 7], 4) == ([1, 2, 3], [6, 7])
    assert fitted([1, 2, 3], [4, 5, 6, 7, 8], 4) == ([3], [5, 6, 7, 8])
    lines = [{"context": "many words " * 60 + "end", "choices": ["a", "a longer one"], "answer": 0}]
    path = made.write_lines(tmp_path / "long.jsonl", lines)
    task = Questions("multiple_choice", path, tokenizer, 32)
    asked = list(task.requests())
    # The two choices leave room for contexts of two lengths.
    assert [len(one.context) + len(one.continuations[0]) for one in asked] == [33, 33]
    for number in range(2):
        task.take(number, [Scored([-1.0 - number], False)])
    assert task.outcome().counts == {"examples": 1, "truncated": 2}
