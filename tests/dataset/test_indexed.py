"""The .bin/.idx format: golden bytes, round trips, and a readable error for every kind of damage."""

import hashlib
import pickle

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.dataset import indexed, indexed_writer
from nbtrain.dataset.indexed import DTYPES, HEADER, IndexedDataset, check_vocabulary, optimal_dtype
from nbtrain.dataset.indexed_writer import write_index
from tests.dataset.conftest import refuses
from tests.dataset.indexed_writer import IndexedWriter


def write(prefix, documents, vocab_size=100, eod_id=9, dtype=None):
    with IndexedWriter(prefix, vocab_size, eod_id, dtype) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.uint32))
    return writer.written


def read_bytes(prefix, suffix):
    return prefix.with_suffix(suffix).read_bytes()


def test_golden_bytes(prefix):
    """Two documents in uint16 are written with the same bytes as by megatron-core and Megatron-DeepSpeed."""
    write(prefix, [[1, 2, 3], [258]], vocab_size=300)
    assert read_bytes(prefix, ".bin").hex() == "010002000300090002010900"
    assert (
        read_bytes(prefix, ".idx").hex()
        == (
            "4d4d494449445800000100000000000000" + "08"  # magic, version 1, uint16
            "0200000000000000" + "0300000000000000"  # 2 sequences, 3 entries of the document array
            "04000000" + "02000000"  # lengths, including EOD
            "0000000000000000" + "0800000000000000"  # byte offsets
            "0000000000000000" + "0100000000000000" + "0200000000000000"
        )
    )


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES.values()])
def test_every_dtype_comes_back(prefix, dtype):
    """Each of the format's eight dtypes is written with its code and read back with the same values."""
    with IndexedWriter(prefix, vocab_size=None, eod_id=None, dtype=dtype) as writer:
        writer.add_batch(np.array([5, 6, 7]), np.array([0, 1, 3]))
    dataset = IndexedDataset(prefix)
    assert dataset.dtype.name == dtype
    assert [dataset[index].tolist() for index in range(len(dataset))] == [[5], [6, 7]]


def test_batches_equal_single_documents(prefix, workspace):
    """Adding documents in a batch writes the same bytes as adding them one by one; empty ones are counted."""
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
    """Tokens are uint16 for vocabularies below 65,500 entries and int32 above, as
    in both upstream projects.
    """
    assert [optimal_dtype(size).name for size in (257, 65_499, 65_500, 100_000)] == [
        "uint16",
        "uint16",
        "int32",
        "int32",
    ]


def test_part_of_a_sequence_and_pickling(prefix):
    """get() returns a part of a sequence, and a pickled dataset maps the files again."""
    write(prefix, [[1, 2, 3, 4], [5, 6]])
    dataset = IndexedDataset(prefix)
    assert dataset.get(0, 1, 2).tolist() == [2, 3]
    assert dataset.get(1, 1).tolist() == [6, 9]
    content = pickle.dumps(dataset)
    assert len(content) < 500
    assert pickle.loads(content)[1].tolist() == [5, 6, 9]


def test_sequences_are_not_documents(prefix):
    """An index whose documents hold several sequences or none, as some Megatron
    scripts write it, can be read.
    """
    prefix.with_suffix(".bin").write_bytes(np.arange(6, dtype="<u2").tobytes())
    write_index(prefix.with_suffix(".idx"), np.uint16, np.array([1, 2, 3]), documents=np.array([0, 2, 2, 3]))
    dataset = IndexedDataset(prefix)
    dataset.verify(vocab_size=6)
    assert (len(dataset), len(dataset.document_indices) - 1) == (3, 3)


def test_an_empty_dataset_is_readable(prefix):
    """Writing no documents gives an empty .bin that can be opened."""
    write(prefix, [])
    assert IndexedDataset(prefix).num_tokens == 0
    assert IndexedDataset(prefix).verify(10) == -1


def test_failure_leaves_no_file(prefix):
    """An exception inside the writer's block leaves no file, not even a temporary one."""
    with pytest.raises(RuntimeError), IndexedWriter(prefix, 100, 9) as writer:
        writer.add_document(np.array([1]))
        raise RuntimeError
    assert list(prefix.parent.iterdir()) == []


