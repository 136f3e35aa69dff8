"""inspect and verify: header and documents are shown, and every kind of damage is found."""

import hashlib
import json
import re

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.cli import __main__ as cli
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views import inspect as module
from nbtrain.dataset.views.inspect import inspect, verify
from tests.dataset.conftest import refuses
from tests.dataset.dataset_maker import make_dataset, make_tokenizer
from tests.dataset.indexed_writer import IndexedWriter


def test_inspect_and_verify(make_config, texts):
    """inspect shows the header and three documents; verify lists its successful checks."""
    config = make_config()
    tokens = make_dataset(config, texts).counts["tokens"]
    seen = inspect(config)
    assert seen.facts["tokens"] == tokens
    assert [sample["document"] for sample in seen.samples] == [0, 59, 119]
    assert seen.samples[0]["text"] == texts[0]
    assert f"document 0 ({seen.samples[0]['tokens']} tokens)\n  | {texts[0]}\n" in str(seen)
    seen = verify("small")
    assert seen.checks == [
        "header, sizes, offsets and document array agree",
        "largest token id 299, vocabulary 300",
        "every document ends in EOD (id 0)",
        "sha256 of all 2 files matches the manifest",
    ]
    assert "ok: every document ends in EOD (id 0)" in str(seen)
    assert "<table" in seen._repr_html_()


def test_inspect_shows_ids_without_a_tokenizer(workspace):
    """Without a tokenizer inspect shows ids; empty documents are counted."""
    (workspace / "mine").mkdir()
    prefix = workspace / "mine" / "x_document"
    with IndexedWriter(prefix, 100, 9) as writer:
        writer.add_document(np.array([1, 2]))
    seen = inspect("mine/x_document")
    assert seen.samples == [{"document": 0, "tokens": 3, "text": "1 2 9"}]
    assert seen.facts["vocabulary"] is None
    assert "vocabulary        not known" in str(seen)
    assert verify(prefix).checks == ["header, sizes, offsets and document array agree", "largest token id 9"]


def test_empty_documents_and_sources_are_told(make_config, texts):
    """Empty documents are reported, and each source has its bytes per token."""
    config = make_config()
    source = {"kind": "jsonl", "documents": 120, "bytes": 8000, "tokens": 4000}
    make_dataset(config, texts, sources=[source])
    seen = inspect(config)
    assert seen.sources == [
        {"name": "jsonl", "kind": "jsonl", "documents": 120, "bytes": 8000, "tokens": 4000}
        | {"unread_keys": {}}
    ]
    assert "jsonl         120  8,000   4,000        2.000" in str(seen)
    assert re.search(r"source +documents +bytes +tokens +bytes/token\n", str(seen))
    dataset = dataset_of(config)
    indexed = IndexedDataset(dataset.prefix)
    documents = np.insert(np.arange(121), 5, 5)
    write_index(dataset.idx, np.uint16, np.array(indexed.lengths), documents)
    dataset.manifest_json.unlink()
    facts = inspect(config).facts
    assert (facts["documents"], facts["empty documents"]) == (121, 1)
    verify(config)


def renew(dataset, name):
    """Update the manifest to a file's current content, as if it had been encoded that way."""
    value = json.loads(dataset.manifest_json.read_text())
    value["files"][name]["sha256"] = hashlib.sha256((dataset.directory / name).read_bytes()).hexdigest()
    dataset.manifest_json.write_text(json.dumps(value))


def test_one_changed_byte(make_config, texts):
    """A changed token is found by the hash, and a missing EOD is reported with its position."""
    config = make_config()
    make_dataset(config, texts)
    binary = dataset_of(config).bin
    content = bytearray(binary.read_bytes())
    content[0] ^= 1
    binary.write_bytes(content)
    with pytest.raises(
        DataError,
        match=(
            r"^data/dataset/small/text_document\.bin: the file's sha256 .* the content has "
            r"changed\."
        ),
    ):
        verify(config)
    content[0] ^= 1
    content[-2:] = b"\5\0"
    binary.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    manifest = dataset_of(config).manifest()
    refuses(
        f"data/dataset/small/text_document.bin: the file's sha256 is {digest[:16]}, but the "
        f"manifest records {manifest.files['text_document.bin']['sha256'][:16]}: the content "
        "has changed. Restore the file, or run `nbtrain prepare RUN.yaml --force` to make "
        "the dataset again.",
        verify,
        config,
    )
    renew(dataset_of(config), "text_document.bin")
    refuses(
        "data/dataset/small/text_document.bin: 1 of 120 documents do not end in EOD (id 0). "
        "Encode the data again with EOD: a model that never sees the end of a document "
        "cannot end one.",
        verify,
        config,
    )


def test_documents_that_end_as_they_were_brought(make_config, workspace):
    """Documents of a source with append_eod: false need not end with EOD."""
    make_tokenizer("small", ["a text"])
    (workspace / "ids.jsonl").write_text('{"input_ids": [5, 6]}\n' * 3)
    source = {"kind": "tokens", "path": "ids.jsonl", "append_eod": False}
    config = make_config(data={"sources": [source]})
    prepare(config, through="encode")
    assert verify(config).checks == [
        "header, sizes, offsets and document array agree",
        "largest token id 6, vocabulary 261",
        "documents end as in the source (append_eod: false)",
        "sha256 of all 2 files matches the manifest",
    ]


