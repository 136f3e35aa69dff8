"""The .bin/.idx format: golden bytes, round trips, and every kind of damage told in words."""

import pickle

import numpy as np
import pytest

from nbtrain.data.indexed import DTYPES, HEADER, IndexedDataset, check_vocabulary, optimal_dtype
from nbtrain.data.indexed_writer import IndexedWriter, repair_uncounted_eod, write_index
from nbtrain.errors import DataError


@pytest.fixture
def prefix(workspace):
    (workspace / "data").mkdir()
    return workspace / "data" / "text_document"


def write(prefix, documents, vocab_size=100, eod_id=9, dtype=None):
    with IndexedWriter(prefix, vocab_size, eod_id, dtype) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.uint32))
    return writer.written


def read_bytes(prefix, suffix):
    return prefix.with_suffix(suffix).read_bytes()


def test_golden_bytes(prefix):
    """Two documents in uint16 are these bytes: what megatron-core and Megatron-DeepSpeed write for them."""
    write(prefix, [[1, 2, 3], [258]], vocab_size=300)
    assert read_bytes(prefix, ".bin").hex() == "010002000300090002010900"
    assert (
        read_bytes(prefix, ".idx").hex()
        == (
            "4d4d494449445800000100000000000000" + "08"  # magic, version 1, uint16
            "0200000000000000" + "0300000000000000"  # 2 sequences, 3 entries of the document array
            "04000000" + "02000000"  # lengths, EOD counted
            "0000000000000000" + "0800000000000000"  # byte offsets
            "0000000000000000" + "0100000000000000" + "0200000000000000"
        )
    )


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES.values()])
def test_every_dtype_comes_back(prefix, dtype):
    """Each of the format's eight dtypes is written with its code and read with its values."""
    with IndexedWriter(prefix, vocab_size=None, eod_id=None, dtype=dtype) as writer:
        writer.add_batch(np.array([5, 6, 7]), np.array([0, 1, 3]))
    dataset = IndexedDataset(prefix)
    assert dataset.dtype.name == dtype
    assert [dataset[index].tolist() for index in range(len(dataset))] == [[5], [6, 7]]


def test_batches_equal_single_documents(prefix, workspace):
    """A batch with empty documents gives the bytes of its documents one by one; empty ones are counted."""
    ids, offsets = np.arange(6, dtype=np.uint32), np.array([0, 0, 2, 2, 5, 6, 6])
    with IndexedWriter(prefix, 100, 9) as writer:
        writer.add_batch(ids, offsets)
    other = workspace / "one by one_document"
    write(other, [[0, 1], [2, 3, 4], [5]])
    assert writer.written.num_empty == 3
    assert (writer.written.num_documents, writer.written.num_tokens) == (3, 9)
    assert read_bytes(prefix, ".bin") == read_bytes(other, ".bin")
    assert read_bytes(prefix, ".idx") == read_bytes(other, ".idx")


def test_dtype_follows_the_vocabulary():
    """uint16 below 65,500 entries, int32 from there on: the rule of both projects."""
    assert [optimal_dtype(size).name for size in (257, 65_499, 65_500, 100_000)] == [
        "uint16",
        "uint16",
        "int32",
        "int32",
    ]


def test_part_of_a_sequence_and_pickling(prefix):
    """get() cuts within a sequence; a pickled dataset maps the files again instead of carrying them."""
    write(prefix, [[1, 2, 3, 4], [5, 6]])
    dataset = IndexedDataset(prefix)
    assert dataset.get(0, 1, 2).tolist() == [2, 3]
    assert dataset.get(1, 1).tolist() == [6, 9]
    content = pickle.dumps(dataset)
    assert len(content) < 500
    assert pickle.loads(content)[1].tolist() == [5, 6, 9]


