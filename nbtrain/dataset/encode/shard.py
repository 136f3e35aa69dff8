"""A shard, the encoded tokens of one part: its files, its record, and its state while it is written."""

import contextlib
import hashlib
import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.corpus.sources.base import SourceReader
from nbtrain.dataset.indexed_writer import insert_at

LARGEST_SEQUENCE_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class EncodeSettings:
    """The settings that, together with the part of the corpus, determine a shard's content."""

    work: Path
    readers: tuple[SourceReader, ...]
    cleaning: CleaningConfig
    tokenizer_directory: Path | None
    """Tokenizer folder; None if all sources already hold token ids."""
    engine: str | None
    vocab_size: int
    eod_id: int | None
    dtype: str
    extra_keys: tuple[str, ...] = ()
    sentence_language: str | None = None
    with_mask: bool = False
    unknown_id: int | None = None
    """Id of the unknown token. None if the tokenizer has none; unknown tokens are then not counted."""
    tokenizer_sha256: str | None = None
    """Required SHA-256 of the tokenizer in tokenizer_directory."""


@dataclass(frozen=True)
class ShardRecord:
    """The record of a finished shard: its counts, its files, and the tally of the part that was read."""

    number: int
    source: int
    part: str
    size_bytes: int
    documents: int
    tokens: int
    text_bytes: int
    path: str | None
    tally: dict[str, Any]
    files: dict[str, int]
    """File sizes, {name: bytes}. For a file that holds several shards, only this shard's bytes count."""
    starts: dict[str, int] = field(default_factory=dict)
    """Byte offset of this shard in each file that holds several shards, {name: offset}."""
    sha256: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file that holds several shards, from its start to the end of this shard, {name: hash}.

    A file is omitted if an earlier process wrote its beginning.
    """
    unknown_tokens: int = 0

    @classmethod
    def read(cls, work: Path, number: int) -> "ShardRecord | None":
        """Return a finished shard's record, or None if the record is missing or a file is incomplete."""
        value = files.read_json(record_path(work, number))
        if value is None:
            return None
        record = cls(**value)
        return record if all(record._is_whole(work, name) for name in record.files) else None

    def _is_whole(self, work: Path, name: str) -> bool:
        if not (work / name).is_file():
            return False
        found, size = (work / name).stat().st_size, self.files[name]
        return found >= self.starts[name] + size if name in self.starts else found == size


def record_path(work: Path, number: int) -> Path:
    return work / f"{number:06d}.json"


def arrays_path(work: Path, number: int) -> Path:
    return work / f"{number:06d}.npz"


def tokens_path(work: Path, number: int | None, what: str = "") -> Path:
    """Return the token file of a shard, or of all shards if `number` is None.

    `what` is "" for the main key, "key-<extra key>" or "mask".
    """
    stem = "in-order" if number is None else f"{number:06d}"
    return work / (f"{stem}-{what}.bin" if what else f"{stem}.bin")


class _InOrder:
    """Writer that appends shards to shared files.

    Bytes that an interrupted run wrote after the last complete shard are removed.
    """

    def __init__(self, work: Path):
        self.ends: dict[str, int] = {}
        self._digests: dict[str, Any] = {}
        for path in work.glob("[0-9]*.json"):
            if (record := ShardRecord.read(work, int(path.stem))) is not None:
                for name, start in record.starts.items():
                    self.ends[name] = max(self.ends.get(name, 0), start + record.files[name])

    @contextlib.contextmanager
    def writer(self, path: Path) -> Iterator["_Hashed"]:
        """Open a file at the end of its last complete shard, to append one shard, and sync it afterwards."""
        if path.name not in self.ends:
            self._digests[path.name] = hashlib.sha256()
        digest = self._digests.pop(path.name, None)
        with path.open("r+b" if path.exists() else "xb") as stream:
            stream.truncate(self.ends.get(path.name, 0))
            stream.seek(0, io.SEEK_END)
            yield _Hashed(stream, digest)
            stream.flush()
            files.fsync_file(stream)
            self.ends[path.name] = stream.tell()
        if digest is not None:
            self._digests[path.name] = digest

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 so far of each file that this process wrote from the start, {name: hash}."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


