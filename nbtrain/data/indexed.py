"""Megatron's .bin/.idx: the format, a memory-mapped reader, and a check that says what is wrong.

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

Byte-compatible with megatron-core and Megatron-DeepSpeed (`mmap`). A document is one sequence and ends in
the end-of-document token (EOD), which is counted in its length. The writer is in indexed_writer.py.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nbtrain.errors import DataError
from nbtrain.workspace import display

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
SCAN_TOKENS = 1 << 22


def optimal_dtype(vocab_size: int) -> np.dtype:
    """uint16 below 65,500 entries, else int32: the rule of both projects, on the size before padding."""
    return np.dtype("<u2") if vocab_size < UINT16_VOCABULARY else np.dtype("<i4")


def check_vocabulary(dtype: np.dtype, vocab_size: int, where: str) -> None:
    """Raises DataError where ids below `vocab_size` do not fit `dtype`."""
    if dtype.kind not in "iu":
        raise DataError(f"{where}: token ids are stored as {dtype.name}; GPT data must be an integer type.")
    largest = np.iinfo(dtype).max
    if vocab_size - 1 > largest:
        raise DataError(
            f"{where}: a vocabulary of {vocab_size:,} has ids up to {vocab_size - 1:,}, but {dtype.name} holds "
            f"at most {largest:,}. Encode again with dtype {optimal_dtype(vocab_size).name}, or use a "
            f"tokenizer of at most {largest + 1:,} entries."
        )


def bin_path(prefix: str | os.PathLike) -> Path:
    """The token file of a prefix (`<dir>/<key>_document`)."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike) -> Path:
    """The index file of a prefix."""
    return Path(f"{os.fspath(prefix)}.idx")


