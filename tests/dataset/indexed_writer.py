"""A stream writer of .bin/.idx pairs, for tests that need a dataset but no tokenizer or corpus."""

import contextlib
import hashlib
import os
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.dataset.indexed import check_vocabulary, optimal_dtype
from nbtrain.dataset.indexed_writer import insert_at, write_index
from nbtrain.dataset.pair_paths import bin_path, idx_path


@dataclass(frozen=True)
class Written:
    """Result of a writer, with sizes and SHA-256 by file name."""

    num_documents: int
    num_tokens: int
    num_empty: int
    """Number of documents that were dropped because they have no tokens."""
    files: dict[str, dict[str, int | str]]
    num_sequences: int = 0


class IndexedWriter:
    """Streams documents into a .bin/.idx pair; files get their final names in close().

    Memory is 4 bytes per sequence, plus 8 per document if documents hold several. Use it as a context
    manager: an exception leaves no file. `eod_id` is appended to each document and counted; None appends
    nothing (data for models other than GPT). With `loss_mask`, the pair <prefix>_loss_mask is also written: 1
    for each token in the loss, which always includes the EOD.

    Raises DataError for a vocabulary that the dtype cannot hold, and for an id outside the vocabulary.
    """

    def __init__(
        self,
        prefix: str | os.PathLike,
        vocab_size: int | None,
        eod_id: int | None,
        dtype: np.dtype | type | str | None = None,
        loss_mask: bool = False,
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
        self._documents: array | None = None  # the end of each document; None while each is one sequence
        self._digest = hashlib.sha256()
        self._stack = contextlib.ExitStack()
        self._mask: IndexedWriter | None = None
        if loss_mask:
            ends = None if eod_id is None else 1
            self._mask = IndexedWriter(f"{os.fspath(prefix)}_loss_mask", 2, ends, "uint8")

    def __enter__(self) -> "IndexedWriter":
        # Exited in reverse order: the mask is complete before the .bin gets its name.
        self._stream = self._stack.enter_context(files.atomic_writer(bin_path(self.prefix)))
        if self._mask is not None:
            self._stack.enter_context(self._mask)
        return self

    def __exit__(self, kind, error, trace) -> None:
        # The .bin gets its name first; without an .idx it is not a dataset.
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            self._finish()

    @property
    def num_sequences(self) -> int:
        return len(self._lengths)

    @property
    def num_documents(self) -> int:
        return len(self._lengths) if self._documents is None else len(self._documents)

    def add_document(self, ids: np.ndarray) -> None:
        """Add one document, without its EOD."""
        self.add_batch(np.asarray(ids), np.array([0, len(ids)]))

    def add_batch(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        document_ends: np.ndarray | None = None,
        learnt: np.ndarray | None = None,
    ) -> None:
        """Add the sequences ids[offsets[i]:offsets[i + 1]], given without EOD; empty ones are dropped.

        Each sequence is a document. With `document_ends`, document k consists of the batch's sequences
        document_ends[k - 1] to document_ends[k], and its EOD follows the last one, as in Megatron. Documents
        without tokens are dropped and counted. `learnt` is the loss mask, bool [tokens]; None puts all tokens
        in the loss.
        """
        offsets = np.asarray(offsets, np.int64)
        lengths = np.diff(offsets)
        if offsets[0] or offsets[-1] != len(ids) or (len(lengths) and int(lengths.min()) < 0):
            raise ValueError(f"offsets must rise from 0 to {len(ids)} ids")
        if self._mask is not None:
            mask = np.ones(len(ids), np.uint8) if learnt is None else np.asarray(learnt, np.uint8)
            self._mask.add_batch(mask, offsets, document_ends)
        kept = lengths[lengths > 0]
        last_of_document: slice | np.ndarray = slice(None)  # whether each kept sequence ends in EOD
        if document_ends is None:
            self.num_empty += len(lengths) - len(kept)
            if self._documents is not None:
                self._documents.extend(range(len(self._lengths) + 1, len(self._lengths) + len(kept) + 1))
        else:
            last_of_document = self._add_documents(lengths, document_ends)
        if not len(kept):
            return
        self._check_range(ids)
        if self.eod_id is None:
            flat = ids.astype(self.dtype)
        else:
            ends = np.cumsum(kept)[last_of_document]
            flat = insert_at(ids, ends, np.full(len(ends), self.eod_id), self.dtype)
            kept = kept.copy()
            kept[last_of_document] += 1
        if int(kept.max()) > np.iinfo(np.int32).max:
            raise DataError(
                f"{display(bin_path(self.prefix))}: a document has {int(kept.max()):,} "
                f"tokens, but the .idx format holds at most {np.iinfo(np.int32).max:,} per "
                "sequence. Split it into several documents."
            )
        self._lengths.frombytes(kept.astype(np.intc).tobytes())
        self.num_tokens += len(flat)
        content = flat.data
        self._digest.update(content)
        self._stream.write(content)

    def _add_documents(self, lengths: np.ndarray, document_ends: np.ndarray) -> np.ndarray:
        """Record where documents end; return the kept sequences that are the last of a document."""
        ends = np.asarray(document_ends, np.int64)
        if (np.diff(ends) < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(lengths):
            raise ValueError(f"document_ends must rise to {len(lengths)} sequences")
        if self._documents is None:
            self._documents = array("q", range(1, len(self._lengths) + 1))
        # Counted in kept sequences; a document without any ends where the previous one did.
        kept_ends = np.concatenate([[0], np.cumsum(lengths > 0)])[ends]
        whole = np.unique(kept_ends[kept_ends > 0])
        self.num_empty += len(ends) - len(whole)
        self._documents.frombytes((whole + len(self._lengths)).astype(np.int64).tobytes())
        return whole - 1

    def _check_range(self, ids: np.ndarray) -> None:
        if self.vocab_size is not None:
            below = self.vocab_size
        elif self.dtype.kind in "iu" and ids.dtype != self.dtype:
            below = int(np.iinfo(self.dtype).max) + 1
        else:
            return
        smallest = 0 if ids.dtype.kind == "u" else int(ids.min())
        largest = int(ids.max())
        least = 0 if self.vocab_size is not None else int(np.iinfo(self.dtype).min)
        if least <= smallest and largest < below:
            return
        wrong = smallest if smallest < least else largest
        if self.vocab_size is not None:
            raise DataError(
                f"{display(bin_path(self.prefix))}: token id {wrong:,} is outside the vocabulary of "
                f"{self.vocab_size:,} entries. The tokenizer and its vocab_size do not agree."
            )
        raise DataError(
            f"{display(bin_path(self.prefix))}: {wrong:,} does not fit {self.dtype.name} ({least:,} to "
            f"{below - 1:,}). Choose a larger dtype."
        )

    def _finish(self) -> None:
        binary, index = bin_path(self.prefix), idx_path(self.prefix)
        documents = None if self._documents is None else np.array([0, *self._documents], np.int64)
        index_sha256 = write_index(index, self.dtype, np.frombuffer(self._lengths, np.intc), documents)
        written: dict[str, dict[str, int | str]] = {
            binary.name: {
                "bytes": self.num_tokens * self.dtype.itemsize,
                "sha256": self._digest.hexdigest(),
            },
            index.name: {"bytes": index.stat().st_size, "sha256": index_sha256},
        }
        if self._mask is not None and self._mask.written is not None:
            written |= self._mask.written.files
        self.written = Written(
            self.num_documents, self.num_tokens, self.num_empty, written, num_sequences=self.num_sequences
        )