class _Hashed:
    """A stream that hashes the bytes while it writes them, so that join.py need not read the file again."""

    def __init__(self, stream: IO[bytes], digest: Any):
        self._stream, self._digest = stream, digest
        self.tell = stream.tell

    def write(self, content: Any) -> None:
        self._stream.write(content)
        if self._digest is not None:
            self._digest.update(content)


@dataclass
class _Tokens:
    """A batch of token sequences: sequence i is ids[offsets[i]:offsets[i + 1]], without EOD."""

    ids: np.ndarray
    offsets: np.ndarray
    document_ends: np.ndarray | None = None
    """Number of sequences up to the end of each document; None if each document is one sequence."""
    learnt: np.ndarray | None = None
    """Loss mask, bool per id; None if all tokens are in the loss."""
    end_learnt: np.ndarray | None = None
    """Whether each document's EOD is in the loss, bool per document; None if every EOD is."""
    put_eod: bool = True
    may_be_empty: bool = False

    @property
    def lengths(self) -> np.ndarray:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def last_sequences(self) -> np.ndarray:
        """Index of each document's last sequence, after which EOD is written."""
        return np.arange(len(self.offsets) - 1) if self.document_ends is None else self.document_ends - 1

    def count_by_document(self, flags: np.ndarray) -> np.ndarray:
        """Return the number of ids in each document whose flag is True, int64 [documents].

        `flags` holds a bool for each id.
        """
        before = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
        return np.diff(before[self.offsets[self.last_sequences + 1]], prepend=0)


