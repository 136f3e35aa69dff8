"""Determines the tokens of each GPT sample: Megatron's document, sample and shuffle index, in NumPy.

    document index   [E * documents]  the documents of E epochs, shuffled
    sample index     [n + 1, 2]       start of sample k: (position in the document index, token of that entry)
    shuffle index    [n]              the order in which samples are read

Sample i is the seq_length + 1 tokens between row shuffle[i] and the next row, across document boundaries, so
adjacent samples share one token. The generator is numpy.random.RandomState(seed), used only for these
shuffles and in this order, so the arrays equal the arrays of megatron-core and Megatron-DeepSpeed.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nbtrain.base.errors import DataError

SEPARATE_LAST_EPOCH_BELOW = 0.80
LARGEST_INDEX_BYTES = 16 << 30
LARGEST_INT32 = np.iinfo(np.int32).max
# Upstream reserves the two largest uint32 values.
UINT32_SAMPLES = 2**32 - 2
# Rows processed at a time: a few MiB of temporary arrays.
CHUNK_DOCUMENTS = 1 << 18


class Epochs(NamedTuple):
    """Number of passes over a split's documents that a number of samples needs."""

    num_epochs: int
    num_samples: int
    """Number of samples in these epochs; at least as many as requested."""
    samples_before_last: int
    separate_last_epoch: bool
    """Whether the last epoch is shuffled separately, because under 80 % of its samples are needed."""


