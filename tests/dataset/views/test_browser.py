"""Documents read from the .bin: their text, chunks in the loss, document ends, and searches."""

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views import browser as module
from nbtrain.dataset.views.browser import Browser
from nbtrain.dataset.views.inspect import inspect
from tests.corpus.tokenizer.byte_fallback import byte_fallback_tokenizer
from tests.dataset.dataset_maker import make_dataset
from tests.dataset.indexed_writer import IndexedWriter


def test_every_document_decodes(make_config, texts):
    """Each document decodes to its text without EOD."""
    make_dataset(make_config(), texts)
    browser = Browser("small")
    assert [browser.document(number).text for number in range(120)] == texts
    assert [document.number for document in browser.spread(4)] == [15, 45, 75, 105]
    assert [document.number for document in browser.spread(500)] == list(range(120))


def test_a_cut_document(make_config, texts):
    """A long document is truncated and marked as such, while its number of tokens is
    that of the whole document.
    """
    make_dataset(make_config(), texts)
    browser = Browser("small")
    whole, cut = browser.document(50), browser.document(50, max_tokens=5)
    assert cut.tokens == whole.tokens == len(browser.indexed[50])
    assert cut.text.endswith(" ...")
    assert whole.text.startswith(cut.text.removesuffix(" ..."))


def test_documents_of_several_sequences(make_config):
    """A document's text is the concatenation of its sequences; a document without
    sequences has an empty text.
    """
    config = make_config(data={"split_sentences": "en"})
    make_dataset(config, ["one.\ntwo.\n", "three.\n"])
    browser = Browser(config)
    assert [browser.document(number).text for number in (0, 1)] == ["one.\ntwo.\n", "three.\n"]
    assert browser.document(0).title == f"document 0 ({browser.document(0).tokens} tokens in 2 sequences)"
    dataset = dataset_of(config)
    write_index(dataset.idx, np.uint16, np.array(browser.indexed.lengths), np.array([0, 2, 2, 3]))
    browser = Browser(config)
    assert [browser.document(number).text for number in (1, 2)] == ["", "three.\n"]
    # Truncated inside the second sequence, and at its beginning.
    for count in (4, 5, 6, 7):
        assert len(browser._read(browser.indexed, 0, 2, count)) == count


def test_learnt_pieces(make_config, texts):
    """A new chunk starts where the loss mask changes; all chunks together are the text."""
    make_dataset(make_config(), texts, learnt_from=[2] * 120)
    document = Browser("small").document(3)
    assert [learnt for _, learnt in document.pieces] == [False, True]
    assert document.text == texts[3]
    assert document.to_dict()["pieces"][0]["learnt"] is False


def test_find(make_config, texts):
    """find() ignores case and returns the next document with a text, or how far it
    searched in the allowed time.
    """
    make_dataset(make_config(), texts)
    browser = Browser("small")
    assert browser.find("THE MODEL", 0) == (0, 1)
    assert browser.find("(11", 12) == (110, 111)
    assert browser.find("nowhere") == (None, 120)
    assert browser.find("(50).", 0, seconds=-1.0) == (None, 1)


def test_no_such_document(make_config, texts):
    """Document numbers outside the dataset are refused."""
    make_dataset(make_config(), texts)
    with pytest.raises(DataError) as caught:
        Browser("small").document(120)
    assert str(caught.value) == (
        "data/dataset/small/text_document: there is no document 120. The dataset has 120 "
        "documents, numbered from 0."
    )


def test_foreign_tokenizers(make_config, texts, workspace):
    """A tokenizer.json given by its path or its folder decodes the ids; any other file is refused."""
    make_dataset(make_config(), texts)
    prefix = workspace / "mine_document"
    with IndexedWriter(prefix, 300, None) as writer:
        writer.add_document(Browser("small").indexed[4][:-1])
    file = workspace / "other.json"
    file.write_bytes((workspace / "data" / "tokenizer" / "small" / "tokenizer.json").read_bytes())
    for named in ("small", "other.json", str(file), "data/tokenizer/small"):
        assert Browser(prefix, named).document(0).text == texts[4]
    assert Browser(prefix).tokenizer is None
    file.write_text("{}")
    with pytest.raises(DataError, match=r"^other\.json: not a tokenizer\.json: "):
        Browser(prefix, "other.json")


def test_ids_in_place_of_text(workspace, monkeypatch):
    """Without a known tokenizer, the ids are shown."""
    with IndexedWriter(workspace / "x_document", 100, 9) as writer:
        writer.add_document(np.array([1, 2, 3]))
    assert Browser("x_document").document(0, 3).text == "1 2 3 ..."
    monkeypatch.setattr(module, "SHOWN_TOKENS", 1)
    assert Browser("x_document").find("2 3") == (0, 1)