def test_id_outside_the_vocabulary(prefix):
    """An id outside the vocabulary is refused, not cast."""
    refuses(
        "data/text_document.bin: token id 100 is outside the vocabulary of 100 entries. The tokenizer and "
        "its vocab_size do not agree.",
        write,
        prefix,
        [[1, 100]],
    )


def test_vocabulary_larger_than_dtype(prefix):
    """uint16 cannot store 70,000 ids, which is an error before anything is written."""
    refuses(
        "data/text_document.bin: a vocabulary of 70,000 has ids up to 69,999, but uint16 "
        "holds at most 65,535. Encode the data again with dtype int32, or use a tokenizer "
        "with at most 65,536 entries.",
        write,
        prefix,
        [[1]],
        vocab_size=70_000,
        dtype="uint16",
    )
    refuses(
        "x: token ids are stored as float32, but GPT data must have an integer dtype.",
        check_vocabulary,
        np.dtype("f4"),
        10,
        "x",
    )


def test_truncated_bin(prefix):
    """A .bin that is too short is refused on opening, with both sizes."""
    write(prefix, [[1, 2, 3], [4]])
    binary = prefix.with_suffix(".bin")
    binary.write_bytes(binary.read_bytes()[:-5])
    refuses(
        "data/text_document.bin: the file is truncated: it has 7 bytes, but "
        "data/text_document.idx counts 6 tokens of 2 bytes = 12 bytes; 5 bytes are missing. "
        "Copy the file again, or run `nbtrain prepare RUN.yaml --force` to make it again.",
        IndexedDataset,
        prefix,
    )


def test_bin_of_another_pair(prefix):
    """A .bin that is longer than its index says, except by one token per document,
    belongs to another index.
    """
    write(prefix, [[1, 2, 3], [4]])
    with prefix.with_suffix(".bin").open("ab") as stream:
        stream.write(bytes(2))
    refuses(
        "data/text_document.bin: the file has 14 bytes, 2 more than the 12 bytes that "
        "data/text_document.idx counts. The two files do not belong together: copy both "
        "again.",
        IndexedDataset,
        prefix,
    )


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
            "data/text_document.idx: not a Megatron index: the file must start with "
            "b'MMIDIDX\\x00\\x00', but starts with b'NOTINDEX\\x00'. Copy the file again, or "
            "run `nbtrain prepare RUN.yaml --force` to make it again.",
        ),
        (
            put(0, b"TNTIDX\0\0"),
            "data/text_document.idx: this is the `lazy`/`cached` format of old Megatron "
            "versions (TNTIDX), but only the `mmap` format is supported. Convert the file "
            "with Megatron's tools, or prepare the data again.",
        ),
        (
            put(9, b"\2"),
            "data/text_document.idx: the index version is 2, but must be 1. Copy the file again, or run "
            "`nbtrain prepare RUN.yaml --force` to make it again.",
        ),
        (
            put(17, b"\x0b"),
            "data/text_document.idx: the dtype code is 11, but must be from 1 to 8. Copy the "
            "file again, or run `nbtrain prepare RUN.yaml --force` to make it again.",
        ),
        (
            lambda content: content[:-8],
            "data/text_document.idx: the file has 74 bytes, but its header counts 2 "
            "sequences and 3 document entries, which take 82 bytes. Copy the file again, or "
            "run `nbtrain prepare RUN.yaml --force` to make it again.",
        ),
        (
            lambda content: content + bytes(2),
            "data/text_document.idx: this is a multimodal index (one mode byte per "
            "sequence), but only text datasets are supported. Write it without modes.",
        ),
        (
            put(HEADER.size + 8, b"\2"),
            "data/text_document.idx: sequence 0 starts at byte 2, but this offset must be 0: "
            "offsets are the running sum of the lengths. Copy the file again, or make the "
            "index again.",
        ),
        (
            put(HEADER.size + 24, b"\1"),
            "data/text_document.idx: the document array must rise from 0 to the number of "
            "sequences, 2. Copy the file again, or make the index again.",
        ),
    ],
)
def test_damaged_index(prefix, change, message):
    """Each kind of damage to an .idx has its own message, with the numbers."""
    damaged_index(prefix, change)
    refuses(message, IndexedDataset, prefix)