def test_a_missing_file_of_the_manifest(make_config, texts):
    """Every file named in the manifest must exist."""
    config = make_config()
    make_dataset(config, texts, learnt_from=[0] * 120)
    dataset = dataset_of(config)
    assert verify(config).checks[-1] == "sha256 of all 4 files matches the manifest"
    dataset.loss_mask.bin.unlink()
    dataset.loss_mask.idx.unlink()
    refuses(
        "data/dataset/small/text_document_loss_mask.bin: the file is missing, but the "
        "manifest lists it. Restore it, or run `nbtrain prepare RUN.yaml --force` to make "
        "the dataset again.",
        verify,
        config,
    )


def test_loss_masks_are_verified(make_config, texts):
    """verify checks that the loss mask has the tokens' lengths and only 0 and 1, and shows the share of 1."""
    config = make_config()
    make_dataset(config, texts, learnt_from=[2] * 120)
    dataset = dataset_of(config)
    seen = verify(config)
    tokens = seen.facts["tokens"]
    assert f"text_document_loss_mask: {tokens - 240:,} of {tokens:,} tokens are in the loss" in seen.checks
    assert seen.facts["loss mask"] == "text_document_loss_mask"
    content = bytearray(dataset.loss_mask.bin.read_bytes())
    content[7] = 3
    dataset.loss_mask.bin.write_bytes(content)
    renew(dataset, "text_document_loss_mask.bin")
    refuses(
        (
            "data/dataset/small/text_document_loss_mask.bin: the file holds the value 3, but a loss mask "
            "may hold only 0 and 1. Encode the data again."
        ),
        verify,
        config,
    )


def test_a_mask_of_another_dataset(workspace):
    """A loss mask of other lengths is refused by inspect if the totals differ, and otherwise by verify."""
    prefix = workspace / "x_document"

    def write(name, lengths, number=1):
        with IndexedWriter(workspace / name, 256, None, "uint8" if "mask" in name else "uint16") as writer:
            for length in lengths:
                writer.add_document(np.full(length, number))

    write("x_document", [2, 3])
    write("x_document_loss_mask", [3, 3])
    refuses(
        "x_document_loss_mask.idx: the mask has 2 sequences and 6 uint8 entries, but the "
        "mask of x_document.idx must have 2 sequences and 5 uint8 entries. The two files "
        "belong to different datasets: copy both again, or prepare the dataset again.",
        inspect,
        prefix,
    )
    write("x_document_loss_mask", [3, 2])
    refuses(
        "x_document_loss_mask.idx: sequence 0 has 3 entries, but in x_document.idx this "
        "sequence has 2 tokens. The two files belong to different datasets: copy both again, "
        "or prepare the dataset again.",
        verify,
        prefix,
    )
    write("x_document_loss_mask", [2, 3], 255)
    assert "x_document_loss_mask: 5 of 5 tokens are in the loss" in verify(prefix).checks


def test_all_pairs_of_a_folder(make_config, texts):
    """The pair of an extra key is checked against the same manifest, whose sources
    describe only the main pair.
    """
    config = make_config()
    source = {"kind": "jsonl", "documents": 120, "bytes": 8000, "tokens": 4000}
    whole = make_dataset(config, texts, sources=[source])
    dataset = dataset_of(config)
    other = dataset.pair("title_document")
    with IndexedWriter(other.prefix, 300, 0) as writer:
        writer.add_document(np.array([5, 6]))
    value = {**whole.to_dict(), "files": {**whole.files, **writer.written.files}}
    dataset.manifest_json.write_text(json.dumps(value))
    seen = verify("small")
    assert seen.prefix == "data/dataset/small/text_document"
    assert seen.facts["beside it"] == "title_document"
    assert seen.checks[3:] == [
        "title_document: header, sizes, offsets and document array agree",
        "title_document: largest token id 6, vocabulary 300",
        "title_document: every document ends in EOD (id 0)",
        "sha256 of all 4 files matches the manifest",
    ]
    assert dataset.require(300).stems == ["text_document", "title_document"]
    assert [entry["tokens"] for entry in inspect("small").sources] == [4000]
    assert inspect(other.prefix).sources == []
    other.bin.unlink()
    with pytest.raises(
        DataError, match=r"title_document\.bin: the file is missing, but its manifest records 6 bytes\."
    ):
        dataset.require(300)


def test_progress_of_large_files(make_config, texts, monkeypatch, capsys):
    """For large files, one progress bar with a rate covers the size of all files."""
    config = make_config()
    make_dataset(config, texts)
    verify(config)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "PROGRESS_BYTES", 0)
    verify(config)
    shown = capsys.readouterr().err
    assert re.fullmatch(r"verify text_document: ([\d.]+)/\1kB, .*B/s, \d+ s in all\n", shown)


def test_verbs_as_json(make_config, texts, capsys):
    """`data inspect --json` and `data verify --json` print JSON."""
    make_dataset(make_config(), texts)
    for verb in ("inspect", "verify"):
        assert cli.main(["data", verb, "small", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prefix"] == "data/dataset/small/text_document"


def test_a_blend_has_no_files(make_config):
    """A run that blends datasets has no pair of its own, and the error names the datasets."""
    entries = [{"name": "small", "weight": 1}, {"prefix": "data/x_document", "weight": 3}]
    config = make_config(data={"name": "mix", "sources": [], "blend": entries})
    for call in (inspect, verify):
        refuses(
            "small: data.blend mixes 2 datasets, and the blend does not have a .bin/.idx pair. "
            "Name one of the datasets: small, data/x_document.",
            call,
            config,
        )
