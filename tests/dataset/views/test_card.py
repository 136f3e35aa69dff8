"""The data card: correct numbers, readable text, pictures, and pages that need no other file."""

import json
import re
import shutil

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views import duplicates
from nbtrain.dataset.views.card import data_card
from nbtrain.dataset.views.inspect import inspect
from tests.corpus.wiki.conftest import dump_xml, page
from tests.dataset.dataset_maker import make_dataset, make_tokenizer
from tests.dataset.indexed_writer import IndexedWriter


def test_card_of_a_run(make_config, texts):
    """Counts, lengths and splits match the dataset, and the sample documents are its texts."""
    config = make_config()
    manifest = make_dataset(config, texts)
    card = data_card(config)
    assert (card.documents, card.tokens) == (120, manifest.counts["tokens"])
    assert card.bytes_per_token == sum(map(len, texts)) / card.tokens
    assert sum(card.histogram["counts"]) == 120
    assert [(split["name"], split["documents"]) for split in card.splits] == [
        ("train", 84),
        ("valid", 24),
        ("test", 12),
    ]
    assert [sample["text"] for sample in card.samples if not sample["text"].endswith(" ...")]
    for sample in card.samples:
        assert texts[sample["document"]].startswith(sample["text"].removesuffix(" ..."))
    assert json.loads(json.dumps(card.to_dict()))["tokens"] == card.tokens


def test_sentences_of_wikitext(make_config, workspace):
    """The number of sentences dropped because of unknown templates is in the
    manifest, the report and the card.
    """
    texts = [f"Text {number} is here. It has {{{{unknown|5}}}} words. It ends." for number in range(3)]
    pages = [page(f"Page {number}", text) for number, text in enumerate(texts)]
    (workspace / "dump.xml").write_bytes(dump_xml(pages))
    config = make_config(data={"sources": [{"kind": "wiki", "path": "dump.xml"}]})
    report = prepare(config, through="encode")
    (source,) = DatasetFiles.named("small").manifest().sources
    assert (source["sentences"], source["dropped_sentences"]) == (9, 3)
    assert source["unknown_templates"] == {"unknown": 3}
    assert "templates that cannot be evaluated: 3 of 9 (33.33%)" in str(report)
    card = str(data_card("small"))
    assert re.search(r"dropped: sentences +3 of 9 \(33\.33%\)\n", card)
    assert re.search(r"templates not evaluated +unknown 3\n", card)


@pytest.mark.slow
def test_card_shows_itself(make_config):
    """Text and HTML show the same numbers; HTML escapes the documents and is reproducible."""
    config = make_config(data={"split": "1,0,0"})
    make_dataset(config, ["<script>alert(1)</script> text"])
    card = data_card(config)
    assert re.search(r"documents +1\n", str(card))
    assert "<script>" not in card._repr_html_()
    assert "&lt;script&gt;" in card._repr_html_()
    assert card._repr_html_() == data_card(config)._repr_html_()


def test_documents_command_no_terminal(make_config, workspace):
    """Control sequences in documents and source names are escaped on a terminal; HTML and JSON keep them."""
    text = "one \x1b[31mred\x07 \u202ebackwards\r\nand a line"
    (workspace / "texts.jsonl").write_text(json.dumps({"text": text}) + "\n")
    source = {"kind": "jsonl", "path": "texts.jsonl", "attribution": "me\x1b[2J\nand you"}
    config = make_config(data={"split": "1,0,0", "sources": [source]}, evaluation={"eval_iters": 0})
    prepare(config, through="encode")
    card = data_card(config)
    for shown in (str(card), str(inspect(config))):
        assert all(one.isprintable() or one == "\n" for one in shown)
        assert "  | one \\x1b[31mred\\x07 \\u202ebackwards\n  | and a line\n" in f"{shown}\n"
    assert "me\\x1b[2J\\nand you" in str(card)
    assert card.samples[0]["text"] == text
    assert text in card._repr_html_()


