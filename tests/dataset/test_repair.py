"""End-of-document tokens that an index does not count are found, shown and
repaired; other damage is not touched.
"""

import json

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.cli import __main__ as cli
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.repair import plan_repair
from tests.dataset.conftest import refuses
from tests.dataset.dataset_maker import make_dataset
from tests.dataset.indexed_writer import IndexedWriter


def uncounted(prefix, documents):
    """Write a pair as Megatron-DeepSpeed's --append-eod does; return what the index should be."""
    with IndexedWriter(prefix, 100, 9) as writer:
        for document in documents:
            writer.add_document(np.array(document))
    right = prefix.with_suffix(".idx").read_bytes()
    write_index(prefix.with_suffix(".idx"), np.uint16, np.array([len(document) for document in documents]))
    return right


def test_detected_and_mended(prefix):
    """The error names the repair command, and the repaired index equals the one that prepare writes."""
    right = uncounted(prefix, [[1, 2, 3], [4]])
    before = prefix.with_suffix(".idx").read_bytes()
    refuses(
        "data/text_document.bin: the file has 2 more tokens than the index counts, one per "
        "document: Megatron-DeepSpeed's --append-eod writes the end-of-document token "
        "without counting it, so document k would start k tokens early. Repair the index "
        "with `nbtrain data repair data/text_document`, or prepare the data again.",
        IndexedDataset,
        prefix,
    )
    repair = plan_repair(prefix)
    assert (repair.documents, repair.eod_id, repair.counted_tokens, repair.found_tokens) == (2, 9, 4, 6)
    assert prefix.with_suffix(".idx").read_bytes() == before
    repair.apply()
    assert prefix.with_suffix(".idx").read_bytes() == right
    assert (prefix.parent / "text_document.idx.before-repair").read_bytes() == before
    assert plan_repair(prefix) is None


def test_documents_of_several_sequences_and_empty_ones(prefix):
    """Each document with sequences gets one EOD after its last sequence; the document array is unchanged."""
    prefix.with_suffix(".bin").write_bytes(np.array([1, 2, 9, 3, 9], "<u2").tobytes())
    write_index(prefix.with_suffix(".idx"), np.uint16, np.array([1, 1, 1]), np.array([0, 2, 2, 3]))
    plan_repair(str(prefix), eod_id=9).apply()
    mended = IndexedDataset(prefix)
    assert [part.tolist() for part in mended] == [[1], [2, 9], [3, 9]]
    assert mended.document_indices.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("content", "eod_id", "message"),
    [
        (
            np.arange(6),
            None,
            "data/text_document.bin: the documents would end in 2 different tokens, not in "
            "one EOD. A repair of the index cannot undo this damage: make the dataset again.",
        ),
        (
            [1, 2, 3, 9, 4, 9],
            8,
            "data/text_document.bin: the documents would end in token 9, but the EOD is 8. "
            "A repair of the index cannot undo this damage: make the dataset again.",
        ),
        (
            [1, 2, 3, 9, 4, 9, 5],
            None,
            "data/text_document.bin: the file holds 7 tokens. With one uncounted EOD for "
            "each of 2 documents, it would hold 6. A repair of the index cannot undo this damage: make "
            "the dataset again.",
        ),
        (
            [1, 2, 3],
            None,
            "data/text_document.bin: the file is truncated: it has 6 bytes, but "
            "data/text_document.idx counts 4 tokens of 2 bytes = 8 bytes; 2 bytes are "
            "missing. Copy the file again, or run `nbtrain prepare RUN.yaml --force` to make "
            "it again.",
        ),
    ],
)
def test_another_damage_is_left_alone(prefix, content, eod_id, message):
    """Other kinds of damage are reported and left unchanged."""
    uncounted(prefix, [[1, 2, 3], [4]])
    prefix.with_suffix(".bin").write_bytes(np.asarray(content, "<u2").tobytes())
    before = {path.name: path.read_bytes() for path in prefix.parent.iterdir()}
    refuses(message, plan_repair, prefix, eod_id)
    assert {path.name: path.read_bytes() for path in prefix.parent.iterdir()} == before


def test_half_a_token_is_another_damage(prefix):
    """A .bin that ends in the middle of a token is not repaired."""
    uncounted(prefix, [[1, 2, 3], [4]])
    with prefix.with_suffix(".bin").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(
        DataError, match=r"5 more than the 8 bytes that .* counts\. The two files do not belong together"
    ):
        plan_repair(prefix)


def test_manifest_follows(make_config, texts):
    """The repair uses the manifest's EOD and updates the manifest's entry for the index."""
    config = make_config()
    make_dataset(config, texts)
    dataset = dataset_of(config)
    right, whole = dataset.idx.read_bytes(), json.loads(dataset.manifest_json.read_text())
    lengths = np.array(IndexedDataset(dataset.prefix).lengths) - 1
    write_index(dataset.idx, np.uint16, lengths)
    changed = {**whole, "files": {**whole["files"], dataset.idx.name: {"bytes": 1, "sha256": "x"}}}
    dataset.manifest_json.write_text(json.dumps(changed))
    plan_repair(config).apply()
    assert dataset.idx.read_bytes() == right
    assert json.loads(dataset.manifest_json.read_text()) == whole


def test_verb_shows_first_and_keeps_the_old_index(prefix, capsys):
    """`data repair` shows the change and --yes writes it; the old index is kept and never overwritten."""
    right = uncounted(prefix, [[1, 2, 3], [4]])
    assert cli.main(["data", "repair", str(prefix)]) == 0
    assert capsys.readouterr().out == (
        "data/text_document.idx: the index counts 4 tokens, but the .bin holds 6: 2 "
        "documents, each with an uncounted end-of-document token (id 9).\n  - document 0 would end "
        "in 1 2 3 9\n  - document 1 would end in 4 9\nThe repair adds 1 to the length of "
        "each document. The .bin does not change, and the old index is kept as "
        "text_document.idx.before-repair.\nNothing was changed. Add --yes to write the "
        "repair.\n"
    )
    assert prefix.with_suffix(".idx").read_bytes() != right
    assert cli.main(["data", "repair", str(prefix), "--eod-id", "9", "--yes"]) == 0
    assert prefix.with_suffix(".idx").read_bytes() == right
    capsys.readouterr()
    assert cli.main(["data", "repair", str(prefix)]) == 0
    assert capsys.readouterr().out == f"{prefix}: nothing to repair.\n"
    uncounted(prefix, [[1, 2, 3], [4]])
    assert cli.main(["data", "repair", str(prefix), "--yes"]) == 3
    assert "the file already exists, from an earlier repair. Move it away first." in capsys.readouterr().err
    assert prefix.with_suffix(".idx").read_bytes() != right