def test_verify_finds_ids_of_another_tokenizer(prefix):
    """verify() compares every id with the vocabulary."""
    write(prefix, [[1, 50]])
    assert IndexedDataset(prefix).verify(51) == 50
    refuses(
        "data/text_document.bin: the file holds token id 50, but the vocabulary has 50 "
        "entries (ids below 50). The file was made with another tokenizer: set "
        "tokenizer.vocab_size to that tokenizer's size, or encode the data again.",
        IndexedDataset(prefix).verify,
        50,
    )


def test_tokens_in_pieces(prefix, monkeypatch):
    """chunks() returns every token once and in order for any chunk size, and verify() checks all chunks."""
    write(prefix, [[8, 1, 2], [3], [4, 5]])
    dataset = IndexedDataset(prefix)
    for size in range(1, 11):
        monkeypatch.setattr(indexed, "SCAN_TOKENS", size)
        pieces = [piece.tolist() for piece in dataset.chunks()]
        assert [token for piece in pieces for token in piece] == [8, 1, 2, 9, 3, 9, 4, 5, 9]
        assert {len(piece) for piece in pieces[:-1]} <= {size}
    write(prefix, [[50, 1]])
    assert IndexedDataset(prefix).verify() == 50


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_verify_finds_negative_ids(prefix, dtype):
    """In a pair with a signed dtype, negative ids are damage."""
    for ids in ([0, 5], [7, -1]):
        with IndexedWriter(prefix, None, None, dtype) as writer:
            writer.add_document(np.array(ids, dtype))
        dataset = IndexedDataset(prefix)
        if min(ids) < 0:
            refuses(
                ("data/text_document.bin: the file holds a negative token id. Encode the data again."),
                dataset.verify,
            )
        else:
            assert (dataset.verify(), dataset.verify(6)) == (5, 5)


def test_missing_file(prefix):
    """The error about a missing file gives the command that creates it."""
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


# --- hostile indices ----------------------------------------------------------------------------------------

HUGE = (2**64 - 1).to_bytes(8, "little")
LENGTHS, POINTERS, DOCUMENTS = HEADER.size, HEADER.size + 8, HEADER.size + 24


def int64(value):
    return (value % 2**64).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # 12 * S is a multiple of 2**64, so it would be 0 in 64 bits.
        (put(18, int64(2**62)), r"its header counts 4,611,686,018,427,387,904 sequences"),
        (put(18, HUGE), r"its header counts 18,446,744,073,709,551,615 sequences"),
        (put(26, HUGE), r"and 18,446,744,073,709,551,615 document entries"),
        (
            lambda content: put(26, int64(0))(content)[:-24],
            r"the document array must rise from 0 to the number of sequences, 2",
        ),
        (put(LENGTHS, int64(-1)[:4]), r"sequence 0 has a negative length, -1\."),
        (
            put(LENGTHS + 4, (2**31 - 1).to_bytes(4, "little")),
            r"text_document\.bin: the file is truncated: it has 12 bytes",
        ),
        (
            put(LENGTHS + 4, (2**31).to_bytes(4, "little")),
            r"sequence 1 has a negative length, -2,147,483,648\.",
        ),
        (put(POINTERS, int64(-8)), r"sequence 0 starts at byte -8, but this offset must be 0"),
        (
            put(POINTERS + 8, int64(-2)),
            r"sequence 1 starts at byte -2, but this offset must be a multiple of 2 below",
        ),
        (
            put(POINTERS + 8, int64(7)),
            r"sequence 1 starts at byte 7, but this offset must be a multiple of 2 below",
        ),
        (
            put(POINTERS + 8, int64(2**62)),
            r"sequence 1 starts at byte 4,611,686,018,427,387,904, but this offset must be a",
        ),
        (put(POINTERS + 8, int64(2**63 - 2)), r"sequence 1 starts at byte 9,223,372,036,854,775,806"),
        (
            put(POINTERS + 8, int64(2**40)),
            r"truncated: it has 12 bytes, but .* counts 549,755,813,890 tokens",
        ),
        (put(DOCUMENTS + 8, int64(3)), r"the document array must rise from 0 to the number of sequences, 2"),
        (put(DOCUMENTS + 8, int64(-1)), r"the document array must rise from 0 to the number of sequences, 2"),
        (put(DOCUMENTS + 16, int64(3)), r"the document array must rise from 0 to the number of sequences, 2"),
    ],
)
def test_hostile_index(prefix, change, message):
    """An invalid header, length, offset or document entry is refused on opening with a readable message."""
    damaged_index(prefix, change)
    with pytest.raises(DataError, match=message):
        IndexedDataset(prefix)