def test_documents_of_every_source(make_config, workspace):
    """A small source among large ones is also shown, and each document has the name of its source."""
    (workspace / "few.jsonl").write_text('{"text": "few and far between"}\n')
    sources = [
        {"kind": "jsonl", "path": "texts.jsonl", "name": "many"},
        {"kind": "jsonl", "path": "few.jsonl", "name": "few"},
    ]
    config = make_config(data={"sources": sources})
    prepare(config, through="encode")
    shown = Browser(config).spread(4)
    assert [document.source for document in shown] == ["many", "many", "few"]
    assert shown[-1].title.startswith("document 120 of few (")
    assert shown[-1].to_dict()["source"] == "few"


def test_documents_beside_sentences(make_config, workspace):
    """Documents of an extra key have no source, because the manifest's sources count
    sentences of the main key.
    """
    lines = ['{"text": "It rains. It pours.", "title": "Rain"}\n', '{"text": "Sun.", "title": "Sun"}\n']
    for name, line in zip(("wet", "dry"), lines):
        (workspace / f"{name}.jsonl").write_text(line)
    sources = [{"kind": "jsonl", "path": f"{name}.jsonl", "name": name} for name in ("wet", "dry")]
    data = {"sources": sources, "extra_json_keys": ["title"], "split_sentences": "en"}
    config = make_config(data=data)
    prepare(config, through="encode")
    main = dataset_of(config)
    beside = next(stem for stem in main.manifest().stems if stem != main.stem)
    for stem, named in ((main.stem, ["wet", "dry"]), (beside, [None, None])):
        browser = Browser(main.pair(stem))
        assert [browser.document(number).source for number in (0, 1)] == named


def test_names_of_sources_are_text(make_config, texts):
    """Source names from the manifest are escaped in HTML."""
    name = "<script>alert(1)</script>"
    sources = [{"name": name, "sequences": [0, 60]}, {"name": "b", "sequences": [60, 120]}]
    make_dataset(make_config(), texts, sources=sources)
    shown = module.Documents([document.to_dict() for document in Browser("small").spread(2)]).html()
    assert "<script>" not in shown and "of &lt;script&gt;alert(1)&lt;/script&gt; (" in shown


def test_two_files_of_gpt2(make_config, texts, workspace):
    """A folder with only vocab.json and merges.txt can decode, as with tokenizer.path."""
    make_dataset(make_config(), texts)
    (workspace / "gpt2").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (workspace / "data" / "tokenizer" / "small" / name).rename(workspace / "gpt2" / name)
    browser = Browser("small", "gpt2")
    assert browser.tokenizer == "gpt2"
    assert [browser.document(number).text for number in range(120)] == texts
    (workspace / "gpt2" / "merges.txt").write_text("no such pair\n")
    with pytest.raises(DataError, match=r"^gpt2: not a byte-level BPE: "):
        Browser("small", "gpt2")
    (workspace / "gpt2" / "merges.txt").unlink()
    with pytest.raises(DataError) as caught:
        Browser("small", "gpt2")
    assert str(caught.value) == (
        "gpt2: there is no tokenizer with this name in data/tokenizer, and none at this "
        "path. Give the path of a tokenizer.json, of a folder that holds one, or of a folder "
        "with vocab.json and merges.txt."
    )


def test_a_cut_goes_through_no_character(make_config, workspace):
    """If truncation splits a character that is several byte tokens, the character is omitted."""
    text = "hello \u4e2d\u6587 \U0001f600\U0001f469\u200d\U0001f469"
    byte_fallback_tokenizer(tokenizer_dir("small"))
    make_dataset(make_config(), [text, text], learnt_from=[2, 40])
    browser = Browser("small")
    length = len(browser.indexed[0])
    for number in (0, 1):
        shown = [browser.document(number, count).text for count in range(1, length + 1)]
        assert shown[-1] == text, "a whole document"
        for cut in shown[:-1]:
            assert text.startswith(cut.removesuffix(" ..."))
    samples = inspect("small").samples
    assert [sample["text"] for sample in samples] == [text, text]


def test_a_foreign_tokenizer_cuts_through_no_character(make_config, workspace):
    """With a tokenizer.json outside the data directory, truncation also omits a split character."""
    text = "hello \u4e2d\u6587"
    byte_fallback_tokenizer(tokenizer_dir("small"))
    make_dataset(make_config(), [text])
    browser = Browser("small", "data/tokenizer/small/brought.json")
    assert [browser.document(0, count).text for count in (3, 4, 5, 7)] == [
        "hello  ...",
        "hello  ...",
        "hello \u4e2d ...",
        "hello \u4e2d ...",
    ]
