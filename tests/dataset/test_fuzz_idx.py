"""A mutated .bin/.idx pair raises DataError or is read exactly as its bytes say, without a crash."""

import contextlib
import itertools
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.dataset import indexed
from nbtrain.dataset.indexed import HEADER, IndexedDataset
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.repair import plan_repair
from tests.dataset.indexed_writer import IndexedWriter
from tests.fuzzing import num_cases

EDGES = [0, 1, 2, 3, 2**7, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


class Pair:
    """A valid pair in a separate folder, with the contents that it must have."""

    def __init__(self, folder, dtype, lengths, documents):
        folder.mkdir()
        self.prefix = folder / "x_document"
        tokens = np.arange(sum(lengths)).astype(dtype)
        self.prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
        write_index(self.prefix.with_suffix(".idx"), tokens.dtype, np.array(lengths, np.int32), documents)
        self.bin = self.prefix.with_suffix(".bin").read_bytes()
        self.idx = self.prefix.with_suffix(".idx").read_bytes()

    def put(self, binary, index):
        self.prefix.with_suffix(".bin").write_bytes(binary)
        self.prefix.with_suffix(".idx").write_bytes(index)


def expected(index, binary):
    """Read the sequences with a second, independent reader of the format, in Python integers."""
    _, _, code, sequences, entries = HEADER.unpack(index[: HEADER.size])
    dtype = indexed.DTYPES[code]
    lengths = struct.unpack_from(f"<{sequences}i", index, HEADER.size)
    documents = struct.unpack_from(f"<{entries}q", index, HEADER.size + 12 * sequences)
    assert list(documents) == sorted(documents) and documents[0] == 0 and documents[-1] == sequences
    tokens, start = [], 0
    for length in lengths:
        tokens.append(binary[start : start + length * dtype.itemsize])
        start += length * dtype.itemsize
    assert start == len(binary)
    return tokens


def read_or_refuse(pair, binary, index):
    """Return whether the mutated pair can be read; if so, assert that every sequence matches the bytes."""
    pair.put(binary, index)
    for use in (IndexedDataset, plan_repair):
        try:
            opened = use(pair.prefix)
        except DataError as error:
            assert "x_document" in str(error)
            continue
        if use is plan_repair:
            continue
        read = []
        try:
            for sequence in range(len(opened)):
                read.append(opened[sequence].tobytes())
                if len(opened[sequence]) > 1:
                    assert len(opened.get(sequence, 1, 1)) == 1
            bounds = opened.document_bounds()
            opened.verify(2**62 if opened.dtype.kind in "iu" else None)
        except DataError:
            continue
        assert read == expected(index, binary)
        assert bounds[-1] == opened.num_tokens
        return True
    return False


def mutate(generator, pair):
    """Make one to three changes to the files' header fields, entries, bytes or lengths."""
    binary, index = bytearray(pair.bin), bytearray(pair.idx)
    for _ in range(generator.randint(1, 3)):
        kind = generator.randrange(8)
        if kind == 0:  # a field of the header
            at, size = generator.choice([(0, 9), (9, 8), (17, 1), (18, 8), (26, 8)])
            value = generator.choice([*EDGES, generator.getrandbits(64)]) % 2 ** (8 * size)
            index[at : at + size] = value.to_bytes(size, "little")
        elif kind == 1 and len(index) > HEADER.size:  # an aligned entry of an array
            size = generator.choice([4, 8])
            at = HEADER.size + size * generator.randrange((len(index) - HEADER.size) // size + 1)
            value = generator.choice([*EDGES, generator.getrandbits(64)]) % 2 ** (8 * size)
            index[at : at + size] = value.to_bytes(size, "little")
        elif kind == 2 and index:  # a bit
            index[generator.randrange(len(index))] ^= 1 << generator.randrange(8)
        elif kind == 3:  # truncate or extend
            target = generator.choice([binary, index])
            if generator.random() < 0.5 and target:
                del target[generator.randrange(len(target)) :]
            else:
                target += generator.randbytes(generator.randint(1, 40))
        elif kind == 4 and len(index) > 50:  # swap two entries
            one, other = (generator.randrange(HEADER.size, len(index) - 8) for _ in range(2))
            index[one : one + 8], index[other : other + 8] = index[other : other + 8], index[one : one + 8]
        elif kind == 5:  # remove a piece from the middle
            at = generator.randrange(len(index) + 1)
            del index[at : at + generator.choice([1, 4, 8, 12])]
        elif kind == 6:  # duplicate a piece
            at = generator.randrange(len(index) + 1)
            index[at:at] = index[at : at + generator.choice([1, 4, 8, 12])]
        elif kind == 7 and binary:  # tokens may have any value
            binary[generator.randrange(len(binary))] = generator.randrange(256)
    return bytes(binary), bytes(index)


@pytest.fixture
def pairs(tmp_path):
    return [
        Pair(tmp_path / "plain", "<u2", [3, 1, 4, 1, 5, 9, 2, 6], None),
        Pair(tmp_path / "sentences", "<i4", [2, 7, 1, 8, 2, 8], np.array([0, 2, 2, 5, 6])),
        Pair(tmp_path / "zeros", "<u1", [0, 3, 0, 0, 2], None),
        Pair(tmp_path / "empty", "<u2", [], None),
        Pair(tmp_path / "wide", "<f8", [1, 2], None),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("block_bits", [2, 16])
def test_mutated_pairs(pairs, monkeypatch, block_bits, mutations=400):
    """Hundreds of seeded mutations are read correctly or refused, in blocks checked on opening or later."""
    if block_bits < 16:
        monkeypatch.setattr(indexed, "BLOCK_BITS", block_bits)
        monkeypatch.setattr(indexed, "BLOCK", 1 << block_bits)
        monkeypatch.setattr(indexed, "OPENED_BLOCKS", 1)
    generator = random.Random(mutations + block_bits)
    read = 0
    with no_more_memory_than(256 << 20):
        for number in range(num_cases(mutations)):
            pair = pairs[number % len(pairs)]
            read += read_or_refuse(pair, *mutate(generator, pair))
    # Changed tokens are tokens too, so such pairs must be read.
    assert num_cases(mutations) // 50 < read < num_cases(mutations) // 2


@contextlib.contextmanager
def no_more_memory_than(num_bytes):
    """Limit memory, so that a header with false sizes, which requests gigabytes, raises MemoryError."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    own_pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (own_pages * resource.getpagesize() + num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.slow
@settings(
    max_examples=num_cases(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_index(tmp_path_factory, data):
    """An index with random numbers in its header and random bytes is read as its bytes say, or refused."""
    folder = tmp_path_factory.mktemp("any")
    pair = Pair(folder / "pair", "<u2", [3, 1, 2], None)
    number = st.one_of(st.sampled_from(EDGES), st.integers(0, 8), st.integers(0, 2**64 - 1))
    header = HEADER.pack(
        indexed.MAGIC,
        1,
        data.draw(st.integers(1, 8), label="dtype code"),
        data.draw(number, label="sequences"),
        data.draw(number, label="document entries"),
    )
    body = data.draw(st.one_of(st.just(pair.idx[HEADER.size :]), st.binary(max_size=120)), label="body")
    read_or_refuse(
        pair, data.draw(st.one_of(st.just(pair.bin), st.binary(max_size=40)), label="bin"), header + body
    )


@pytest.mark.slow
@settings(
    max_examples=num_cases(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), max_size=6),
    dtype=st.sampled_from(["uint8", "int16", "int32", "int64", "uint16"]),
    eod=st.sampled_from([None, 99]),
)
def test_what_is_written_is_read(tmp_path_factory, documents, dtype, eod):
    """Documents of any sequences, including empty ones, are read back without the empty sequences."""
    prefix = tmp_path_factory.mktemp("any") / "x_document"
    sequences = [sequence for document in documents for sequence in document]
    offsets = np.cumsum([0, *map(len, sequences)])
    ends = np.cumsum([len(document) for document in documents]).astype(np.int64)
    with IndexedWriter(prefix, 100, eod, dtype) as writer:
        writer.add_batch(np.array(list(itertools.chain(*sequences)), np.int64), offsets, ends)
    dataset = IndexedDataset(prefix)
    dataset.verify(100)
    filled = [[part for part in document if part] for document in documents]
    filled = [document for document in filled if document]
    end = [] if eod is None else [eod]
    assert [part.tolist() for part in dataset] == [
        part + (end if place == len(document) - 1 else [])
        for document in filled
        for place, part in enumerate(document)
    ]
    assert np.diff(dataset.document_indices).tolist() == [len(document) for document in filled]
    assert writer.written.num_empty == len(documents) - len(filled)
