"""Megatron's .bin/.idx files: the format, a memory-mapped reader, and a check that reports what is wrong.

    .bin   token ids of all sequences, concatenated, one dtype, no header
    .idx   offset      bytes  content (little-endian, no alignment)
           0           9      magic "MMIDIDX" and two zero bytes
           9           8      uint64 version = 1
           17          1      uint8 dtype code, see DTYPES
           18          8      uint64 S, sequences
           26          8      uint64 D, entries of the document array (documents + 1)
           34          4 S    int32 lengths in tokens
           34 + 4 S    8 S    int64 byte offsets into .bin
           34 + 12 S   8 D    int64 document array: first sequence of each document, then S

Byte-compatible with megatron-core and Megatron-DeepSpeed (`mmap`). A document is one sequence that ends in
the end-of-document token (EOD), which counts in its length. indexed_writer.py writes these files.
"""

import os
import shlex
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.workspace import display
from nbtrain.dataset.pair_paths import bin_path, idx_path, missing

MAGIC = b"MMIDIDX\x00\x00"
LEGACY_MAGIC = b"TNTIDX"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
# 6 is float64 and 7 float32, in both projects.
DTYPES: dict[int, np.dtype] = {
    code: np.dtype(name).newbyteorder("<")
    for code, name in enumerate(["u1", "i1", "i2", "i4", "i8", "f8", "f4", "u2"], start=1)
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
UINT16_VOCABULARY = 65_500
LARGEST_FILE = 1 << 62
SCAN_TOKENS = 1 << 22
BLOCK_BITS = 16
BLOCK = 1 << BLOCK_BITS
"""Number of sequences in an index that are checked together."""
OPENED_BLOCKS = 16
"""Number of blocks that are checked when a pair is opened: 12 MiB of index, a few milliseconds."""


def optimal_dtype(vocab_size: int) -> np.dtype:
    """Return uint16 for a vocabulary below 65,500 entries, otherwise int32.

    megatron-core and Megatron-DeepSpeed use the same rule, for the unpadded vocabulary size.
    """
    return np.dtype("<u2") if vocab_size < UINT16_VOCABULARY else np.dtype("<i4")


def check_vocabulary(dtype: np.dtype, vocab_size: int, where: str) -> None:
    """Raise DataError if ids below `vocab_size` do not fit `dtype`."""
    if dtype.kind not in "iu":
        raise DataError(
            f"{where}: token ids are stored as {dtype.name}, but GPT data must have an integer dtype."
        )
    largest = np.iinfo(dtype).max
    if vocab_size - 1 > largest:
        raise DataError(
            f"{where}: a vocabulary of {vocab_size:,} has ids up to {vocab_size - 1:,}, but {dtype.name} "
            f"holds at most {largest:,}. Encode the data again with dtype {optimal_dtype(vocab_size).name}, "
            f"or use a tokenizer with at most {largest + 1:,} entries."
        )


class IndexedDataset:
    """A memory-mapped .bin/.idx pair: `dataset[i]` is sequence i, an array of the stored dtype.

    Opening checks the header, both file sizes, the first and last entries of every array, and the first
    OPENED_BLOCKS blocks of the index. Every other block is checked when it is first read, so no index can
    cause a read outside the file. With `surplus_allowed`, for repairs, the .bin may hold more tokens than the
    index counts. Raises DataError if something is inconsistent.

    Truncating a memory-mapped file kills the process that mapped it. Datasets are therefore replaced by
    rename, never changed in place.
    """

    def __init__(self, prefix: str | os.PathLike, surplus_allowed: bool = False):
        self.prefix = Path(prefix)
        self.dtype, num_sequences, num_entries = read_header(idx_path(self.prefix))
        # asarray gives a plain array over the same memory, without memmap's cost at every slice.
        index = np.asarray(np.memmap(idx_path(self.prefix), mode="r", dtype=np.uint8))
        sizes = (HEADER.size, 4 * num_sequences, 8 * num_sequences)
        _, lengths, pointers, documents = np.split(index, np.cumsum(sizes))
        self.lengths, self.pointers = lengths.view("<i4"), pointers.view("<i8")
        self._document_indices = documents.view("<i8")
        self._documents_checked = False
        self._itemsize = self.dtype.itemsize
        # One flag per block: whether its lengths and offsets were checked.
        self._checked = bytearray(-(-num_sequences // BLOCK))
        if not bin_path(self.prefix).is_file():
            raise missing(bin_path(self.prefix))
        self._check_ends()
        self._check_bin_size(surplus_allowed)
        size = bin_path(self.prefix).stat().st_size // self._itemsize
        self.tokens = (
            np.asarray(np.memmap(bin_path(self.prefix), mode="r", dtype=self.dtype, shape=(size,)))
            if size  # an empty file cannot be mapped
            else np.empty(0, self.dtype)
        )
        for block in range(min(len(self._checked), OPENED_BLOCKS)):
            self._check_block(block)
        if num_entries <= BLOCK * OPENED_BLOCKS:
            self.check_documents()

    def __reduce__(self) -> tuple:
        # A worker process maps the files itself; a pickled memmap would carry the whole array.
        return IndexedDataset, (self.prefix,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, sequence: int) -> np.ndarray:
        return self.get(sequence)

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """Return `length` tokens of a sequence from `offset` on; None returns all tokens up to its end.

        Raises DataError if the sequence is shorter.
        """
        block = sequence >> BLOCK_BITS
        if sequence < 0 or block >= len(self._checked):
            if not -len(self) <= sequence < len(self):
                raise IndexError(f"sequence {sequence:,} is out of range for {len(self):,} sequences")
            sequence %= len(self)
            block = sequence >> BLOCK_BITS
        if not self._checked[block]:
            self._check_block(block)
        available = self.lengths.item(sequence)
        if length is None:
            length = available - offset
        if offset < 0 or length < 0 or offset + length > available:
            raise DataError(
                f"{display(bin_path(self.prefix))}: sequence {sequence:,} has {available:,} tokens, but "
                f"{length:,} tokens from offset {offset:,} were requested. The cached index was built from "
                "other data: remove index-cache/."
            )
        start = self.pointers.item(sequence) // self._itemsize + offset
        return self.tokens[start : start + length]

    @property
    def num_tokens(self) -> int:
        return self._end // self._itemsize

    @property
    def num_documents(self) -> int:
        """Number of documents in the index, including empty ones."""
        return len(self._document_indices) - 1

    @property
    def document_indices(self) -> np.ndarray:
        """Index of each document's first sequence, then the number of sequences, int64 [documents + 1]."""
        self.check_documents()
        return self._document_indices

    def document_bounds(self) -> np.ndarray:
        """Return the position of each document's first token, then the number of tokens.

        The array is int64 [documents + 1].
        """
        firsts = self.document_indices
        bounds = np.full(len(firsts), self.num_tokens, np.int64)
        inside = firsts < len(self)
        bounds[inside] = self.pointers[firsts[inside]] // self._itemsize
        return bounds

    def check(self) -> None:
        """Read the whole index. Raises DataError if lengths, offsets or documents are inconsistent."""
        for block in range(len(self._checked)):
            self._check_block(block)
        self.check_documents()

    def check_documents(self) -> None:
        """Check the document array, only on the first call.

        Raises DataError unless it rises from 0 to the number of sequences.
        """
        if self._documents_checked:
            return
        documents = self._document_indices
        for first in range(0, len(documents) - 1, BLOCK):
            part = documents[first : first + BLOCK + 1]
            if (part[1:] < part[:-1]).any():
                raise self._wrong_documents()
        self._documents_checked = True

    def _check_ends(self) -> None:
        """Check the first and last entries, without reading the whole index."""
        documents = self._document_indices
        if not len(documents) or documents[0] != 0 or documents[-1] != len(self):
            raise self._wrong_documents()
        if not len(self):
            return
        for sequence in (0, -1):
            pointer, length = int(self.pointers[sequence]), int(self.lengths[sequence])
            if length < 0:
                raise self._negative_length(sequence % len(self))
            if not 0 <= pointer < LARGEST_FILE or pointer % self._itemsize or (sequence == 0 and pointer):
                must = "0" if sequence == 0 else f"a multiple of {self._itemsize} below 2**62"
                raise self._wrong_pointer(sequence % len(self), pointer, must)

    def _check_block(self, block: int) -> None:
        """Check the lengths and offsets of one block, and the offset at which the next block begins."""
        first, last = block << BLOCK_BITS, min((block + 1) << BLOCK_BITS, len(self))
        lengths = self.lengths[first:last]
        if int(lengths.min()) < 0:
            raise self._negative_length(first + int(lengths.argmin()))
        expected = np.zeros(last - first + 1, np.int64)
        # At most 2**16 lengths below 2**31 and 8 bytes per item: no sum overflows.
        np.cumsum(lengths, dtype=np.int64, out=expected[1:])
        expected *= self._itemsize
        start = int(self.pointers[first])
        before = int(self.pointers[first - 1]) + int(self.lengths[first - 1]) * self._itemsize if first else 0
        found = np.append(self.pointers[first:last], self._end if last == len(self) else self.pointers[last])
        # Compared as differences from the first offset, so that a malicious offset cannot overflow either.
        wrong = np.flatnonzero((found.view(np.uint64) - np.uint64(start % 2**64)) != expected.view(np.uint64))
        if start != before or wrong.size:
            at = first if start != before else first + int(wrong[0])
            must = before if start != before else start + int(expected[wrong[0]])
            raise self._wrong_pointer(at, int(found[at - first]), f"{must:,}")
        if start < 0 or start + int(expected[-1]) > len(self.tokens) * self._itemsize:
            raise DataError(
                f"{display(idx_path(self.prefix))}: sequences {first:,} to {last - 1:,} are outside "
                f"{display(bin_path(self.prefix))}. Copy both files again."
            )
        self._checked[block] = True

    @property
    def _end(self) -> int:
        """Byte position after the last token, according to the index."""
        return int(self.pointers[-1]) + int(self.lengths[-1]) * self._itemsize if len(self) else 0

    def _wrong_pointer(self, sequence: int, pointer: int, must: str) -> DataError:
        return DataError(
            f"{display(idx_path(self.prefix))}: sequence {sequence:,} starts at byte {pointer:,}, but this "
            f"offset must be {must}: offsets are the running sum of the lengths. Copy the file again, or "
            "make the index again."
        )

    def _negative_length(self, sequence: int) -> DataError:
        return DataError(
            f"{display(idx_path(self.prefix))}: sequence {sequence:,} has a negative length, "
            f"{int(self.lengths[sequence]):,}. Copy the file again, or make the index again."
        )

    def _wrong_documents(self) -> DataError:
        return DataError(
            f"{display(idx_path(self.prefix))}: the document array must rise from 0 to the number of "
            f"sequences, {len(self):,}. Copy the file again, or make the index again."
        )

    def _check_bin_size(self, surplus_allowed: bool) -> None:
        path = bin_path(self.prefix)
        expected, found = self.num_tokens * self._itemsize, path.stat().st_size
        if found < expected:
            if problem := pointer_problem_of(path):
                raise DataError(f"{display(path)}: {problem}.")
            raise DataError(
                f"{display(path)}: the file is truncated: it has {found:,} bytes, but "
                f"{display(idx_path(self.prefix))} counts {self.num_tokens:,} tokens of {self._itemsize} "
                f"bytes = {expected:,} bytes; {expected - found:,} bytes are missing. {AGAIN}"
            )
        surplus, rest = divmod(found - expected, self._itemsize)
        if surplus_allowed and not rest:
            return
        if surplus and not rest and surplus <= self.num_documents and surplus == self.num_filled_documents():
            raise DataError(
                f"{display(path)}: the file has {surplus:,} more tokens than the index counts, one per "
                "document: Megatron-DeepSpeed's --append-eod writes the end-of-document token without "
                "counting it, so "
                "document k would start k tokens early. Repair the index with "
                f"`nbtrain data repair {shlex.quote(display(self.prefix))}`, or prepare the data again."
            )
        if found > expected:
            raise DataError(
                f"{display(path)}: the file has {found:,} bytes, {found - expected:,} more than the "
                f"{expected:,} bytes that {display(idx_path(self.prefix))} counts. The two files do not "
                f"belong together: copy both again."
            )

    def num_filled_documents(self) -> int:
        """Count the documents that have at least one sequence.

        Megatron-LM's tools/preprocess_data.py also writes documents without a sequence.
        """
        documents = self.document_indices
        return sum(
            int((documents[first + 1 : first + BLOCK + 1] > documents[first:-1][:BLOCK]).sum())
            for first in range(0, len(documents) - 1, BLOCK)
        )

    def verify(self, vocab_size: int | None = None, seen: Callable[[np.ndarray], object] = len) -> int:
        """Check the whole pair: offsets, document array and, if `vocab_size` is given, the range of every id.

        Returns the largest id, or -1 if the tokens are not integers or there are no tokens. `seen` is called
        with each chunk of tokens, in order. Raises DataError.
        """
        self.check()
        binary = display(bin_path(self.prefix))
        if vocab_size is not None:
            check_vocabulary(self.dtype, 1, binary)  # rejects a dtype that is not an integer
        largest = -1
        for chunk in self.chunks():
            seen(chunk)
            if self.dtype.kind == "f":
                continue
            largest = max(largest, int(chunk.max()))
            if self.dtype.kind == "i" and int(chunk.min()) < 0:
                raise DataError(f"{binary}: the file holds a negative token id. Encode the data again.")
        if vocab_size is not None and largest >= vocab_size:
            raise DataError(
                f"{binary}: the file holds token id {largest:,}, but the vocabulary has "
                f"{vocab_size:,} entries (ids below {vocab_size:,}). The file was made with another "
                "tokenizer: set tokenizer.vocab_size to that tokenizer's size, or encode the data again."
            )
        return largest

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield all tokens in order, in chunks of at most SCAN_TOKENS."""
        for first in range(0, self.num_tokens, SCAN_TOKENS):
            yield self.tokens[first : first + SCAN_TOKENS]


AGAIN = "Copy the file again, or run `nbtrain prepare RUN.yaml --force` to make it again."


def read_header(path: Path) -> tuple[np.dtype, int, int]:
    """Return an .idx file's dtype, number of sequences and number of document entries.

    Raises DataError if the file is missing or damaged.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            raw = stream.read(HEADER.size)
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise DataError(f"{display(path)}: the file cannot be read: {error.strerror}.") from error
    if problem := pointer_problem_of(path):
        raise DataError(f"{display(path)}: {problem}.")
    if raw.startswith(LEGACY_MAGIC):
        raise DataError(
            f"{display(path)}: this is the `lazy`/`cached` format of old Megatron versions (TNTIDX), but "
            "only the `mmap` format is supported. Convert the file with Megatron's tools, or prepare the "
            "data again."
        )
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise DataError(
            f"{display(path)}: not a Megatron index: the file must start with {MAGIC!r}, but starts with "
            f"{raw[:9]!r}. {AGAIN}"
        )
    _, version, code, num_sequences, num_entries = HEADER.unpack(raw)
    if version != VERSION:
        raise DataError(f"{display(path)}: the index version is {version}, but must be {VERSION}. {AGAIN}")
    if code not in DTYPES:
        raise DataError(
            f"{display(path)}: the dtype code is {code}, but must be from 1 to {max(DTYPES)}. {AGAIN}"
        )
    expected = HEADER.size + 12 * num_sequences + 8 * num_entries
    if size == expected + num_sequences and num_sequences:
        raise DataError(
            f"{display(path)}: this is a multimodal index (one mode byte per sequence), but only text "
            "datasets are supported. Write it without modes."
        )
    if size != expected:
        raise DataError(
            f"{display(path)}: the file has {size:,} bytes, but its header counts {num_sequences:,} "
            f"sequences and {num_entries:,} document entries, which take {expected:,} bytes. {AGAIN}"
        )
    return DTYPES[code], num_sequences, num_entries