class IndexedDataset:
    """A .bin/.idx pair, memory-mapped: `dataset[i]` is sequence i as an array of its stored dtype.

    Opening checks the header and both file sizes. Raises DataError where they do not agree.
    """

    def __init__(self, prefix: str | os.PathLike):
        self.prefix = Path(prefix)
        self._open(checked=True)

    @classmethod
    def unchecked(cls, prefix: str | os.PathLike) -> "IndexedDataset":
        """As opening, but a .bin of the wrong size is accepted: for repairs."""
        dataset = cls.__new__(cls)
        dataset.prefix = Path(prefix)
        dataset._open(checked=False)
        return dataset

    def _open(self, checked: bool) -> None:
        self.dtype, num_sequences, num_entries = read_header(idx_path(self.prefix))
        # asarray: the same memory as a plain array, without memmap's price at every slice.
        index = np.asarray(np.memmap(idx_path(self.prefix), mode="r", dtype=np.uint8))
        cut = [
            HEADER.size,
            HEADER.size + 4 * num_sequences,
            HEADER.size + 12 * num_sequences,
            HEADER.size + 12 * num_sequences + 8 * num_entries,
        ]
        self.lengths = index[cut[0] : cut[1]].view("<i4")
        self.pointers = index[cut[1] : cut[2]].view("<i8")
        self.document_indices = index[cut[2] : cut[3]].view("<i8")
        if not bin_path(self.prefix).is_file():
            raise missing(bin_path(self.prefix))
        if checked:
            self._check_bin_size()
        size = bin_path(self.prefix).stat().st_size // self.dtype.itemsize
        self.tokens = (
            np.asarray(np.memmap(bin_path(self.prefix), mode="r", dtype=self.dtype, shape=(size,)))
            if size  # an empty file cannot be mapped
            else np.empty(0, self.dtype)
        )

    def __getstate__(self) -> dict:
        # A worker process maps the files itself; a pickled memmap would carry the whole array.
        return {"prefix": self.prefix}

    def __setstate__(self, state: dict) -> None:
        self.prefix = state["prefix"]
        self._open(checked=True)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, sequence: int) -> np.ndarray:
        return self.get(sequence)

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens of a sequence from `offset` on; None means to its end."""
        if length is None:
            length = int(self.lengths[sequence]) - offset
        start = int(self.pointers[sequence]) // self.dtype.itemsize + offset
        return self.tokens[start : start + length]

    @property
    def num_tokens(self) -> int:
        """Tokens by the index (sum of all lengths)."""
        if not len(self):
            return 0
        return int(self.pointers[-1]) // self.dtype.itemsize + int(self.lengths[-1])

    def _check_bin_size(self) -> None:
        path = bin_path(self.prefix)
        expected, found = self.num_tokens * self.dtype.itemsize, path.stat().st_size
        if found < expected:
            raise DataError(
                f"{display(path)}: truncated: {found:,} bytes, but {display(idx_path(self.prefix))} counts "
                f"{self.num_tokens:,} tokens of {self.dtype.itemsize} bytes = {expected:,} bytes; "
                f"{expected - found:,} bytes are missing. Copy the file again, or make it again with "
                "`nbtrain prepare RUN.yaml --force`."
            )
        surplus, rest = divmod(found - expected, self.dtype.itemsize)
        if surplus and not rest and surplus in (len(self), len(self.document_indices) - 1):
            raise DataError(
                f"{display(path)}: {surplus:,} tokens more than the index counts, one per document: "
                "Megatron-DeepSpeed's --append-eod writes the end-of-document token without counting it, so "
                "document k would start k tokens early. Mend the index with "
                f'nbtrain.data.indexed_writer.repair_uncounted_eod("{self.prefix}"), or prepare the data again.'
            )
        if found > expected:
            raise DataError(
                f"{display(path)}: {found:,} bytes, but {display(idx_path(self.prefix))} counts {expected:,}: "
                f"{found - expected:,} bytes too many. The two files are not of one pair: copy both again."
            )

    def verify(self, vocab_size: int | None = None) -> int:
        """Read everything: offsets, document array and, given `vocab_size`, the range of every id.

        Returns the largest id (-1 where there are no tokens). Raises DataError.
        """
        where = display(idx_path(self.prefix))
        if len(self) and int(self.lengths.min()) < 0:
            raise DataError(
                f"{where}: sequence {int(self.lengths.argmin())} has a negative length. Make it again."
            )
        expected = exclusive_offsets(self.lengths, self.dtype.itemsize)
        wrong = np.flatnonzero(self.pointers != expected)
        if wrong.size:
            first = int(wrong[0])
            raise DataError(
                f"{where}: {wrong.size:,} of {len(self):,} offsets are not the running sum of the lengths; first: "
                f"sequence {first} starts at byte {int(self.pointers[first]):,}, must be {int(expected[first]):,}. "
                "Make the index again."
            )
        documents = self.document_indices
        if (
            not len(documents)
            or documents[0] != 0
            or documents[-1] != len(self)
            or (np.diff(documents) < 0).any()
        ):
            raise DataError(
                f"{where}: the document array must rise from 0 to {len(self):,} (sequences). Make the index again."
            )
        largest = -1
        for chunk in self.chunks():
            largest = max(largest, int(chunk.max()))
            if self.dtype.kind == "i" and int(chunk.min()) < 0:
                raise DataError(f"{display(bin_path(self.prefix))}: holds a negative token id. Encode again.")
        if vocab_size is not None and largest >= vocab_size:
            raise DataError(
                f"{display(bin_path(self.prefix))}: holds token id {largest:,}, but the vocabulary has "
                f"{vocab_size:,} entries (ids below {vocab_size:,}). It was made with another tokenizer: set "
                "tokenizer.vocab_size to that one's, or encode again."
            )
        return largest

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """The flat token stream from token `start` to `stop`, in pieces of at most SCAN_TOKENS."""
        stop = self.num_tokens if stop is None else stop
        for first in range(start, stop, SCAN_TOKENS):
            yield self.tokens[first : min(first + SCAN_TOKENS, stop)]


def read_header(path: Path) -> tuple[np.dtype, int, int]:
    """(dtype, sequences, document entries) of an .idx. Raises DataError where it is missing or damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            raw = stream.read(HEADER.size)
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise DataError(f"{display(path)}: cannot be read: {error.strerror}.") from error
    if raw.startswith(LEGACY_MAGIC):
        raise DataError(
            f"{display(path)}: the `lazy`/`cached` format of old Megatron (TNTIDX). Only `mmap` is read: convert it "
            "with Megatron's tools, or prepare the data again."
        )
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise DataError(
            f"{display(path)}: not a Megatron index: must start with {MAGIC!r}, starts with {raw[:9]!r}."
        )
    _, version, code, num_sequences, num_entries = HEADER.unpack(raw)
    if version != VERSION:
        raise DataError(f"{display(path)}: index version {version}, must be {VERSION}.")
    if code not in DTYPES:
        raise DataError(f"{display(path)}: dtype code {code}, must be one of 1 to {max(DTYPES)}.")
    expected = HEADER.size + 12 * num_sequences + 8 * num_entries
    if size == expected + num_sequences and num_sequences:
        raise DataError(
            f"{display(path)}: a multimodal index (one mode byte per sequence); only text is read."
        )
    if size != expected:
        raise DataError(
            f"{display(path)}: {size:,} bytes, but its header names {num_sequences:,} sequences and "
            f"{num_entries:,} document entries = {expected:,} bytes. Copy the file again, or make it again with "
            "`nbtrain prepare RUN.yaml --force`."
        )
    return DTYPES[code], num_sequences, num_entries


def missing(path: Path) -> DataError:
    """The error for a dataset file that is not there."""
    return DataError(f"{display(path)}: no such file. Make it with `nbtrain prepare RUN.yaml`.")


def exclusive_offsets(lengths: np.ndarray, itemsize: int) -> np.ndarray:
    """int64 byte offset of each sequence: the running sum of the lengths before it."""
    offsets = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    return offsets * itemsize