def test_card_by_name_and_by_prefix(make_config, texts, workspace):
    """A name in the data directory, a prefix, and either file of a pair select the same dataset."""
    config = make_config()
    make_dataset(config, texts)
    by_name = data_card("small")
    prefix = dataset_of(config).prefix
    for target in (prefix, prefix.with_suffix(".bin"), "data/dataset/small/text_document"):
        assert data_card(str(target)).dataset_sha256 == by_name.dataset_sha256
    # Elsewhere, without a manifest and a tokenizer, the ids are shown.
    for suffix in (".bin", ".idx"):
        shutil.copy(prefix.with_suffix(suffix), workspace / f"mine_sentence{suffix}")
    card = data_card("mine_sentence")
    assert (card.tokens, card.tokenizer, card.text_bytes) == (by_name.tokens, None, None)
    assert re.fullmatch(r"[\d ]+( \.\.\.)?", card.samples[0]["text"])


def test_unknown_dataset(make_config, texts):
    """The error for an unknown name lists the existing datasets."""
    make_dataset(make_config(), texts)
    with pytest.raises(DataError) as caught:
        data_card("smal")
    assert str(caught.value) == (
        "smal: there is no dataset with this name in data/dataset, and no smal.idx. Existing datasets: small."
    )


def test_damaged_manifest(make_config, texts):
    """A manifest that is not JSON, incomplete or of another version is refused with the fix."""
    config = make_config()
    make_dataset(config, texts)
    manifest = dataset_of(config).manifest_json
    whole = json.loads(manifest.read_text())
    for content, said in (
        ("{", "not JSON"),
        ('{"schema_version": 7}', "schema_version is 7, but must be 1"),
        ('{"schema_version": 1}', "the manifest is incomplete"),
        ("[1]", "schema_version is None, but must be 1"),
        (
            json.dumps({**whole, "files": {"x.bin": {"bytes": 1}}}),
            "each entry of files must have bytes and sha256",
        ),
        (json.dumps({**whole, "files": 3}), "the manifest is incomplete"),
        (json.dumps({**whole, "counts": {}}), "counts must have documents, tokens, bytes and dropped"),
    ):
        manifest.write_text(content)
        with pytest.raises(DataError) as caught:
            data_card(config)
        assert said in str(caught.value)
        assert str(caught.value).endswith("Run `nbtrain prepare RUN.yaml --force` to make the dataset again.")


def test_epochs_and_the_warning(make_config, texts):
    """Each split has its samples, tokens and epochs; more than four epochs give a
    warning that cites its source.
    """
    config = make_config()
    make_dataset(config, texts)
    card = data_card(config)
    train, valid, _ = card.splits
    assert train["samples"] == 30 * 4
    assert train["epochs"] == 120 * 16 / train["tokens"] < 4
    assert valid["samples"] == 2 * 4
    assert card.warnings == []
    longer = make_config(batch={"train_tokens": 16 * 4 * 400})
    train = data_card(longer).splits[0]
    assert data_card(longer).warnings == [
        f"training reads {train['tokens']:,} tokens {1600 * 16 / train['tokens']:.1f} times. "
        "Beyond 4 epochs, repeated text adds less and less (arXiv:2305.16264). Use "
        "more text, or fewer train_tokens."
    ]
    assert ">warning</strong>: training reads" in data_card(longer)._repr_html_()
    assert "warning: training reads" in str(data_card(longer))


SOURCES = [
    {
        "kind": "jsonl",
        "name": "books",
        "documents": 20,
        "bytes": 3000,
        "tokens": 1000,
        "sequences": [0, 20],
        "licence": "CC0",
    },
    {
        "kind": "text",
        "name": "text",
        "documents": 100,
        "bytes": 9000,
        "tokens": 3000,
        "licence": None,
        "attribution": "A. Writer",
    },
]