@pytest.fixture
def small_blocks(monkeypatch):
    """Set blocks to 4 entries, of which one is checked on opening."""
    monkeypatch.setattr(indexed, "BLOCK_BITS", 2)
    monkeypatch.setattr(indexed, "BLOCK", 4)
    monkeypatch.setattr(indexed, "OPENED_BLOCKS", 1)


@pytest.mark.parametrize("entry", range(2, 12))
def test_every_entry_of_the_document_array_is_compared(prefix, small_blocks, monkeypatch, entry):
    """A document entry below its predecessor is found wherever it is; in a short array already on opening."""
    write(prefix, [[1]] * 11)
    index = prefix.with_suffix(".idx")
    whole = bytearray(index.read_bytes())
    index.write_bytes(bytes(put(HEADER.size + 12 * 11 + 8 * entry, int64(0))(whole)))
    refused = pytest.raises(
        DataError, match=r"the document array must rise from 0 to the number of sequences, 11"
    )
    if entry == 11:  # the last entry is always compared with the number of sequences
        with refused:
            IndexedDataset(prefix)
        return
    monkeypatch.setattr(indexed, "OPENED_BLOCKS", 2)
    dataset = IndexedDataset(prefix)
    with refused:
        dataset.check()
    monkeypatch.setattr(indexed, "OPENED_BLOCKS", 3)
    with refused:
        IndexedDataset(prefix)


def test_documents_that_hold_a_sequence_are_counted_over_blocks(prefix, small_blocks):
    """Each document that has sequences is counted once, wherever a block ends."""
    for size in range(1, 14):
        documents = np.repeat(np.arange(size + 1), 1 + np.arange(size + 1) % 3)
        documents = documents[: np.flatnonzero(documents == size)[0] + 1]
        prefix.with_suffix(".bin").write_bytes(np.arange(size, dtype="<u2").tobytes())
        write_index(prefix.with_suffix(".idx"), np.uint16, np.ones(size, np.int32), documents)
        assert IndexedDataset(prefix).num_filled_documents() == size


def test_a_block_is_checked_when_it_is_first_read(prefix, small_blocks):
    """Blocks of a large index that are not checked on opening are checked before
    their first token is returned.
    """
    documents = [[number] * (number % 5 + 1) for number in range(30)]
    write(prefix, documents)
    index = prefix.with_suffix(".idx")
    whole = index.read_bytes()
    pointer = HEADER.size + 4 * 30 + 8 * 17
    moved = int.from_bytes(whole[pointer : pointer + 8], "little") + 2
    index.write_bytes(bytes(put(pointer, moved.to_bytes(8, "little"))(bytearray(whole))))
    dataset = IndexedDataset(prefix)
    for number in (0, 15, 20, 29, -1):
        assert dataset[number].tolist() == [*documents[number], 9]
    for number in (16, 17, 19, -13):
        with pytest.raises(DataError, match=r"sequence 17 starts at byte 132, but this offset must be 130"):
            dataset[number]
    # Shifted from the edge of a block on, so that both sides of the edge are compared.
    content = bytearray(whole)
    for number in range(16, 20):
        at = HEADER.size + 4 * 30 + 8 * number
        put(at, (int.from_bytes(content[at : at + 8], "little") + 2).to_bytes(8, "little"))(content)
    index.write_bytes(bytes(content))
    dataset = IndexedDataset(prefix)
    for number, first in ((17, 16), (13, 16), (20, 20)):
        with pytest.raises(DataError, match=rf"sequence {first} starts at byte"):
            dataset[number]
    for value in (-8, -(2**63), 2**63 - 2):
        index.write_bytes(bytes(put(HEADER.size + 4 * 30 + 8 * 16, int64(value))(bytearray(whole))))
        with pytest.raises(
            DataError, match=rf"sequence 16 starts at byte {value:,}, but this offset must be 124"
        ):
            IndexedDataset(prefix)[17]
    document = HEADER.size + 12 * 30 + 8 * 17
    index.write_bytes(bytes(put(document, int64(5))(bytearray(whole))))
    with pytest.raises(DataError, match="the document array must rise from 0 to the number of sequences, 30"):
        _ = IndexedDataset(prefix).document_indices


