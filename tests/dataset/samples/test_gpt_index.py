"""Document, sample and shuffle index, against golden arrays and a slow reference."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.dataset.samples import gpt_index
from nbtrain.dataset.samples.gpt_index import build_gpt_index, epochs_needed
from nbtrain.dataset.samples.index_files import cached_arrays, store

LENGTHS = np.array([5, 3, 0, 9, 2, 7], np.int32)
GOLDEN_DOCUMENTS = [2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1]
GOLDEN_SAMPLES = [
    [0, 0],
    [2, 1],
    [2, 5],
    [3, 2],
    [4, 1],
    [5, 3],
    [5, 7],
    [6, 2],
    [7, 1],
    [8, 3],
    [8, 7],
    [10, 2],
    [10, 6],
]
GOLDEN_SHUFFLE = [1, 0, 3, 2, 5, 4, 8, 9, 7, 10, 11, 6]


def slow_sample_index(lengths, document_index, num_samples, seq_length):
    """Build the sample index as Megatron's helpers.cpp does, token by token."""
    rows, place, offset = [(0, 0)], 0, 0
    for _ in range(num_samples):
        left = seq_length + 1
        while left:
            length = lengths[document_index[place]] - offset
            left -= length
            if left <= 0:
                # The last token of a sample is the first of the next one.
                offset += left + length - 1
                left = 0
            else:
                place, offset = place + 1, 0
        rows.append((place, offset))
    return np.array(rows)