def test_sources(make_config, texts):
    """The card shows the bytes per token of each source, and a picture of the sources' tokens."""
    config = make_config()
    make_dataset(config, texts, sources=SOURCES, dropped={"empty": 3, "duplicate": 2})
    card = data_card("small")
    assert [source["tokens"] for source in card.sources] == [1000, 3000]
    text = str(card)
    assert re.search(r"source +documents +bytes +tokens +bytes/token +licence +attribution\n", text)
    assert re.search(r"\n +text +100 +9,000 +3,000 +3\.000 +not stated +A\. Writer\n", text)
    assert re.search(r"dropped: duplicate +2\n", text)
    assert card._repr_html_().count("data:image/svg+xml;base64,") == 2


def test_duplicates_are_found_in_the_bin(make_config, texts, monkeypatch):
    """Duplicate documents are counted by comparing tokens, in all documents or in a sample."""
    config = make_config()
    make_dataset(config, [*texts, texts[3], texts[3], texts[7]])
    assert data_card("small").duplicates == {"copies": 3, "checked": 123, "documents": 123}
    assert re.search(r"exact duplicates +3 of 123 documents\n", str(data_card("small")))
    monkeypatch.setattr(duplicates, "MAX_DOCUMENTS", 50)
    found = data_card("small").duplicates
    assert found["checked"] <= 50
    assert f"among {found['checked']} documents drawn at random from 123" in str(data_card("small"))
    monkeypatch.setattr(duplicates, "MAX_HASHED_BYTES", 0)
    monkeypatch.setattr(duplicates, "MAX_DOCUMENTS", 1000)
    # Data that can no longer be hashed does not count as examined.
    assert data_card("small").duplicates == {"copies": 0, "checked": 118, "documents": 123}


def test_documents_of_several_sequences(make_config, texts):
    """Lengths are measured per document; the number of sequences is shown too."""
    config = make_config(data={"split_sentences": "en"})
    make_dataset(config, ["one.\ntwo.\n", "three.\n"])
    card = data_card(config)
    assert (card.documents, card.sequences) == (2, 3)
    assert card.lengths["maximum"] + card.lengths["minimum"] == card.tokens
    assert [sample["text"] for sample in card.samples] == ["one.\ntwo.\n", "three.\n"]
    assert card.prefix.endswith("text_sentence")


def test_learnt_tokens_are_shown(make_config, texts):
    """With a loss mask, the card shows the share of tokens in the loss and colours them in the documents."""
    config = make_config()
    make_dataset(config, texts, learnt_from=[3] * 120)
    card = data_card(config)
    assert card.learnt_tokens == card.tokens - 3 * 120
    first = card.samples[0]
    assert [piece["learnt"] for piece in first["pieces"]] == [False, True]
    assert "".join(piece["text"] for piece in first["pieces"]) == first["text"] == texts[first["document"]]
    assert "background-color:rgba(46,158,79,.18)" in card._repr_html_()
    assert re.search(rf"tokens in the loss +{card.learnt_tokens:,} \(\d\d\.\d%\)\n", str(card))


def test_another_pair_beside_it(make_config, texts):
    """The pair of an extra key is described without the text statistics of the main pair."""
    config = make_config()
    whole = make_dataset(config, texts)
    dataset = dataset_of(config)
    other = dataset.pair("title_document")
    with IndexedWriter(other.prefix, 300, 0) as writer:
        writer.add_document(np.array([5, 6]))
    value = {**whole.to_dict(), "files": {**whole.files, **writer.written.files}}
    dataset.manifest_json.write_text(json.dumps(value))
    assert data_card("small").documents == 120
    card = data_card(str(other.prefix))
    assert (card.documents, card.text_bytes, card.vocab_size) == (1, None, whole.vocab_size)


