"""Text that an imported tokenizer cannot encode: counted, reported, and refused above a limit."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.merge import merge
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views.card import data_card

EOD = "<|endoftext|>"
KNOWN, UNKNOWN = "a b a b a b", "a \u4e2d b"
"""6 known tokens; 2 known tokens and an unknown character."""


def word_piece():
    made = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, EOD: 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def unigram():
    """Return a tokenizer whose unknown token is its <pad>, as in some SentencePiece tokenizers."""
    vocab = [("<pad>", 0.0), (EOD, 0.0), ("\u2581a", -1.0), ("\u2581b", -1.0), ("\u2581", -3.0)]
    made = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


@pytest.fixture(params=[word_piece, unigram])
def make_run(request, make_config, workspace):
    """Return a function that makes a run from each source's texts, with one of several small tokenizers."""
    request.param().save(str(workspace / "small.json"))

    def make(*sources, **tokenizer):
        entries = []
        for number, texts in enumerate(sources):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            path = workspace / f"{number}.jsonl"
            if not path.is_file():  # rewriting it would make it another source
                path.write_text(lines)
            entries.append({"kind": "jsonl", "path": f"{number}.jsonl", "name": f"source-{number}"})
        return make_config(
            tokenizer={"path": "small.json", "vocab_size": 8, **tokenizer},
            data={"sources": entries, "cleaning": {"exact_dedup": True}},
        )

    return make


def count(texts, words):
    """Return copies of one text that differ in how often a word is repeated at the end."""
    return [f"{words}{' a' * number}" for number in range(texts)]


def test_unknown_tokens_are_counted_by_source(make_run, caplog):
    """Unknown tokens are counted by source, in kept documents only, and shown in the card and the report."""
    config = make_run(count(20, KNOWN), [UNKNOWN, UNKNOWN, KNOWN + " b b b"], max_unknown_fraction=0.5)
    report = prepare(config, through="encode")
    manifest = DatasetFiles.named("small").manifest()
    unknown_id = Tokenizer.load(tokenizer_dir("small")).unknown_id
    ids = DatasetFiles.named("small").open().indexed.tokens
    assert unknown_id == 0
    expected = int((ids == unknown_id).sum())
    assert expected > 0
    assert [source["unknown_tokens"] for source in manifest.sources] == [0, expected]
    assert manifest.unknown_tokens == manifest.counts["unknown_tokens"] == expected
    assert f"unknown tokens: {expected} (" in str(report)
    (warned,) = [record.message for record in caplog.records if "unknown token" in record.message]
    assert "sources[1]" in warned
    assert "are the unknown token 0 of data/tokenizer/small: the tokenizer has no token for" in warned
    card = data_card("small")
    assert card.unknown_tokens == expected
    (line,) = card.warnings
    assert line.startswith(f"source-1: {expected} of ") and "are the unknown token" in line
    assert "unknown tokens" in str(card)
    assert "unknown tokens" in card._repr_html_()


@pytest.mark.slow
def test_a_limit_of_the_run(make_run, caplog):
    """Above tokenizer.max_unknown_fraction no dataset is built; raising the limit
    reuses the encoded parts.
    """
    texts = count(4, UNKNOWN)
    with pytest.raises(DataError) as caught:
        prepare(make_run(texts), through="encode")
    assert "tokens (" in str(caught.value)
    assert "the limit of 10.00% (tokenizer.max_unknown_fraction)" in str(caught.value)
    assert DatasetFiles.named("small").manifest() is None
    report = prepare(make_run(texts, max_unknown_fraction=None), through="encode")
    assert "(1 part already encoded)" in report.steps[-1].reason
    again = make_run(texts, max_unknown_fraction=0.001)
    assert prepare(again, through="encode").steps[-1].action == "kept", "what is there is not made"


def test_text_that_is_known_says_nothing(make_run, caplog):
    """Without unknown tokens there is no warning and no row in the card."""
    prepare(make_run(count(10, KNOWN)), through="encode")
    assert DatasetFiles.named("small").manifest().unknown_tokens == 0
    assert not [record for record in caplog.records if "unknown" in record.message]
    assert "unknown tokens" not in str(data_card("small"))


def test_datasets_made_of_datasets_add_the_counts(make_run):
    """A merged dataset has the sum of the counts, or no count if one of its inputs has none."""
    prepare(make_run([UNKNOWN, KNOWN], max_unknown_fraction=None), through="encode")
    one = DatasetFiles.named("small").manifest()
    merge("both", ["small", "small"])
    assert DatasetFiles.named("both").manifest().unknown_tokens == 2 * one.unknown_tokens > 0
    value = one.to_dict()
    del value["counts"]["unknown_tokens"]
    files.write_json(DatasetFiles.named("small").manifest_json, value)
    merge("third", ["small", "both"])
    assert DatasetFiles.named("third").manifest().unknown_tokens is None