def test_never_fewer_tokens_than_asked_for(prefix):
    """A slice beyond the end of a sequence is refused, not shortened; a sequence
    number too large is an IndexError.
    """
    write(prefix, [[1, 2, 3, 4], [5, 6]])
    dataset = IndexedDataset(prefix)
    refuses(
        "data/text_document.bin: sequence 0 has 5 tokens, but 3 tokens from offset 3 were "
        "requested. The cached index was built from other data: remove index-cache/.",
        dataset.get,
        0,
        3,
        3,
    )
    for offset, length in ((6, None), (-1, 1), (0, -1), (0, 2**70)):
        with pytest.raises(DataError, match="sequence 0 has 5 tokens"):
            dataset.get(0, offset, length)
    assert dataset.get(np.int32(1), 3).tolist() == []
    assert [part.tolist() for part in dataset] == [[1, 2, 3, 4, 9], [5, 6, 9]]
    assert dataset[-2].tolist() == [1, 2, 3, 4, 9]
    for sequence in (2, -3, 2**16, 2**70):
        with pytest.raises(IndexError):
            dataset[sequence]


# --- several sequences in a document, loss masks, other data --------------------------------------


def test_sentences_of_documents(prefix):
    """EOD is appended to a document's last sequence that has tokens, as in Megatron;
    empty documents are dropped.
    """
    with IndexedWriter(prefix, 100, 9) as writer:
        # Documents [1 | 2 3 | -], [-], [4] in one batch; then [5 | 6] in another, then [7] as one sequence.
        writer.add_batch(
            np.array([1, 2, 3, 4]), np.array([0, 1, 3, 3, 3, 4]), document_ends=np.array([3, 4, 5])
        )
        writer.add_batch(np.array([5, 6]), np.array([0, 1, 2]), document_ends=np.array([2]))
        writer.add_batch(np.array([7]), np.array([0, 1]))
    dataset = IndexedDataset(prefix)
    assert [part.tolist() for part in dataset] == [[1], [2, 3, 9], [4, 9], [5], [6, 9], [7, 9]]
    assert dataset.document_indices.tolist() == [0, 2, 3, 5, 6]
    written = writer.written
    assert (written.num_documents, written.num_sequences, written.num_empty) == (4, 6, 1)
    dataset.verify(100)


def test_plain_documents_then_sentences(prefix):
    """Documents added before the first batch with sentences are numbered correctly in the document array."""
    with IndexedWriter(prefix, 100, None) as writer:
        writer.add_batch(np.array([1, 2]), np.array([0, 1, 2]))
        writer.add_batch(np.array([3, 4]), np.array([0, 1, 2]), document_ends=np.array([2]))
        writer.add_batch(np.array([], np.uint32), np.array([0, 0]), document_ends=np.array([1]))
    assert IndexedDataset(prefix).document_indices.tolist() == [0, 1, 2, 4]
    assert writer.written.num_empty == 1


@pytest.mark.parametrize(
    ("offsets", "ends"), [([0, 1], None), ([1, 3], None), ([0, 2, 1, 3], None), ([0, 3], [2])]
)
def test_arrays_that_do_not_fit_are_our_own_mistake(prefix, offsets, ends):
    """Offsets or document ends that do not cover all ids or sequences raise ValueError."""
    with pytest.raises(ValueError, match="must rise"), IndexedWriter(prefix, 100, 9) as writer:
        writer.add_batch(np.arange(3), np.array(offsets), None if ends is None else np.array(ends))
    assert list(prefix.parent.iterdir()) == []


def test_loss_mask_beside_the_tokens(prefix):
    """The pair with the loss mask has the tokens' lengths and documents; without a
    mask, all tokens are in the loss.
    """
    with IndexedWriter(prefix, 100, 9, loss_mask=True) as writer:
        writer.add_batch(np.array([1, 2, 3]), np.array([0, 2, 3]), learnt=np.array([False, True, False]))
        writer.add_batch(np.array([4]), np.array([0, 1]))
    mask = IndexedDataset(f"{prefix}_loss_mask")
    assert mask.dtype == np.uint8
    assert [part.tolist() for part in mask] == [[0, 1, 1], [0, 1], [1, 1]]
    assert [part.tolist() for part in IndexedDataset(prefix)] == [[1, 2, 9], [3, 9], [4, 9]]
    assert sorted(writer.written.files) == sorted(path.name for path in prefix.parent.iterdir())
    assert len(writer.written.files) == 4


