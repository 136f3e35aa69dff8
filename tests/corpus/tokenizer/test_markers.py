"""Special tokens written in a template are reported before data is built with it."""

import logging

import pytest

import nbtrain as nb
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.load import load
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.markers import markers_as_letters, markers_sentence
from nbtrain.dataset.prepare.prepare import prepare
from tests.corpus.tokenizer.test_beginning import written

CHAT = {"kind": "chat", "path": "talks.jsonl"}
MARKED = {**CHAT, "template": "<s>{role} {content}</s>"}


def config_of(source, **tokenizer):
    settings = {f"tokenizer.{key}": value for key, value in {"name": "mine", **tokenizer}.items()}
    return load("gpt-tiny", {"data.sources": [source], "data.name": "talks", **settings}, check=False)


@pytest.fixture
def theirs(workspace):
    """Write a tokenizer with the special tokens <s> and </s>, which is not imported yet."""
    return written(workspace / "theirs")


def test_special_tokens_of_the_template(theirs):
    """Special tokens in a template are found both before and after the tokenizer is imported."""
    assert markers_as_letters(config_of(MARKED)) == []
    to_be_taken = config_of(MARKED, path=str(theirs))
    assert markers_as_letters(to_be_taken) == ["<s>", "</s>"]
    assert markers_as_letters(config_of(MARKED, path=str(theirs / "tokenizer.json"))) == ["<s>", "</s>"]
    assert markers_as_letters(config_of(MARKED, path=str(theirs), added_tokens=["<s>"])) == ["</s>"]
    adopt(theirs, "</s>", tokenizer_dir("mine"))
    assert markers_as_letters(config_of(MARKED)) == ["<s>", "</s>"]
    adopt(theirs, "</s>", tokenizer_dir("added"), ["<s>"])
    assert markers_as_letters(config_of(MARKED, name="added")) == ["</s>"]
    for source in (CHAT, {"kind": "mock"}, {"kind": "alpaca", "path": "x.json"}):
        assert markers_as_letters(config_of(source)) == []
    alpaca = {"kind": "alpaca", "path": "x.json", "template": "<s>{instruction}"}
    assert markers_as_letters(config_of(alpaca)) == ["<s>"]
    # Role names are part of the rendered text too.
    role = {**CHAT, "roles": {"x": "<s>"}}
    assert markers_as_letters(config_of(role)) == ["<s>"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"added_tokens": [1]}', '{"added_tokens": [{}]}'])
def test_a_damaged_tokenizer_is_another_finding(content, workspace):
    """A damaged tokenizer is not reported here, because reading it later raises the error."""
    tokenizer_dir("mine").mkdir(parents=True)
    (tokenizer_dir("mine") / "tokenizer.json").write_text(content)
    assert markers_as_letters(config_of(MARKED)) == []


def test_check_and_prepare_say_it(theirs, workspace, caplog):
    config = config_of(MARKED, path=str(theirs), eod_token="</s>", vocab_size=64, max_unknown_fraction=1)
    said = (
        "the conversation template contains <s>, </s>, which are special tokens of the tokenizer. Training "
        "encodes the template as plain characters, so the model does not see these tokens, which it may "
        "know from pretraining."
    )
    fix = (
        "List such markers in tokenizer.added_tokens, with a separate tokenizer for this run; their ids stay "
        "the same (docs/finetuning.md). </s> is tokenizer.eod_token, which no text may contain as a token: "
        "set tokenizer.eod_token to another token."
    )
    assert markers_sentence(config) == (said, fix)
    (found,) = [one for one in nb.check(config).findings if one.rule == "markers"]
    assert (found.level, found.key, found.message, found.fix) == ("warning", "data.sources", said, fix)
    (workspace / "talks.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]}\n' * 30
    )
    with caplog.at_level(logging.WARNING):
        prepare(config, through="encode")
    assert [record for record in caplog.messages if said in record and fix in record]
    caplog.clear()
    prepare(config, through="encode")
    assert not caplog.messages