def slow_index(lengths, first, last, seq_length, num_samples, seed):
    """Build all three arrays with loops, as upstream does."""
    tokens = int(lengths[first:last].sum())
    epochs, total = 1, tokens
    while (total - 1) // seq_length < num_samples:
        epochs, total = epochs + 1, total + tokens
    available = (total - 1) // seq_length
    generator = np.random.RandomState(seed)
    documents = list(range(first, last))
    before = ((epochs - 1) * tokens - 1) // seq_length
    separate = epochs > 1 and num_samples - before < int(0.80 * ((tokens - 1) // seq_length))

    def shuffled(values, dtype):
        values = np.array(values, dtype)
        generator.shuffle(values)
        return values.tolist()

    if separate:
        document_index = shuffled(documents * (epochs - 1), np.int32) + shuffled(documents, np.int32)
    else:
        document_index = shuffled(documents * epochs, np.int32)
    sample_index = slow_sample_index(lengths, document_index, available, seq_length)
    if separate:
        shuffle = shuffled(range(before), np.uint32) + shuffled(range(before, available), np.uint32)
    else:
        shuffle = shuffled(range(available), np.uint32)
    return np.array(document_index), sample_index, np.array(shuffle)


def test_golden_arrays():
    """For six documents, one of them empty, and two epochs, the arrays equal
    megatron-core 0.16.1's (seed 1234).
    """
    index = build_gpt_index(LENGTHS, 0, 6, seq_length=4, num_samples=9, seed=1234)
    assert index.document_index.tolist() == GOLDEN_DOCUMENTS
    assert index.sample_index.tolist() == GOLDEN_SAMPLES
    assert index.shuffle_index.tolist() == GOLDEN_SHUFFLE
    assert [
        array.dtype.name for array in (index.document_index, index.sample_index, index.shuffle_index)
    ] == [
        "int32",
        "int32",
        "uint32",
    ]


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_slow_twin(seed):
    """For random documents, splits, lengths and epochs, all three arrays equal upstream's loops."""
    generator = np.random.RandomState(seed)
    # The first document is not empty here: upstream's loop starts inside it, as does row 0 of ours.
    lengths = generator.randint(1, 30, size=generator.randint(3, 40)).astype(np.int32)
    first = int(generator.randint(0, len(lengths) - 2))
    arguments = (first, len(lengths), int(generator.randint(1, 25)), int(generator.randint(1, 400)), seed)
    index = build_gpt_index(lengths, *arguments)
    for ours, slow in zip(
        (index.document_index, index.sample_index, index.shuffle_index),
        slow_index(lengths, *arguments),
        strict=True,
    ):
        assert np.array_equal(ours, slow)


def test_every_token_is_read_once_in_an_epoch():
    """An epoch is divided into samples that share one token with their neighbours;
    a short rest is dropped.
    """
    lengths = np.array([4, 10, 1, 6, 25], np.int32)
    index = build_gpt_index(lengths, 0, 5, seq_length=8, num_samples=1, seed=3)
    ends = np.concatenate([[0], np.cumsum(lengths[index.document_index])])
    starts = ends[index.sample_index[:, 0]] + index.sample_index[:, 1]
    assert starts.tolist() == [8 * row for row in range(len(index) + 1)]
    assert len(index) == (46 - 1) // 8


def test_last_epoch_is_separate_below_eighty_percent():
    """If less than 80 % of the last epoch is needed, it is shuffled separately, so
    that it is truncated evenly.
    """
    lengths = np.full(100, 11, np.int32)  # 1,100 tokens, 109 samples of 10 per epoch
    short, long = epochs_needed(1100, 10, 109 + 80), epochs_needed(1100, 10, 109 + 100)
    assert (short.num_epochs, short.separate_last_epoch) == (2, True)
    assert (long.num_epochs, long.separate_last_epoch) == (2, False)
    assert not epochs_needed(1100, 10, 5).separate_last_epoch
    index = build_gpt_index(lengths, 0, 100, 10, 109 + 80, seed=5)
    assert sorted(index.document_index[100:]) == list(range(100))
    assert sorted(index.shuffle_index[:109]) == list(range(109))


def test_documents_without_a_token():
    """A split without any token raises an error."""
    with pytest.raises(DataError) as caught:
        build_gpt_index(LENGTHS, 2, 3, 4, 1, seed=0)
    assert str(caught.value) == "documents [2, 3) of the dataset have no tokens, so they provide no samples."


def test_index_that_would_fill_the_memory():
    """An index of thousands of epochs of many documents is refused before memory is allocated."""
    with pytest.raises(DataError) as caught:
        build_gpt_index(np.full(100_000, 2, np.int32), 0, 100_000, 2048, 10_000_000, seed=0)
    assert str(caught.value) == (
        "10,000,000 samples of 2,048 tokens are 102,401 epochs of 200,000 tokens; their "
        "document index would take 38 GiB (at most 16 GiB). Set data.shuffle: per_epoch, "
        "which holds one epoch's index at a time, or set data.index_samples: the order is "
        "then built for that number of samples and repeated with another seed. More text of "
        "the same kind does not make the index smaller, because its size depends on the "
        "number of samples and the length of the documents."
    )


def test_types_of_the_arrays(monkeypatch):
    """Arrays use the narrowest dtype for document positions, lengths and the number of samples."""
    # megatron-core's rule, gpt_dataset.py: int64 from iinfo(uint32).max - 1 samples on.
    assert np.iinfo(np.uint32).max == gpt_index.UINT32_SAMPLES + 1
    lengths = np.array([4, 10, 3], np.int32)  # 17 tokens: two epochs, 6 positions, 16 samples of 2 tokens

    def types():
        index = build_gpt_index(lengths, 0, 3, seq_length=2, num_samples=16, seed=0)
        assert (len(index.document_index), len(index)) == (6, 16)
        return index.document_index.dtype, index.sample_index.dtype, index.shuffle_index.dtype

    assert types() == (np.int32, np.int32, np.uint32)
    for largest, dtype in ((10, np.int32), (9, np.int64)):
        monkeypatch.setattr(gpt_index, "LARGEST_INT32", largest)
        assert types()[1] == dtype, "the longest document has 10 tokens"
    for samples, dtype in ((17, np.uint32), (16, np.int64)):
        monkeypatch.setattr(gpt_index, "UINT32_SAMPLES", samples)
        assert types()[2] == dtype
    lengths = np.array([2, 2, 1], np.int32)  # 5 tokens: 7 epochs, 21 positions
    for largest, dtype in ((21, np.int32), (20, np.int64)):
        monkeypatch.setattr(gpt_index, "LARGEST_INT32", largest)
        index = build_gpt_index(lengths, 0, 3, seq_length=2, num_samples=16, seed=0)
        assert (len(index.document_index), index.sample_index.dtype) == (21, dtype)


@pytest.mark.parametrize(
    ("first", "last", "dtype"),
    [
        (2**31 - 5, 2**31, np.int32),
        (2**31 - 5, 2**31 + 5, np.int64),
        (2**31 + 1, 2**31 + 9, np.int64),
        (2**33, 2**33 + 3, np.int64),
    ],
)
def test_numbers_of_documents_beyond_31_bits(first, last, dtype):
    """Documents numbered beyond 31 bits give the same samples as documents numbered from 0."""
    lengths = np.broadcast_to(np.int32(5), (last + 10,))  # a view of one number, without memory
    index = build_gpt_index(lengths, first, last, seq_length=8, num_samples=20, seed=1)
    small = build_gpt_index(lengths, 0, last - first, seq_length=8, num_samples=20, seed=1)
    assert index.document_index.dtype == dtype
    assert (index.document_index.astype(np.int64) - first).tolist() == small.document_index.tolist()
    assert index.sample_index.tolist() == small.sample_index.tolist()
    assert index.shuffle_index.tolist() == small.shuffle_index.tolist()


def test_the_largest_index_that_is_built(monkeypatch):
    """The document index may use exactly the memory limit, at 4 bytes per position, and no more."""
    monkeypatch.setattr(gpt_index, "LARGEST_INDEX_BYTES", 6 * 4)
    assert len(build_gpt_index(np.array([4, 10, 3]), 0, 3, 2, 16, seed=0).document_index) == 6
    monkeypatch.setattr(gpt_index, "LARGEST_INDEX_BYTES", 6 * 4 - 1)
    with pytest.raises(DataError, match="16 samples of 2 tokens are 2 epochs of 17 tokens"):
        build_gpt_index(np.array([4, 10, 3]), 0, 3, 2, 16, seed=0)


@pytest.mark.parametrize(
    ("tokens", "seq_length", "samples", "expected"),
    [
        # E t - 1 >= N T: 101 tokens hold exactly 10 samples of 10, and the 11th needs another epoch.
        (101, 10, 10, (1, 10, 0, False)),
        (101, 10, 11, (2, 20, 10, True)),
        (100, 10, 10, (2, 19, 9, True)),
        (5, 10, 1, (3, 1, 0, False)),
        # 100 samples per epoch: 79 of the last one are fewer than 80, 80 are not.
        (1001, 10, 179, (2, 200, 100, True)),
        (1001, 10, 180, (2, 200, 100, False)),
    ],
)
def test_how_many_epochs_are_needed(tokens, seq_length, samples, expected):
    """epochs_needed returns the fewest epochs, their samples, those before the last,
    and if the last is separate.
    """
    assert tuple(epochs_needed(tokens, seq_length, samples)) == expected


def test_stretches_of_any_size_give_the_same_rows(monkeypatch):
    """The sample index does not depend on the size of the stretches that are computed at once."""
    lengths = np.random.RandomState(3).randint(0, 40, size=50).astype(np.int32)
    lengths[0], lengths[20] = 3, 500
    whole = build_gpt_index(lengths, 0, 50, 7, 900, seed=4)
    for size in (1, 2, 13, 150):
        monkeypatch.setattr(gpt_index, "CHUNK_DOCUMENTS", size)
        cut = build_gpt_index(lengths, 0, 50, 7, 900, seed=4)
        for name in whole.__dataclass_fields__:
            assert np.array_equal(getattr(cut, name), getattr(whole, name))


NAMES = ("document_index", "sample_index", "shuffle_index")


def test_files_hold_what_numpy_saves_of_arrays_in_memory(tmp_path):
    """Arrays filled inside mapped files have the same bytes as arrays that numpy saves from memory."""
    lengths = np.random.RandomState(1).randint(1, 30, size=80).astype(np.int32)
    arguments = (lengths, 5, 75, 16, 400, 9)
    key = store(tmp_path, {"a": 1}, NAMES, lambda allocate: build_gpt_index(*arguments, allocate))
    expected = build_gpt_index(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f"{key}.json", *(f"{key}-{name}.npy" for name in NAMES)]
    )
    for name in NAMES:
        saved = io.BytesIO()
        np.save(saved, getattr(expected, name))
        assert (tmp_path / f"{key}-{name}.npy").read_bytes() == saved.getvalue()
    assert len(expected.shuffle_index) > 400 and expected.document_index.shape[0] > 70


def test_a_build_that_fails_leaves_nothing(tmp_path):
    """An error while arrays are filled removes the unfinished files, and the next call builds them again."""
    lengths = np.full(10, 9, np.int32)

    def failing(allocate):
        allocate("document_index", (10,), np.dtype(np.int32))
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store(tmp_path, {}, NAMES, failing)
    assert list(tmp_path.iterdir()) == []
    arrays = cached_arrays(
        tmp_path, {}, NAMES, lambda allocate: build_gpt_index(lengths, 0, 10, 4, 5, 0, allocate)
    )
    assert arrays["shuffle_index"].shape == (22,)


def test_space_is_taken_before_the_array_is_mapped(tmp_path, monkeypatch):
    """A full disk raises an error before the array is mapped, instead of killing the process by a signal."""

    def full(descriptor, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        store(tmp_path, {}, ("a",), lambda allocate: allocate("a", (1 << 20,), np.dtype(np.int64)))
    assert list(tmp_path.iterdir()) == []


def test_builders_at_one_time_do_not_disturb_each_other(tmp_path):
    """Four processes that build at the same time all read complete arrays and leave no temporary file."""
    lengths = np.random.RandomState(1).randint(1, 30, size=300).astype(np.int32)
    expected = build_gpt_index(lengths, 0, 300, 16, 2000, 9)
    together = threading.Barrier(4)

    def build(allocate):
        together.wait(300)
        build_gpt_index(lengths, 0, 300, 16, 2000, 9, allocate)

    def read(_):
        return cached_arrays(tmp_path, {"a": 1}, NAMES, build)

    with ThreadPoolExecutor(4) as pool:
        for arrays in pool.map(read, range(4)):
            assert all(np.array_equal(arrays[name], getattr(expected, name)) for name in NAMES)
    assert len(list(tmp_path.iterdir())) == 4
