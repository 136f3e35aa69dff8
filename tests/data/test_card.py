"""The data card, inspection and verification: right figures, readable text, and damage found."""

import json
import re
import shutil

import pytest

from nbtrain.data.card import data_card
from nbtrain.data.dataset_files import DatasetFiles
from nbtrain.data.inspect import inspect, verify
from nbtrain.data.prepare import prepare
from nbtrain.errors import DataError


def test_card_of_a_run(make_config, texts):
    """Counts, lengths, splits and documents are the dataset's; the samples are its texts."""
    config = make_config()
    report = prepare(config)
    card = data_card(config)
    assert (card.documents, card.tokens) == (120, report.manifest.counts["tokens"])
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


def test_card_shows_itself(make_config, workspace):
    """Text and HTML carry the figures; HTML escapes the documents and is the same every time."""
    (workspace / "tags.jsonl").write_text('{"text": "<script>alert(1)</script> text"}\n')
    config = make_config(data={"sources": [{"kind": "jsonl", "path": "tags.jsonl"}], "split": "1,0,0"})
    prepare(config)
    card = data_card(config)
    assert re.search(r"documents +1\n", str(card))
    assert "<script>" not in card.to_html()
    assert "&lt;script&gt;" in card.to_html()
    assert card.to_html() == card._repr_html_() == data_card(config).to_html()


def test_card_by_name_and_by_prefix(make_config, workspace):
    """A name in the data home, a prefix and a file of the pair mean the same dataset."""
    config = make_config()
    prepare(config)
    by_name = data_card("small")
    prefix = DatasetFiles.of(config).prefix
    for target in (prefix, prefix.with_suffix(".bin"), "data/dataset/small/text_document"):
        assert data_card(str(target)).dataset_sha256 == by_name.dataset_sha256
    # Elsewhere, with no manifest and no tokenizer, the ids are shown.
    for suffix in (".bin", ".idx"):
        shutil.copy(prefix.with_suffix(suffix), workspace / f"mine_sentence{suffix}")
    card = data_card("mine_sentence")
    assert (card.tokens, card.tokenizer, card.text_bytes) == (by_name.tokens, None, None)
    assert re.fullmatch(r"[\d ]+( \.\.\.)?", card.samples[0]["text"])


def test_unknown_dataset(make_config):
    """A name that is not there tells the ones that are."""
    prepare(make_config())
    with pytest.raises(DataError) as caught:
        data_card("smal")
    assert (
        str(caught.value)
        == "smal: no dataset of this name in data/dataset and no smal.idx. There are: small."
    )


def test_inspect_and_verify(make_config):
    """inspect tells the header; verify names what it has found right."""
    config = make_config()
    tokens = prepare(config).manifest.counts["tokens"]
    assert inspect(config).facts["tokens"] == f"{tokens:,}"
    seen = verify("small")
    assert seen.checks == [
        "header, sizes, offsets and document array agree",
        "largest token id 299, vocabulary 300",
        "every document ends in EOD (id 0)",
        "sha256 of both files is the manifest's",
    ]
    assert "ok: every document ends in EOD (id 0)" in str(seen)
    assert "<table>" in seen._repr_html_()


def test_verify_finds_one_changed_byte(make_config):
    """A token that changed on disk is found by the hash, an EOD that is gone by its place."""
    config = make_config()
    prepare(config)
    binary = DatasetFiles.of(config).bin
    content = bytearray(binary.read_bytes())
    content[0] ^= 1
    binary.write_bytes(content)
    with pytest.raises(
        DataError, match=r"^data/dataset/small/text_document\.bin: sha256 .* the content has changed\."
    ):
        verify(config)
    content[-2:] = b"\5\0"
    binary.write_bytes(content)
    with pytest.raises(DataError) as caught:
        verify(config)
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: 1 of 120 documents do not end in EOD (id 0). Encode again with it: a "
        "model that never sees the end of a document cannot end one."
    )


def test_damaged_manifest(make_config):
    """A manifest that is no JSON, of another version, or not whole names the way out."""
    config = make_config()
    prepare(config)
    manifest = DatasetFiles.of(config).manifest_json
    for content, said in (
        ("{", "not JSON"),
        ('{"schema_version": 7}', "schema_version 7, must be 1"),
        ('{"schema_version": 1}', "not a whole manifest"),
    ):
        manifest.write_text(content)
        with pytest.raises(DataError) as caught:
            data_card(config)
        assert said in str(caught.value)
        assert str(caught.value).endswith("Make the dataset again: `nbtrain prepare RUN.yaml --force`.")