def epochs_needed(tokens_per_epoch: int, seq_length: int, num_samples: int) -> Epochs:
    """Return the fewest epochs with (num_epochs * tokens_per_epoch - 1) // seq_length >= num_samples."""
    # (E t - 1) // T >= N  <=>  E t >= N T + 1
    num_epochs = max(1, -(-(num_samples * seq_length + 1) // tokens_per_epoch))
    available = (num_epochs * tokens_per_epoch - 1) // seq_length
    if num_epochs == 1:
        return Epochs(1, available, 0, False)
    before_last = ((num_epochs - 1) * tokens_per_epoch - 1) // seq_length
    per_epoch = (tokens_per_epoch - 1) // seq_length
    separate = num_samples - before_last < int(SEPARATE_LAST_EPOCH_BELOW * per_epoch)
    return Epochs(num_epochs, available, before_last, separate)


@dataclass(frozen=True)
class GPTIndex:
    document_index: np.ndarray
    """[E * documents] sequence numbers: int32, or int64 if a number is too large."""
    sample_index: np.ndarray
    """int32 or int64 [samples + 1, 2]: start of each sample, as (position in document_index, token)."""
    shuffle_index: np.ndarray
    """uint32 or int64 [samples]: order in which the samples are read."""

    def __len__(self) -> int:
        return len(self.shuffle_index)


class Allocate(Protocol):
    """Function that allocates the array `name` of an index, in memory or in a file (index_files.py)."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray: ...


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.empty(shape, dtype)


def build_gpt_index(
    lengths: np.ndarray,
    first: int,
    last: int,
    seq_length: int,
    num_samples: int,
    seed: int,
    allocate: Allocate = in_memory,
) -> GPTIndex:
    """Build the index of `num_samples` samples over sequences [first, last).

    `lengths` holds the lengths of all sequences. `allocate` provides the arrays. In addition to them, the
    function allocates memory for one epoch's document numbers, however many epochs there are. Raises
    DataError if the split has no tokens, or if the document index of the requested epochs would exceed 16
    GiB.
    """
    own_lengths = np.asarray(lengths[first:last])
    tokens = int(own_lengths.sum(dtype=np.int64))
    if tokens == 0:
        raise DataError(
            f"documents [{first:,}, {last:,}) of the dataset have no tokens, so they provide no samples."
        )
    epochs = epochs_needed(tokens, seq_length, num_samples)
    entries = epochs.num_epochs * (last - first)
    # Upstream uses int32 here too, where document 2**31 becomes -2**31.
    numbers = np.dtype(np.int32 if last - 1 <= LARGEST_INT32 else np.int64)
    # The limit is the same number of entries for both dtypes; in int64 they take twice the bytes.
    if entries * 4 > LARGEST_INDEX_BYTES:
        raise DataError(
            f"{num_samples:,} samples of {seq_length:,} tokens are {epochs.num_epochs:,} epochs of "
            f"{tokens:,} tokens; their document index would take {entries * numbers.itemsize / 2**30:,.0f} "
            f"GiB (at most {LARGEST_INDEX_BYTES >> 30} GiB). Set data.shuffle: per_epoch, which holds one "
            "epoch's index at a time, or set data.index_samples: the order is then built for that number of "
            "samples and repeated with another seed. More text of the same kind does not make the index "
            "smaller, because its size depends on the number of samples and the length of the documents."
        )
    generator = np.random.RandomState(seed)
    document_index = allocate("document_index", (entries,), numbers)
    _fill_document_index(_plain(document_index), first, last, epochs, generator)
    narrow = max(entries, int(own_lengths.max())) <= LARGEST_INT32
    sample_index = allocate(
        "sample_index", (epochs.num_samples + 1, 2), np.dtype(np.int32 if narrow else np.int64)
    )
    _fill_sample_index(_plain(sample_index), own_lengths, first, _plain(document_index), seq_length)
    small = epochs.num_samples < UINT32_SAMPLES
    shuffle_index = allocate(
        "shuffle_index", (epochs.num_samples,), np.dtype(np.uint32 if small else np.int64)
    )
    _fill_shuffle_index(_plain(shuffle_index), epochs, generator)
    return GPTIndex(document_index, sample_index, shuffle_index)


def _plain(array: np.ndarray) -> np.ndarray:
    # RandomState.shuffle has a loop for plain ndarrays, and one that is a hundred times slower for memmaps.
    return np.asarray(array)


def _fill_document_index(
    index: np.ndarray, first: int, last: int, epochs: Epochs, generator: "np.random.RandomState"
) -> None:
    index.reshape(epochs.num_epochs, last - first)[:] = np.arange(first, last, dtype=index.dtype)
    _shuffle(index, (epochs.num_epochs - 1) * (last - first), epochs, generator)


def _shuffle(index: np.ndarray, cut: int, epochs: Epochs, generator: "np.random.RandomState") -> None:
    """Shuffle the index in place.

    If the last epoch is shuffled separately, index[:cut] and index[cut:] are shuffled one after the other.
    """
    for part in (index[:cut], index[cut:]) if epochs.separate_last_epoch else (index,):
        generator.shuffle(part)


def _fill_sample_index(
    index: np.ndarray, own_lengths: np.ndarray, first: int, document_index: np.ndarray, seq_length: int
) -> None:
    """Fill the sample index, CHUNK_DOCUMENTS entries of the document index at a time.

    The entries of a chunk determine the samples that start in this chunk.
    """
    row, begun = 0, 0
    for place in range(0, len(document_index), CHUNK_DOCUMENTS):
        gathered = own_lengths[document_index[place : place + CHUNK_DOCUMENTS] - first]
        ends = np.cumsum(gathered, dtype=np.int64)
        ends += begun
        begun = int(ends[-1])
        # Samples whose first token is before the end of the stretch; a long document holds many of them.
        stop = min(len(index), -(-begun // seq_length))
        for start in range(row, stop, CHUNK_DOCUMENTS):
            end = min(start + CHUNK_DOCUMENTS, stop)
            tokens = np.arange(start, end, dtype=np.int64) * seq_length
            # side="right" skips documents of length zero, and moves to the next one at an exact end.
            places = np.searchsorted(ends, tokens, side="right")
            index[start:end, 0] = places + place
            index[start:end, 1] = tokens - (ends[places] - gathered[places])
        row = max(row, stop)
    # Upstream starts at document 0 even if that document is empty.
    index[0] = 0


def _fill_shuffle_index(index: np.ndarray, epochs: Epochs, generator: "np.random.RandomState") -> None:
    for start in range(0, len(index), CHUNK_DOCUMENTS):
        end = min(start + CHUNK_DOCUMENTS, len(index))
        index[start:end] = np.arange(start, end, dtype=index.dtype)
    _shuffle(index, epochs.samples_before_last, epochs, generator)