def test_values_that_do_not_fit_are_refused(prefix):
    """Without a vocabulary, ids are limited by the dtype, and a larger value is refused instead of cast."""
    for dtype, value, message in (
        ("uint8", 256, "data/text_document.bin: 256 does not fit uint8 (0 to 255). Choose a larger dtype."),
        ("int16", -32_769, "data/text_document.bin: -32,769 does not fit int16 (-32,768 to 32,767). Choose a "
         "larger dtype."),
    ):  # fmt: skip
        with pytest.raises(DataError) as caught, IndexedWriter(prefix, None, None, dtype) as writer:
            writer.add_document(np.array([value]))
        assert str(caught.value) == message


def test_floats_are_readable_but_no_token_ids(prefix):
    """A pair of floats can be opened and read, but is refused as token ids for GPT."""
    with IndexedWriter(prefix, None, None, "float64") as writer:
        writer.add_document(np.array([0.5, np.nan]))
    dataset = IndexedDataset(prefix)
    assert dataset[0][0] == 0.5
    assert dataset.verify() == -1
    refuses(
        ("data/text_document.bin: token ids are stored as float64, but GPT data must have an integer dtype."),
        dataset.verify,
        10,
    )


def test_index_in_pieces(prefix, monkeypatch):
    """An index written in chunks has the same bytes as one written at once."""
    lengths, documents = np.arange(1, 24, dtype=np.int32), np.array([0, 3, 3, 17, 23])
    expected = write_index(prefix.with_suffix(".idx"), np.int32, lengths, documents)
    content = read_bytes(prefix, ".idx")
    monkeypatch.setattr(indexed_writer, "CHUNK", 4)
    assert write_index(prefix.with_suffix(".idx"), np.int32, lengths, documents) == expected
    assert read_bytes(prefix, ".idx") == content
    assert hashlib.sha256(content).hexdigest() == expected


def test_a_negative_length_between_others(prefix):
    """A negative length is refused even if the stored offsets match it."""
    write(prefix, [[1, 2], [3, 4], [5]])
    lengths = np.array([5, -1, 4])
    write_index(prefix.with_suffix(".idx"), np.uint16, lengths)
    refuses(
        (
            "data/text_document.idx: sequence 1 has a negative length, -1. Copy the file again, "
            "or make the index again."
        ),
        IndexedDataset,
        prefix,
    )


MEGATRON_ROUND = """
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
ours, theirs, dtype = given
dataset = IndexedDataset(ours)
builder = IndexedDatasetBuilder(theirs + ".bin", dtype=getattr(np, dtype))
for document in ([[1, 2], [3]], [], [[4, 5, 6]]):
    tokens = [token for sequence in document for token in sequence]
    builder.add_document(torch.tensor(tokens, dtype=torch.int64), [len(sequence) for sequence in document])
builder.finalize(theirs + ".idx")
answer = {
    "dtype": np.dtype(dataset.index.dtype).name,
    "sequences": [np.asarray(dataset[number]).tolist() for number in range(len(dataset))],
    "documents": dataset.document_indices.tolist(),
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint8", "float64"])
def test_both_ways_with_megatron_core(prefix, dtype, megatron_core):
    """megatron-core reads nbtrain's files and nbtrain reads megatron-core's, also with sentences."""
    with IndexedWriter(prefix, None, 9, dtype) as writer:
        writer.add_batch(np.array([1, 2, 3, 4]), np.array([0, 1, 3, 4]), document_ends=np.array([2, 3]))
    theirs = prefix.with_name("theirs")
    assert megatron_core(MEGATRON_ROUND, [str(prefix), str(theirs), dtype]) == {
        "dtype": dtype,
        "sequences": [[1], [2, 3, 9], [4, 9]],
        "documents": [0, 2, 3],
    }
    dataset = IndexedDataset(theirs)
    dataset.verify()
    assert dataset.dtype.name == dtype
    assert [part.tolist() for part in dataset] == [[1, 2], [3], [4, 5, 6]]
    assert dataset.document_indices.tolist() == [0, 2, 2, 3]
    assert dataset.num_filled_documents() == 2