def test_another_tokenizer_by_name(make_config, texts, workspace):
    """A tokenizer given by name decodes the card's documents; one that is too small or missing is refused."""
    config = make_config()
    make_dataset(config, texts)
    make_tokenizer("tiny", ["x"], 257)
    path = workspace / "data" / "tokenizer" / "small" / "tokenizer.json"
    card = data_card("small", str(path))
    assert card.tokenizer == "data/tokenizer/small/tokenizer.json"
    assert [sample["text"] for sample in card.samples] == [
        texts[sample["document"]] for sample in card.samples
    ]
    with pytest.raises(DataError) as caught:
        data_card("small", "tiny")
    assert re.fullmatch(
        r"data/dataset/small/text_document\.bin: the file holds token id \d+, but "
        r"data/tokenizer/tiny has 257 entries\. The dataset was encoded with another "
        r"tokenizer: give the name of that tokenizer\.",
        str(caught.value),
    )
    with pytest.raises(
        DataError, match=r"^none: there is no tokenizer with this name in data/tokenizer, and none at"
    ):
        data_card("small", "none")


def test_page_stands_by_itself(make_config, texts, workspace, capsys):
    """`data card` writes an HTML page in UTF-8 that needs no other file, and JSON."""
    config = make_config()
    make_dataset(config, ["naïve café 東京", *texts])
    page, values = workspace / "card.html", workspace / "card.json"
    assert cli.main(["data", "card", "small", "--html", str(page), "--json", str(values)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in text
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert json.loads(values.read_text())["documents"] == 121
    assert "bytes/token" in capsys.readouterr().out
    before = page.read_bytes()
    for flag in ("--html", "--json"):
        (workspace / "run.yaml").write_bytes(before)
        assert cli.main(["data", "card", "small", flag, str(workspace / "run.yaml")]) == 2
        assert f"run.yaml: name a file that ends in .{flag[2:]} for {flag}." in capsys.readouterr().err
        assert (workspace / "run.yaml").read_bytes() == before


@pytest.mark.slow
def test_card_of_a_blend(make_config, texts):
    """The card of a blend shows shares by weight, samples and epochs, and warns about too many epochs."""
    make_dataset(make_config(), texts)
    make_dataset(make_config(), texts[:20], dataset=DatasetFiles.named("few"))
    config = make_config(
        data={
            "name": "mix",
            "sources": [],
            "blend": [{"name": "small", "weight": 1}, {"name": "few", "weight": 3}],
        },
        batch={"train_tokens": 16 * 4 * 100},
    )
    card = data_card(config)
    assert [(entry["name"], entry["share"], entry["samples"]) for entry in card.entries] == [
        ("small", 0.25, 100),
        ("few", 0.75, 300),
    ]
    few = card.entries[1]
    assert few["epochs"] == 300 * 16 / few["train_tokens"]
    assert len(card.warnings) == 1 and "tokens of few" in card.warnings[0]
    assert [each.documents for each in card.cards] == [120, 20]
    assert re.search(r"\n  few +3 +75\.0% ", str(card))
    assert json.loads(json.dumps(card.to_dict()))["entries"] == card.entries
    assert card.to_page().startswith("<!doctype html>")


@pytest.mark.slow
def test_card_of_packed_examples(make_config, workspace, caplog):
    """The card of packed examples has the same splits and epochs as training, per source and weight."""
    for name, count in (("a", 40), ("b", 10)):
        rows = [
            {"prompt": f"question {number} of {name}", "completion": f"answer {number}"}
            for number in range(count)
        ]
        (workspace / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [
        {"kind": "prompt-completion", "path": f"{name}.jsonl", "name": name, "weight": weight}
        for name, weight in (("a", 0.5), ("b", 2.0))
    ]
    config = make_config(
        model={"seq_length": 64},
        data={"name": "packed", "sources": sources, "packing": "best_fit", "split": "80,20,0"},
        tokenizer={"name": "packed"},
    )
    report = prepare(config)
    assert data_card(config).splits == report.splits
    assert {split["documents"] for split in report.splits} == {40, 10}
    # A split that the card omits is named once.
    caplog.clear()
    data_card(load(config, {"data.split": "9999,1,0"}, check=False))
    assert caplog.text.count("leaves no document for valid") == 1
