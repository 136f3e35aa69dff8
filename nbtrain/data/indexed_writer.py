"""Writing .bin/.idx as a stream, with EOD counted and every id checked; and mending the one known damage."""

import contextlib
import hashlib
import os
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtrain import files
from nbtrain.data.indexed import (
    CODES,
    HEADER,
    MAGIC,
    VERSION,
    IndexedDataset,
    bin_path,
    check_vocabulary,
    exclusive_offsets,
    idx_path,
    optimal_dtype,
)
from nbtrain.errors import DataError
from nbtrain.workspace import display


def write_index(path: Path, dtype: np.dtype, lengths: np.ndarray, documents: np.ndarray | None = None) -> str:
    """Write an .idx atomically and return its sha256; `documents` None means one sequence per document."""
    lengths = np.asarray(lengths, "<i4")
    if documents is None:
        documents = np.arange(len(lengths) + 1)
    digest = hashlib.sha256()
    with files.atomic_writer(path) as stream:
        for part in (
            HEADER.pack(
                MAGIC, VERSION, CODES[np.dtype(dtype).newbyteorder("<")], len(lengths), len(documents)
            ),
            lengths.tobytes(),
            exclusive_offsets(lengths, np.dtype(dtype).itemsize).astype("<i8").tobytes(),
            np.asarray(documents, "<i8").tobytes(),
        ):
            digest.update(part)
            stream.write(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class Written:
    """What a writer has written; bytes and sha256 by file name."""

    num_documents: int
    num_tokens: int
    num_empty: int
    files: dict[str, dict[str, int | str]]


class IndexedWriter:
    """Streams documents into a .bin/.idx pair; nothing has its final name before close().

    Memory is 4 bytes per document. Use as a context manager: an exception leaves no file behind.
    `eod_id` is appended to each document and counted; None appends nothing (other data than GPT's).
    Raises DataError for a vocabulary that the dtype cannot hold and for an id outside the vocabulary.
    """

    def __init__(
        self,
        prefix: str | os.PathLike,
        vocab_size: int | None,
        eod_id: int | None,
        dtype: np.dtype | type | str | None = None,
    ):
        self.prefix = Path(prefix)
        if dtype is None:
            if vocab_size is None:
                raise ValueError("either vocab_size or dtype must be given")
            dtype = optimal_dtype(vocab_size)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.vocab_size, self.eod_id = vocab_size, eod_id
        if vocab_size is not None:
            check_vocabulary(self.dtype, vocab_size, display(bin_path(self.prefix)))
        self.num_tokens = self.num_empty = 0
        self.written: Written | None = None
        self._lengths = array("i")
        self._digest = hashlib.sha256()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "IndexedWriter":
        self._stream = self._stack.enter_context(files.atomic_writer(bin_path(self.prefix)))
        return self

    def __exit__(self, kind, error, trace) -> None:
        # The .bin gets its name first; without an .idx it is not a dataset.
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            self._finish()

    @property
    def num_documents(self) -> int:
        return len(self._lengths)

    def add_document(self, ids: np.ndarray) -> None:
        """One document, without its EOD."""
        self.add_batch(np.asarray(ids), np.array([0, len(ids)]))

    def add_batch(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        """Documents ids[offsets[i]:offsets[i + 1]], without EOD; empty ones are dropped and counted."""
        lengths = np.diff(offsets.astype(np.int64))
        kept = lengths[lengths > 0]
        self.num_empty += len(lengths) - len(kept)
        if not len(kept):
            return
        self._check_range(ids)
        if self.eod_id is None:
            flat = ids.astype(self.dtype)
        else:
            flat = np.empty(len(ids) + len(kept), self.dtype)
            eods = np.cumsum(kept + 1) - 1
            is_text = np.ones(len(flat), bool)
            is_text[eods] = False
            flat[is_text] = ids
            flat[eods] = self.eod_id
            kept = kept + 1
        if int(kept.max()) > np.iinfo(np.int32).max:
            raise DataError(
                f"{display(bin_path(self.prefix))}: a document of {int(kept.max()):,} tokens; the format holds at "
                f"most {np.iinfo(np.int32).max:,}. Cut it into several documents."
            )
        self._lengths.frombytes(kept.astype(np.intc).tobytes())
        self.num_tokens += len(flat)
        content = flat.data
        self._digest.update(content)
        self._stream.write(content)

    def _check_range(self, ids: np.ndarray) -> None:
        if self.vocab_size is None:
            return
        smallest, largest = int(ids.min()), int(ids.max())
        if smallest < 0 or largest >= self.vocab_size:
            raise DataError(
                f"{display(bin_path(self.prefix))}: token id {smallest if smallest < 0 else largest:,} is outside "
                f"the vocabulary of {self.vocab_size:,} entries. The tokenizer and its vocab_size do not agree."
            )

    def _finish(self) -> None:
        binary, index = bin_path(self.prefix), idx_path(self.prefix)
        index_sha256 = write_index(index, self.dtype, np.frombuffer(self._lengths, np.intc))
        self.written = Written(
            self.num_documents,
            self.num_tokens,
            self.num_empty,
            {
                binary.name: {
                    "bytes": self.num_tokens * self.dtype.itemsize,
                    "sha256": self._digest.hexdigest(),
                },
                index.name: {"bytes": index.stat().st_size, "sha256": index_sha256},
            },
        )


def repair_uncounted_eod(prefix: str | os.PathLike) -> int:
    """Rewrite the .idx of a pair whose EOD tokens are in the .bin but not in the lengths.

    Returns the number of documents mended. Raises DataError, and changes nothing, unless every document
    is followed by one and the same extra token.
    """
    dataset = IndexedDataset.unchecked(prefix)
    lengths = np.asarray(dataset.lengths, np.int64) + 1
    ends = np.cumsum(lengths) - 1
    if not len(lengths) or len(dataset.tokens) != int(ends[-1]) + 1:
        raise DataError(
            f"{display(bin_path(prefix))}: holds {len(dataset.tokens):,} tokens; with one uncounted EOD for each of "
            f"{len(lengths):,} documents it would hold {int(lengths.sum()):,}. This is another damage: make it again."
        )
    last = np.unique(dataset.tokens[ends])
    if len(last) != 1:
        raise DataError(
            f"{display(bin_path(prefix))}: documents would end in {len(last):,} different tokens, "
            "not in one EOD. This is another damage: make it again."
        )
    write_index(idx_path(prefix), dataset.dtype, lengths)
    return len(lengths)
