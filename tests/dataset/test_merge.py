"""Merging datasets: the same bytes as one writer and as megatron-core, masks, manifests, and refusals."""

import hashlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.cli import __main__ as cli
from nbtrain.dataset import indexed_writer
from nbtrain.dataset import merge as module
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.merge import merge
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.samples.packed_index import mixed_sources
from nbtrain.dataset.views.browser import Browser
from nbtrain.dataset.views.inspect import verify
from tests.dataset.dataset_maker import make_dataset
from tests.dataset.indexed_writer import IndexedWriter

MEGATRON_MERGE = """
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
output, *prefixes = given
builder = IndexedDatasetBuilder(output + ".bin", dtype=IndexedDataset(prefixes[0]).index.dtype)
for prefix in prefixes:
    builder.add_index(prefix)
builder.finalize(output + ".idx")
"""


@pytest.fixture
def folder(workspace):
    (workspace / "data").mkdir()
    return workspace / "data"


def pair(folder, name, documents, dtype="uint16"):
    with IndexedWriter(folder / name, None, 9, dtype) as writer:
        for document in documents:
            writer.add_document(np.array(document))
    return folder / name


def content(prefix):
    return [prefix.with_suffix(suffix).read_bytes() for suffix in (".bin", ".idx")]


def test_merged_is_what_one_writer_writes(folder, monkeypatch):
    """Merging three pairs in chunks, one of them empty, gives the bytes of one writer with all documents."""
    documents = [[1, 2], [3], [4, 5, 6], [7], [8, 8]]
    expected = content(pair(folder, "whole", documents))
    monkeypatch.setattr(indexed_writer, "CHUNK", 2)
    parts = [pair(folder, "a", documents[:3]), pair(folder, "b", []), pair(folder, "c", documents[3:])]
    merged = merge(folder / "all", parts)
    assert content(folder / "all") == expected
    assert (merged.documents, merged.tokens, merged.manifest) == (5, 14, False)
    assert str(merged) == (
        "          sequences  documents  tokens\ndata/a            3          3       "
        "9\ndata/b            0          0       0\ndata/c            2          2       "
        "5\ndata/all          5          5      14\n\nNo manifest was written, because not "
        "every input has a manifest. The first `nbtrain prepare` of a run that uses the dataset writes "
        "the manifest."
    )


