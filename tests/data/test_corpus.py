"""One stream of different documents out of all sources, with what was dropped and why."""

import json

import pytest

from nbtrain.config.schema import JsonlSource, MockSource
from nbtrain.data import corpus as corpus_module
from nbtrain.data.corpus import Corpus
from nbtrain.errors import DataError


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return JsonlSource(kind="jsonl", path=path.name, max_broken_fraction=1.0)


def test_duplicates_empty_and_unreadable_texts(workspace):
    """Exact duplicates are dropped within and between sources, empty texts too; all are counted."""
    first = write(workspace / "a.jsonl", ["one", "two", "one", "", " \n"])
    (workspace / "b.jsonl").write_text('{"text": "two"}\n{"text": "three"}\nbroken\n')
    second = JsonlSource(kind="jsonl", path="b.jsonl", max_broken_fraction=1.0)
    corpus = Corpus([first, second])
    assert list(corpus.documents()) == ["one", "two", "three"]
    assert corpus.dropped == {"duplicate": 2, "empty": 2, "broken_line": 1}
    assert (corpus.num_documents, corpus.num_bytes) == (3, 11)
    described = corpus.describe()
    assert [(source["path"], source["documents"], source["bytes"]) for source in described] == [
        ("a.jsonl", 2, 6),
        ("b.jsonl", 1, 5),
    ]


def test_second_pass_is_from_memory_when_small(workspace, monkeypatch):
    """A small corpus is read once; a larger one is streamed again and gives the same."""
    source = write(workspace / "a.jsonl", ["one", "two", "one"])
    small, large = Corpus([source]), Corpus([source])
    whole = list(small.documents())
    (workspace / "a.jsonl").rename(workspace / "gone.jsonl")
    assert list(small.documents()) == whole
    (workspace / "gone.jsonl").rename(workspace / "a.jsonl")
    monkeypatch.setattr(corpus_module, "KEEP_BYTES", 4)
    assert list(large.documents()) == list(large.documents()) == whole
    (workspace / "a.jsonl").unlink()
    with pytest.raises(DataError, match="no such file"):
        list(large.documents())


def test_a_pass_that_is_not_finished_counts_nothing():
    """Training a tokenizer on the beginning does not make the beginning the corpus."""
    corpus = Corpus([MockSource(kind="mock", num_documents=50)])
    passing = corpus.documents()
    next(passing)
    passing.close()
    assert len(list(corpus.documents())) == corpus.num_documents == 50


def test_empty_corpus(workspace):
    """Nothing left is an error that says what went where."""
    source = write(workspace / "a.jsonl", ["", " ", 5])
    with pytest.raises(DataError) as caught:
        list(Corpus([source], "run.yaml:3: data.sources").documents())
    assert str(caught.value) == (
        "run.yaml:3: data.sources: the corpus is empty: no document is left (broken_line 1, empty 2). Name a source."
    )