class _Shard:
    """A shard while it is written: its open files, and the arrays for its .npz file."""

    def __init__(
        self, settings: EncodeSettings, number: int, stack: contextlib.ExitStack, in_order: _InOrder | None
    ):
        self.settings, self.number = settings, number
        self.dtype = np.dtype(settings.dtype)
        place = number if in_order is None else None
        names = ["", *(f"key-{key}" for key in settings.extra_keys)]
        names += ["mask"] if settings.with_mask else []
        self._paths = [tokens_path(settings.work, place, name) for name in names]
        open_one: Callable[[Path], Any] = files.atomic_writer if in_order is None else in_order.writer
        self._streams = [stack.enter_context(open_one(path)) for path in self._paths]
        self.starts: dict[str, int] = {}
        if in_order is not None:
            self.starts = {
                path.name: stream.tell() for path, stream in zip(self._paths, self._streams, strict=True)
            }
        self._mask = self._streams.pop() if settings.with_mask else None
        self._lengths = [array("i") for _ in self._streams]
        self._unknown = array("q")
        """Number of unknown tokens in each document."""
        self._loss = array("q")
        """Number of tokens in the loss in each document; empty without a loss mask."""
        self._sequences = array("i")
        self._bytes = array("q")
        self._digests = bytearray()
        self._signatures: list[np.ndarray] = []
        self.num_documents = self.num_tokens = self.num_bytes = self.num_without_tokens = 0
        self.num_unknown = 0

    def add(
        self,
        tokens: _Tokens,
        extras: Sequence[_Tokens],
        sizes: list[int],
        digests: bytes,
        signatures: np.ndarray | None,
    ) -> None:
        counts = np.ones(len(sizes), np.int32)
        if tokens.document_ends is not None:
            counts = np.diff(tokens.document_ends, prepend=0).astype(np.int32)
        written = self._write(0, tokens)
        if self.settings.unknown_id is not None:
            self._count_unknown(tokens.count_by_document(tokens.ids == self.settings.unknown_id))
        if self._mask is not None:
            self._write_mask(self._mask, tokens)
        for index, extra in enumerate(extras, start=1):
            self._write(index, extra)
        self._count(counts, sizes, digests, signatures, written)

    def add_long(
        self,
        pieces: Iterable[np.ndarray],
        extras: Sequence[_Tokens],
        size: int,
        digest: bytes,
        signature: np.ndarray | None,
    ) -> None:
        """Add one document that is a single sequence, from its ids in chunks."""
        eod_id, unknown_id = self.settings.eod_id, self.settings.unknown_id
        length = unknown = 0
        for ids in chain(pieces, [] if eod_id is None else [np.array([eod_id])]):
            self._check_range(ids)
            self._streams[0].write(ids.astype(self.dtype).data)
            if self._mask is not None:
                self._mask.write(bytes([1]) * len(ids))
            length += len(ids)
            if unknown_id is not None:  # with None, NumPy would compare objects one by one
                unknown += int(np.count_nonzero(ids == unknown_id))
        if unknown_id is not None:
            self._count_unknown(np.array([unknown]))
        if self._mask is not None:
            self._loss.append(length)
        self._add_lengths(0, np.array([length]))
        for index, extra in enumerate(extras, start=1):
            self._write(index, extra)
        self._count([1], [size], digest, signature, length)

    def _count(
        self, counts: Any, sizes: list[int], digests: bytes, signatures: np.ndarray | None, tokens: int
    ) -> None:
        self._sequences.frombytes(np.asarray(counts, np.intc).tobytes())
        self._bytes.extend(sizes)
        self._digests += digests
        if signatures is not None:
            self._signatures.append(signatures)
        self.num_documents += len(sizes)
        self.num_tokens += tokens
        self.num_bytes += sum(sizes)

    def _count_unknown(self, of_documents: np.ndarray) -> None:
        self._unknown.frombytes(of_documents.astype(np.int64).tobytes())
        self.num_unknown += int(of_documents.sum())

    def _check_range(self, ids: np.ndarray) -> None:
        smallest = 0 if ids.dtype.kind == "u" else int(ids.min(initial=0))
        largest = int(ids.max(initial=0))
        if smallest < 0 or largest >= self.settings.vocab_size:
            raise DataError(
                f"token id {smallest if smallest < 0 else largest:,} is outside the vocabulary of "
                f"{self.settings.vocab_size:,} entries. The ids do not belong to the run's tokenizer."
            )

    def _add_lengths(self, index: int, lengths: np.ndarray) -> None:
        if len(lengths) and int(lengths.max()) > LARGEST_SEQUENCE_TOKENS:
            raise DataError(
                f"a document has {int(lengths.max()):,} tokens, but the .idx format holds at most "
                f"{LARGEST_SEQUENCE_TOKENS:,} per sequence. Split it into several documents."
            )
        self._lengths[index].frombytes(lengths.astype(np.intc).tobytes())

    def _write(self, index: int, tokens: _Tokens) -> int:
        settings, ids = self.settings, tokens.ids
        self._check_range(ids)
        lengths = tokens.lengths
        last = tokens.last_sequences
        eod_id = settings.eod_id if tokens.put_eod else None
        if eod_id is None:
            flat = ids.astype(self.dtype)
        else:
            flat = insert_at(ids, tokens.offsets[last + 1], np.full(len(last), eod_id), self.dtype)
            lengths[last] += 1
        self._add_lengths(index, lengths)
        self._streams[index].write(flat.data)
        return len(flat)

    def _write_mask(self, mask: Any, tokens: _Tokens) -> None:
        learnt = np.ones(len(tokens.ids), np.uint8) if tokens.learnt is None else tokens.learnt
        last = tokens.last_sequences
        counts = tokens.count_by_document(learnt)
        if self.settings.eod_id is not None and tokens.put_eod:
            ends = np.ones(len(last), np.uint8) if tokens.end_learnt is None else tokens.end_learnt
            learnt = insert_at(learnt, tokens.offsets[last + 1], ends, np.dtype(np.uint8))
            counts = counts + ends
        mask.write(learnt.astype(np.uint8).tobytes())
        self._loss.frombytes(counts.astype(np.int64).tobytes())

    def write_arrays(self) -> None:
        """Write the shard's arrays to its .npz file."""
        arrays = {
            "sequences": np.frombuffer(self._sequences, np.intc),
            "bytes": np.frombuffer(self._bytes, np.int64),
            "digests": np.frombuffer(bytes(self._digests), np.uint64).reshape(-1, 2),
            **{f"lengths{index}": np.frombuffer(each, np.intc) for index, each in enumerate(self._lengths)},
        }
        if self.settings.unknown_id is not None:
            arrays["unknown"] = np.frombuffer(self._unknown, np.int64)
        if self._mask is not None:
            arrays["loss"] = np.frombuffer(self._loss, np.int64)
        if self._signatures:
            arrays["signatures"] = np.concatenate(self._signatures)
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        files.write_bytes(arrays_path(self.settings.work, self.number), content.getbuffer())

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files except the record, {name: bytes}. The files must be closed."""
        paths = [*self._paths, arrays_path(self.settings.work, self.number)]
        return {path.name: path.stat().st_size - self.starts.get(path.name, 0) for path in paths}