def several(folder, name, first):
    """Write an int32 pair with documents of two sequences, of none, and of one."""
    prefix = folder / name
    prefix.with_suffix(".bin").write_bytes((np.arange(6, dtype="<i4") + first).tobytes())
    write_index(prefix.with_suffix(".idx"), np.int32, np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    return prefix


def test_documents_keep_their_sequences(folder):
    """Documents with several sequences or none keep their structure; their positions are shifted."""
    merge(folder / "all", [several(folder, "a", 0), several(folder, "b", 100)])
    merged = IndexedDataset(folder / "all")
    assert merged.document_indices.tolist() == [0, 2, 2, 3, 5, 5, 6]
    assert [part.tolist() for part in merged][3:] == [[100], [101, 102], [103, 104, 105]]
    merged.verify()


@pytest.mark.slow
def test_equals_megatron_core(folder, megatron_core):
    """megatron-core's IndexedDatasetBuilder.add_index merges the same pairs to the same bytes."""
    parts = [several(folder, "a", 0), several(folder, "b", 100), several(folder, "c", 7)]
    merge(folder / "ours", parts)
    megatron_core(MEGATRON_MERGE, [str(folder / "theirs"), *map(str, parts)])
    assert content(folder / "ours") == content(folder / "theirs")


def test_manifests_and_masks_are_merged(make_config, texts, workspace):
    """Counts are added, source positions are shifted, a missing loss mask becomes ones,
    and verify accepts the result.
    """
    config = make_config()
    masked = DatasetFiles.named("masked")
    source = {"kind": "jsonl", "name": "one", "documents": 120, "bytes": 7, "sequences": [0, 120]}
    whole = make_dataset(config, texts, sources=[source], dropped={"empty": 2})
    make_dataset(
        config, texts[:30], dataset=masked, learnt_from=[2] * 30, sources=[source], dropped={"empty": 1}
    )
    merged = merge("both", [config, "masked"])
    target = DatasetFiles.named("both")
    manifest = target.require()
    assert (merged.documents, merged.manifest) == (150, True)
    assert manifest.counts["documents"] == 150
    assert manifest.counts["dropped"] == {"empty": 3}
    assert manifest.counts["bytes"] == whole.counts["bytes"] + sum(len(text) for text in texts[:30])
    assert [entry["sequences"] for entry in manifest.sources] == [[0, 120], [120, 240]]
    assert manifest.tokenizer_sha256 == whole.tokenizer_sha256
    assert manifest.settings["merged"][0]["dataset_sha256"] == whole.dataset_sha256
    for name, entry in manifest.files.items():
        written = (target.directory / name).read_bytes()
        assert entry == {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    mask = IndexedDataset(target.loss_mask.prefix)
    assert all(mask[number].all() for number in range(120))
    assert [mask[number][:3].tolist() for number in range(120, 150)] == [[0, 0, 1]] * 30
    verify("both")


@pytest.mark.parametrize("order", [["prepared", "adopted"], ["adopted", "prepared"]])
def test_with_an_adopted_dataset_no_sequence_is_left_to_nobody(make_config, texts, order):
    """If one input has no sources, the merged dataset is packed as a single source with all sequences."""
    config = make_config()
    prepared, adopted = DatasetFiles.named("prepared"), DatasetFiles.named("adopted")
    source = {"kind": "jsonl", "name": "one", "documents": 120, "bytes": 7, "sequences": [0, 120]}
    make_dataset(config, texts, dataset=prepared, sources=[source])
    make_dataset(config, texts[:30], dataset=adopted, sources=[])
    merge("both", order)
    target = DatasetFiles.named("both")
    [whole] = mixed_sources(target, target.require(), [], 150)
    assert (whole.first, whole.last) == (0, 150)


def refuses(message, *arguments):
    with pytest.raises(DataError) as caught:
        merge(*arguments)
    assert str(caught.value) == message


def test_refusals_write_nothing(folder, monkeypatch):
    """A different dtype, an existing output and a full disk are refused before anything is written."""
    a, b = pair(folder, "a", [[1, 2]]), pair(folder, "b", [[1]], "int32")
    before = sorted(folder.iterdir())
    refuses(
        "data/b: the dtype is int32, but that of data/a is uint16. Pairs of different dtypes "
        "cannot be merged: encode one of them again with the dtype of the other.",
        folder / "all",
        [a, b],
    )
    refuses(
        ("data/a.bin: the file already exists. Merge to another name or folder, or move the file away."),
        a,
        [a, a],
    )
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=60))
    refuses(
        ("data: merging needs 94 B, but only 60 B is free. Free up 34 B, or merge to another disk."),
        folder / "all",
        [a, a],
    )
    assert sorted(folder.iterdir()) == before


def test_another_tokenizer_is_refused(make_config, texts):
    """Datasets with different tokenizers cannot be merged."""
    config = make_config()
    make_dataset(config, texts)
    other = make_config(tokenizer={"name": "other", "vocab_size": 280})
    manifest = make_dataset(other, texts, dataset=DatasetFiles.named("other"))
    mine = dataset_of(config).manifest()
    refuses(
        "data/dataset/other/text_document: tokenizer_sha256 is "
        f"{manifest.tokenizer_sha256[:12]}, but data/dataset/small/text_document has "
        f"{mine.tokenizer_sha256[:12]}, so the same ids would mean different text. Encode one "
        "of them again with the tokenizer of the other.",
        "all",
        ["small", "other"],
    )
    assert not DatasetFiles.named("all").directory.exists()


def test_verb(folder, capsys):
    """`data merge OUT A B` prints a table of the merged dataset."""
    a = pair(folder, "a", [[1, 2]])
    assert cli.main(["data", "merge", str(folder / "all"), str(a), f"{a}.bin"]) == 0
    assert "data/all          2          2       6" in capsys.readouterr().out
    assert cli.main(["data", "merge", str(folder / "all"), str(a)]) == 3
    assert "data/all.bin: the file already exists" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_merge_leaves_nothing(folder, monkeypatch, error):
    """A failure during the merge leaves no file, and a full disk raises a readable error."""
    a = pair(folder, "a", [[1, 2]])
    before = sorted(folder.iterdir())

    def fail(*_):
        raise error

    monkeypatch.setattr(module, "write_index_chunks", fail)
    message = r"data: No space left on device\. Free up space" if isinstance(error, OSError) else None
    with pytest.raises(DataError if message else KeyboardInterrupt, match=message):
        merge(folder / "all", [a, a])
    assert sorted(folder.iterdir()) == before