def test_sequences_are_not_documents(prefix):
    """An index whose documents hold several sequences or none, as Megatron's slow script writes, is read."""
    prefix.with_suffix(".bin").write_bytes(np.arange(6, dtype="<u2").tobytes())
    write_index(prefix.with_suffix(".idx"), np.uint16, np.array([1, 2, 3]), documents=np.array([0, 2, 2, 3]))
    dataset = IndexedDataset(prefix)
    dataset.verify(vocab_size=6)
    assert (len(dataset), len(dataset.document_indices) - 1) == (3, 3)


def test_an_empty_dataset_is_readable(prefix):
    """No document gives an empty .bin, which can be opened."""
    write(prefix, [])
    assert IndexedDataset(prefix).num_tokens == 0
    assert IndexedDataset(prefix).verify(10) == -1


def test_failure_leaves_no_file(prefix):
    """A writer that is left by an exception leaves neither file, nor a temporary one."""
    with pytest.raises(RuntimeError), IndexedWriter(prefix, 100, 9) as writer:
        writer.add_document(np.array([1]))
        raise RuntimeError
    assert list(prefix.parent.iterdir()) == []


def refuses(message, call, *arguments, **keywords):
    with pytest.raises(DataError) as caught:
        call(*arguments, **keywords)
    assert str(caught.value) == message


def test_id_outside_the_vocabulary(prefix):
    """An id that the vocabulary does not have is refused, not cast."""
    refuses(
        "data/text_document.bin: token id 100 is outside the vocabulary of 100 entries. The tokenizer and its "
        "vocab_size do not agree.",
        write,
        prefix,
        [[1, 100]],
    )


def test_vocabulary_larger_than_dtype(prefix):
    """uint16 cannot hold 70,000 ids, said before anything is written."""
    refuses(
        "data/text_document.bin: a vocabulary of 70,000 has ids up to 69,999, but uint16 holds at most 65,535. "
        "Encode again with dtype int32, or use a tokenizer of at most 65,536 entries.",
        write,
        prefix,
        [[1]],
        vocab_size=70_000,
        dtype="uint16",
    )
    refuses(
        "x: token ids are stored as float32; GPT data must be an integer type.",
        check_vocabulary,
        np.dtype("f4"),
        10,
        "x",
    )


def test_truncated_bin(prefix):
    """A short .bin is refused on opening, with both sizes."""
    write(prefix, [[1, 2, 3], [4]])
    binary = prefix.with_suffix(".bin")
    binary.write_bytes(binary.read_bytes()[:-5])
    refuses(
        "data/text_document.bin: truncated: 7 bytes, but data/text_document.idx counts 6 tokens of 2 bytes = 12 "
        "bytes; 5 bytes are missing. Copy the file again, or make it again with `nbtrain prepare RUN.yaml --force`.",
        IndexedDataset,
        prefix,
    )


def test_bin_of_another_pair(prefix):
    """A .bin that is too long by anything but one token a document belongs to another index."""
    write(prefix, [[1, 2, 3], [4]])
    with prefix.with_suffix(".bin").open("ab") as stream:
        stream.write(bytes(2))
    refuses(
        "data/text_document.bin: 14 bytes, but data/text_document.idx counts 12: 2 bytes too many. The two files are "
        "not of one pair: copy both again.",
        IndexedDataset,
        prefix,
    )


def uncounted(prefix, documents):
    """What Megatron-DeepSpeed's --append-eod writes: EOD in the .bin, not in the lengths."""
    written = write(prefix, documents)
    assert written.num_documents == len(documents)
    lengths = np.array([len(document) for document in documents])
    write_index(prefix.with_suffix(".idx"), np.uint16, lengths)