def test_a_name_that_cannot_be_one(folder):
    """An invalid dataset name is refused, not read as a file in the current folder."""
    with pytest.raises(DataError) as caught:
        merge("bad_NAME", [pair(folder, "one", [[1, 2]]), pair(folder, "two", [[3]])])
    assert str(caught.value) == (
        "bad_NAME: the name of a new dataset must be 1 to 53 lower case letters, digits and "
        "inner dashes, e.g. gpt-125m-2xdp. To write files with another name, give a prefix "
        "that includes a folder, e.g. ./bad_NAME."
    )


def keyed(make_config, workspace, name, count, keys=("title",), **data):
    """Prepare a dataset of `count` records with a text and a title; every third title is empty."""
    rows = [
        {"text": f"text {number} of {name}.", "title": f"title {number} of {name}" if number % 3 else ""}
        for number in range(count)
    ]
    (workspace / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [{"kind": "jsonl", "path": f"{name}.jsonl"}]
    config = make_config(data={"name": name, "sources": sources, "extra_json_keys": list(keys), **data})
    prepare(config, through="encode")
    return rows


@pytest.mark.slow
def test_every_key_is_merged(make_config, workspace, capsys):
    """Each key is merged into its own pair, in which document k is the same record; the keys are listed."""
    rows = keyed(make_config, workspace, "one", 5) + keyed(make_config, workspace, "two", 7)
    assert cli.main(["data", "merge", "all", "one", "two"]) == 0
    shown = capsys.readouterr().out
    target = DatasetFiles.named("all")
    assert target.require().stems == ["text_document", "title_document"]
    for stem in ("text_document", "title_document"):
        assert re.search(rf"data/dataset/all/{stem} +12 +12 +\d+\n", shown)
        browser = Browser(target.pair(stem))
        key = stem.removesuffix("_document")
        assert [browser.document(number).text for number in range(12)] == [row[key] for row in rows]
    assert verify("all").facts["beside it"] == "title_document"
    refuses("data/dataset/all/text_document.bin: the file already exists. Merge to another "
            "name or folder, or move the file away.",
        "all", ["one", "two"])  # fmt: skip
    refuses(
        "data/title_document: the inputs have another .bin/.idx pair with this name. Merge "
        "to another prefix, e.g. data/text_document.",
        workspace / "data" / "title_document",
        ["one", "two"],
    )


def test_a_prefix_is_one_pair(make_config, workspace):
    """A pair given by its prefix is merged alone; other pairs in the same folder
    are listed but not merged.
    """
    keyed(make_config, workspace, "one", 5)
    merged = merge("all", ["data/dataset/one/text_document", "data/dataset/one/text_document.bin"])
    assert DatasetFiles.named("all").require().stems == ["text_document"]
    assert merged.beside == []
    assert merged.left_out == ["data/dataset/one/title_document"]
    assert str(merged).endswith(
        "\nNot merged: data/dataset/one/title_document. An input given as a prefix stands for one pair; "
        "give a dataset's name or folder to merge all its pairs."
    )


def test_a_key_of_some_inputs_is_refused(make_config, workspace):
    """A key that not all inputs have is refused, because documents would be lost or misaligned."""
    keyed(make_config, workspace, "one", 5)
    keyed(make_config, workspace, "two", 5, keys=())
    refuses(
        "data/dataset/one/title_document: data/dataset/two/text_document has no "
        "title_document in the same folder. Every input must have the same pairs: encode the "
        "data again with the same data.extra_json_keys, or give the prefix of one pair of "
        "each input, e.g. data/dataset/one/text_document.",
        "all",
        ["two", "one"],
    )
    short = DatasetFiles.named("one").pair("title_document")
    with IndexedWriter(short.prefix, 300, 0) as writer:
        writer.add_document(np.array([1]))
    refuses(
        "data/dataset/one/title_document: the pair has 1 documents, but "
        "data/dataset/one/text_document in the same folder has 5. Document k must be the "
        "same record in both: encode the data again, or merge only one pair of each input by "
        "giving its prefix.",
        "all",
        ["one", "one"],
    )
    assert not DatasetFiles.named("all").directory.exists()


def test_levels_are_not_mixed(folder):
    """A dataset split into sentences is not merged with one that is not."""
    documents, sentences = pair(folder, "a_document", [[1, 2]]), pair(folder, "a_sentence", [[1], [2]])
    refuses(
        "data/a_sentence: the sequences are sentences, but those of data/a_document are "
        "documents. The two datasets cannot be merged: encode one of them again with the "
        "data.split_sentences of the other.",
        folder / "all",
        [documents, sentences],
    )
    assert sorted(path.name for path in folder.iterdir() if path.stem == "all") == []