def test_uncounted_eod_is_detected_and_repaired(prefix):
    """Megatron-DeepSpeed's uncounted EOD is named; the repair gives the index that ours would have been."""
    write(prefix, [[1, 2, 3], [4]])
    right = read_bytes(prefix, ".idx")
    uncounted(prefix, [[1, 2, 3], [4]])
    refuses(
        "data/text_document.bin: 2 tokens more than the index counts, one per document: Megatron-DeepSpeed's "
        "--append-eod writes the end-of-document token without counting it, so document k would start k tokens "
        f'early. Mend the index with nbtrain.data.indexed_writer.repair_uncounted_eod("{prefix}"), or prepare the data '
        "again.",
        IndexedDataset,
        prefix,
    )
    assert repair_uncounted_eod(prefix) == 2
    assert read_bytes(prefix, ".idx") == right


def test_repair_refuses_another_damage(prefix):
    """Where documents would not end in one token, the repair changes nothing."""
    uncounted(prefix, [[1, 2, 3], [4]])
    binary = prefix.with_suffix(".bin")
    binary.write_bytes(np.arange(6, dtype="<u2").tobytes())
    before = read_bytes(prefix, ".idx")
    refuses(
        "data/text_document.bin: documents would end in 2 different tokens, not in one EOD. This is another damage: "
        "make it again.",
        repair_uncounted_eod,
        prefix,
    )
    assert read_bytes(prefix, ".idx") == before


def damaged_index(prefix, change):
    write(prefix, [[1, 2, 3], [4]])
    index = prefix.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    index.write_bytes(bytes(change(content)))


def put(offset, value):
    def change(content):
        content[offset : offset + len(value)] = value
        return content

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put(0, b"NOTINDEX\0"),
            "data/text_document.idx: not a Megatron index: must start with b'MMIDIDX\\x00\\x00', starts with "
            "b'NOTINDEX\\x00'.",
        ),
        (
            put(0, b"TNTIDX\0\0"),
            "data/text_document.idx: the `lazy`/`cached` format of old Megatron (TNTIDX). Only `mmap` is read: "
            "convert it with Megatron's tools, or prepare the data again.",
        ),
        (put(9, b"\2"), "data/text_document.idx: index version 2, must be 1."),
        (put(17, b"\x0b"), "data/text_document.idx: dtype code 11, must be one of 1 to 8."),
        (
            lambda content: content[:-8],
            "data/text_document.idx: 74 bytes, but its header names 2 sequences and 3 document entries = 82 bytes. "
            "Copy the file again, or make it again with `nbtrain prepare RUN.yaml --force`.",
        ),
        (
            lambda content: content + bytes(2),
            "data/text_document.idx: a multimodal index (one mode byte per sequence); only text is read.",
        ),
        (
            put(HEADER.size + 8, b"\2"),
            "data/text_document.idx: 1 of 2 offsets are not the running sum of the lengths; first: sequence 0 starts "
            "at byte 2, must be 0. Make the index again.",
        ),
        (
            put(HEADER.size + 24, b"\1"),
            "data/text_document.idx: the document array must rise from 0 to 2 (sequences). Make the index again.",
        ),
    ],
)
def test_damaged_index(prefix, change, message):
    """Each damage of an .idx has its own sentence with the numbers."""
    damaged_index(prefix, change)
    refuses(message, lambda: IndexedDataset(prefix).verify())


def test_verify_finds_ids_of_another_tokenizer(prefix):
    """verify() compares every id with the vocabulary."""
    write(prefix, [[1, 50]])
    assert IndexedDataset(prefix).verify(51) == 50
    refuses(
        "data/text_document.bin: holds token id 50, but the vocabulary has 50 entries (ids below 50). It was made "
        "with another tokenizer: set tokenizer.vocab_size to that one's, or encode again.",
        IndexedDataset(prefix).verify,
        50,
    )


def test_missing_file(prefix):
    """A missing file names the command that makes it."""
    refuses(
        "data/text_document.idx: no such file. Make it with `nbtrain prepare RUN.yaml`.",
        IndexedDataset,
        prefix,
    )
    write(prefix, [[1]])
    prefix.with_suffix(".bin").unlink()
    refuses(
        "data/text_document.bin: no such file. Make it with `nbtrain prepare RUN.yaml`.",
        IndexedDataset,
        prefix,
    )
