"""One part of a corpus -> one shard: tokens, lengths and what decides about duplicates, in a work folder.

    <work>/000012.bin          tokens of data.json_key, EOD included
           000012-key-<key>.bin  the same of each of data.extra_json_keys
           000012-mask.bin     uint8 per token: is it learnt (datasets that hold unlearnt tokens)
           000012.npz          lengths, and per document: digest, text bytes, sequences, MinHash signature
           000012.json         ShardRecord; written last: without it the shard does not count

One process that makes all of them in order writes its tokens into in-order.bin, in-order-key-<key>.bin and
in-order-mask.bin, one shard behind the other: where nothing is a duplicate they are joined already.

A shard depends on its part and the settings alone, so any number of workers in any order makes the same ones, and
a killed run goes on with those that are there. shards.py joins them.
"""

import contextlib
import hashlib
import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from nbtrain import files
from nbtrain.config.data_section import CleaningConfig
from nbtrain.data.cleaning import Cleaner
from nbtrain.data.corpus import Task, cleaned, identities, length_of, text_of
from nbtrain.data.dedup import NearIndex
from nbtrain.data.indexed_writer import insert_at
from nbtrain.data.records import Example, Record, Tally, Texts, TokenIds
from nbtrain.data.sentences import sentences
from nbtrain.data.sources.base import SourceReader
from nbtrain.data.tokenizer import LONG_TEXT_CHARS, Tokenizer
from nbtrain.errors import DataError

# Text that is in memory as tokens at one time.
BATCH_CHARS = 1 << 19
LARGEST_SEQUENCE_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class EncodeSettings:
    """Everything that decides a shard, besides its part."""

    work: Path
    readers: tuple[SourceReader, ...]
    cleaning: CleaningConfig
    tokenizer_directory: Path | None
    """None where every source is token ids already."""
    engine: str | None
    vocab_size: int
    eod_id: int | None
    dtype: str
    extra_keys: tuple[str, ...] = ()
    sentence_language: str | None = None
    with_mask: bool = False


@dataclass(frozen=True)
class ShardRecord:
    """What a shard holds and what reading its part met."""

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
    """Name: size in bytes, of this shard's share where a file holds several."""
    starts: dict[str, int] = field(default_factory=dict)
    """Name: where this shard begins, of the files that hold several."""
    sha256: dict[str, str] = field(default_factory=dict)
    """Name: of such a file up to the end of this shard; missing where an earlier process wrote its beginning."""

    @classmethod
    def read(cls, work: Path, number: int) -> "ShardRecord | None":
        """The record of a finished shard whose files are whole, or None."""
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
    """Where the record of a shard lies."""
    return work / f"{number:06d}.json"


def arrays_path(work: Path, number: int) -> Path:
    """Where the arrays of a shard lie."""
    return work / f"{number:06d}.npz"


def tokens_path(work: Path, number: int | None, what: str = "") -> Path:
    """Tokens of a shard, or of all that one process makes in order: of the main key, or "key-<extra key>", or "mask"."""
    stem = "in-order" if number is None else f"{number:06d}"
    return work / (f"{stem}-{what}.bin" if what else f"{stem}.bin")


def token_files(work: Path, number: int | None, extra_keys: Sequence[str]) -> list[Path]:
    """The same of the main key, then of each extra key."""
    return [tokens_path(work, number, f"key-{key}" if key else "") for key in ("", *extra_keys)]


class _InOrder:
    """Writes shards one behind the other; what a killed run has left behind the last whole one is cut off."""

    def __init__(self, work: Path):
        self.ends: dict[str, int] = {}
        self._digests: dict[str, Any] = {}
        for path in work.glob("[0-9]*.json"):
            if (record := ShardRecord.read(work, int(path.stem))) is not None:
                for name, start in record.starts.items():
                    self.ends[name] = max(self.ends.get(name, 0), start + record.files[name])

    @contextlib.contextmanager
    def writer(self, path: Path) -> Iterator["_Hashed"]:
        """Open the file behind its last whole shard; on success it is on the disk and the next one goes behind it."""
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
        """Of the files that this process has written from their beginning, as far as they are now."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


class _Hashed:
    """A stream that hashes what is written, so that joining need not read it again."""

    def __init__(self, stream: IO[bytes], digest: Any):
        self._stream, self._digest = stream, digest
        self.tell = stream.tell

    def write(self, content: Any) -> None:
        self._stream.write(content)
        if self._digest is not None:
            self._digest.update(content)


class Encoder:
    """encoder(task) makes one shard. Each worker has one; `on_batch` is told text bytes, documents and tokens of batches.

    `tokenizer` is the one of the settings where it is loaded already: 70 MiB that are not needed twice. `in_order`
    writes the tokens of all shards into one file: for a process that makes them alone.
    """

    def __init__(
        self,
        settings: EncodeSettings,
        on_batch: Callable[[int, int, int], None] | None = None,
        tokenizer: Tokenizer | None = None,
        in_order: bool = False,
    ):
        self.settings = settings
        self._in_order = _InOrder(settings.work) if in_order else None
        if tokenizer is not None:
            self._tokenizer = tokenizer
        self._cleaner = Cleaner(settings.cleaning)
        self._on_batch = on_batch or (lambda num_bytes, documents, tokens: None)
        near = settings.cleaning.near_dedup
        self._near = NearIndex(near) if near.enabled else None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        directory = self.settings.tokenizer_directory
        assert directory is not None
        return Tokenizer.load(directory, self.settings.engine)

    def __call__(self, task: Task) -> ShardRecord:
        """Raises DataError where the part cannot be read; ids outside the vocabulary make a record broken."""
        settings, tally = self.settings, Tally()
        reader = settings.readers[task.source]
        with contextlib.ExitStack() as stack:
            shard = _Shard(settings, task.number, stack, self._in_order)
            batch: list[Record] = []
            chars = 0
            records: Iterator[Record] = reader.read(task.part, tally)
            if reader.kind == "tokens":
                records = filter(_InVocabulary(settings.vocab_size, tally), records)
            for record in cleaned(records, self._cleaner, tally, reader.gives_unicode):
                length = len(record) if type(record) is str else length_of(record)
                if length > LONG_TEXT_CHARS and self._may_stream(record):
                    # From the tokenizer to the disk piece by piece: its ids alone may be 4 times its size.
                    if batch:
                        self._add(shard, batch, reader)
                        batch, chars = [], 0
                    self._add_long(shard, record)
                    del record
                    continue
                batch.append(record)
                chars += length
                if chars >= BATCH_CHARS:
                    del record  # the batch alone holds it, and gives it up when it is encoded
                    self._add(shard, batch, reader)
                    batch, chars = [], 0
            if batch:
                self._add(shard, batch, reader)
            shard.write_arrays()
        if shard.num_without_tokens:
            tally.dropped["no_token"] += shard.num_without_tokens
        made = ShardRecord(
            task.number,
            task.source,
            task.part.name,
            task.part.size_bytes,
            shard.num_documents,
            shard.num_tokens,
            shard.num_bytes,
            task.part.path,
            tally.to_dict(),
            shard.sizes(),
            shard.starts,
            self._in_order.sha256() if self._in_order else {},
        )
        files.write_json(record_path(settings.work, task.number), asdict(made))
        return made

    def _add(self, shard: "_Shard", batch: list[Record], reader: SourceReader) -> None:
        tokens = self._tokens(batch, reader)
        present = tokens.lengths if tokens.document_ends is None else np.diff(tokens.document_ends, prepend=0)
        if not present.all() and not tokens.may_be_empty:
            # A tokenizer that normalizes can leave nothing of a text.
            shard.num_without_tokens += int((present == 0).sum())
            batch = [batch[index] for index in np.flatnonzero(present).tolist()]
            if not batch:
                return
            tokens = self._tokens(batch, reader)
        signatures = None
        if self._near is not None:
            signatures = np.stack([self._near.signature(text_of(record)) for record in batch])
        extras = [
            self._of_texts([record.extras[index] for record in batch])  # type: ignore[union-attr]
            for index in range(len(self.settings.extra_keys))
        ]
        sizes, digests = identities(batch)
        batch.clear()
        before = shard.num_tokens
        shard.add(tokens, extras, sizes, digests, signatures)
        self._on_batch(sum(sizes), len(sizes), shard.num_tokens - before)

    def _may_stream(self, record: Record) -> bool:
        is_text = isinstance(record, str | Texts) and not self.settings.sentence_language
        return is_text and self._tokenizer.cuts_safely

    def _add_long(self, shard: "_Shard", record: Record) -> None:
        signature = None if self._near is None else self._near.signature(text_of(record))[None]
        extras = record.extras if isinstance(record, Texts) else ()
        (size,), digest = identities([record])
        before = shard.num_tokens
        shard.add_long(
            self._tokenizer.encode_long(text_of(record)),
            [self._of_texts([extra]) for extra in extras],
            size,
            digest,
            signature,
        )
        self._on_batch(size, 1, shard.num_tokens - before)

    def _tokens(self, batch: list[Record], reader: SourceReader) -> "_Tokens":
        first = batch[0]
        if isinstance(first, TokenIds):
            return self._of_ids(batch, reader)
        if isinstance(first, Example):
            return self._of_examples(batch)
        if self.settings.sentence_language:
            return self._of_sentences(batch)
        if type(first) is str:
            return self._of_texts(batch)  # type: ignore[arg-type]
        return self._of_texts([record.text if isinstance(record, Texts) else record for record in batch])  # type: ignore[misc]

    def _of_texts(self, texts: list[str]) -> "_Tokens":
        ids, offsets = self._tokenizer.encode_batch(texts)
        return _Tokens(ids, offsets)

    def _of_sentences(self, batch: list[Record]) -> "_Tokens":
        language = self.settings.sentence_language
        assert language is not None
        cut = [
            sentences(record.text if isinstance(record, Texts) else record, language)  # type: ignore[arg-type]
            for record in batch
        ]
        ids, offsets = self._tokenizer.encode_batch([sentence for document in cut for sentence in document])
        ends = np.fromiter(accumulate(map(len, cut)), np.int64, len(cut))
        return _Tokens(ids, offsets, ends)

    def _of_examples(self, batch: list[Record]) -> "_Tokens":
        pieces = [piece for record in batch for piece in record.pieces]  # type: ignore[union-attr]
        ids, piece_offsets = self._tokenizer.encode_batch([text for text, _ in pieces])
        learnt = np.repeat(np.array([learn for _, learn in pieces], bool), np.diff(piece_offsets))
        counts = [len(record.pieces) for record in batch]  # type: ignore[union-attr]
        ends = np.fromiter(accumulate(counts), np.int64, len(counts))
        offsets = np.concatenate([[0], piece_offsets[ends]])
        end_learnt = np.array([pieces[end - 1][1] for end in ends.tolist()], bool)
        return _Tokens(ids, offsets, None, learnt, end_learnt)

    def _of_ids(self, batch: list[Record], reader: SourceReader) -> "_Tokens":
        eod_id = self.settings.eod_id
        arrays: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        ends: list[bool] = []
        for record in batch:
            assert isinstance(record, TokenIds)
            ids = record.ids
            learnt = np.ones(len(ids), bool) if record.learnt is None else record.learnt
            ends.append(bool(learnt[-1]))
            if reader.config.append_eod and eod_id is not None and int(ids[-1]) == eod_id:
                # It has its own: the one that is put below takes its place, and its label.
                ids, learnt = ids[:-1], learnt[:-1]
            arrays.append(ids)
            masks.append(learnt)
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
        return _Tokens(
            np.concatenate(arrays),
            offsets,
            None,
            np.concatenate(masks),
            np.array(ends),
            put_eod=reader.config.append_eod,
            may_be_empty=True,
        )


class _InVocabulary:
    """Whether all ids of a record are the vocabulary's; one that is not is counted as broken."""

    def __init__(self, vocab_size: int, tally: Tally):
        self.vocab_size, self.tally = vocab_size, tally

    def __call__(self, record: Record) -> bool:
        assert isinstance(record, TokenIds)
        largest = int(record.ids.max()) if len(record.ids) else 0
        if largest < self.vocab_size:
            return True
        self.tally.add_broken(
            record.path,
            record.line,
            f"token id {largest:,} is outside the vocabulary of {self.vocab_size:,} entries",
        )
        return False


@dataclass
class _Tokens:
    """Sequences ids[offsets[i]:offsets[i + 1]] without EOD."""

    ids: np.ndarray
    offsets: np.ndarray
    document_ends: np.ndarray | None = None
    """Number of sequences up to the end of each document; None: one each."""
    learnt: np.ndarray | None = None
    """bool per id; None: all."""
    end_learnt: np.ndarray | None = None
    """Whether the EOD of each document is learnt; None: all."""
    put_eod: bool = True
    may_be_empty: bool = False

    @property
    def lengths(self) -> np.ndarray:
        """Of each sequence."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def last_sequences(self) -> np.ndarray:
        """The last sequence of each document: the one that EOD ends."""
        return np.arange(len(self.offsets) - 1) if self.document_ends is None else self.document_ends - 1


class _Shard:
    """The open files of one shard."""

    def __init__(
        self, settings: EncodeSettings, number: int, stack: contextlib.ExitStack, in_order: _InOrder | None
    ):
        self.settings, self.number = settings, number
        self.dtype = np.dtype(settings.dtype)
        place = number if in_order is None else None
        self._paths = token_files(settings.work, place, settings.extra_keys)
        if settings.with_mask:
            self._paths.append(tokens_path(settings.work, place, "mask"))
        open_one: Callable[[Path], Any] = files.atomic_writer if in_order is None else in_order.writer
        self._streams = [stack.enter_context(open_one(path)) for path in self._paths]
        self.starts: dict[str, int] = {}
        """Where the tokens begin in the files that hold several shards."""
        if in_order is not None:
            self.starts = {
                path.name: stream.tell() for path, stream in zip(self._paths, self._streams, strict=True)
            }
        self._mask = self._streams.pop() if settings.with_mask else None
        self._lengths = [array("i") for _ in self._streams]
        self._sequences = array("i")
        self._bytes = array("q")
        self._digests = bytearray()
        self._signatures: list[np.ndarray] = []
        self.num_documents = self.num_tokens = self.num_bytes = self.num_without_tokens = 0

    def add(
        self,
        tokens: _Tokens,
        extras: Sequence[_Tokens],
        sizes: list[int],
        digests: bytes,
        signatures: np.ndarray | None,
    ) -> None:
        """Documents of one batch."""
        counts = np.ones(len(sizes), np.int32)
        if tokens.document_ends is not None:
            counts = np.diff(tokens.document_ends, prepend=0).astype(np.int32)
        written = self._write(0, tokens)
        if self._mask is not None:
            self._mask.write(self._flat_mask(tokens))
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
        """One document of one sequence, its ids in pieces."""
        eod_id = self.settings.eod_id
        length = 0
        for ids in chain(pieces, [] if eod_id is None else [np.array([eod_id])]):
            self._check_range(ids)
            self._streams[0].write(ids.astype(self.dtype).data)
            if self._mask is not None:
                self._mask.write(bytes([1]) * len(ids))
            length += len(ids)
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

    def _check_range(self, ids: np.ndarray) -> None:
        if not len(ids):
            return
        smallest = 0 if ids.dtype.kind == "u" else int(ids.min())
        largest = int(ids.max())
        if smallest < 0 or largest >= self.settings.vocab_size:
            raise DataError(
                f"token id {smallest if smallest < 0 else largest:,} is outside the vocabulary of "
                f"{self.settings.vocab_size:,} entries. The tokenizer and these ids do not belong together."
            )

    def _add_lengths(self, index: int, lengths: np.ndarray) -> None:
        if len(lengths) and int(lengths.max()) > LARGEST_SEQUENCE_TOKENS:
            raise DataError(
                f"a document of {int(lengths.max()):,} tokens; the format holds at most "
                f"{LARGEST_SEQUENCE_TOKENS:,}. Cut it into several documents."
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

    def _flat_mask(self, tokens: _Tokens) -> bytes:
        learnt = np.ones(len(tokens.ids), np.uint8) if tokens.learnt is None else tokens.learnt
        last = tokens.last_sequences
        if self.settings.eod_id is None or not tokens.put_eod:
            return learnt.astype(np.uint8).tobytes()
        ends = np.ones(len(last), np.uint8) if tokens.end_learnt is None else tokens.end_learnt
        return insert_at(learnt, tokens.offsets[last + 1], ends, np.dtype(np.uint8)).tobytes()

    def write_arrays(self) -> None:
        """The .npz beside the tokens."""
        arrays = {
            "sequences": np.frombuffer(self._sequences, np.intc),
            "bytes": np.frombuffer(self._bytes, np.int64),
            "digests": np.frombuffer(bytes(self._digests), np.uint64).reshape(-1, 2),
            **{f"lengths{index}": np.frombuffer(each, np.intc) for index, each in enumerate(self._lengths)},
        }
        if self._signatures:
            arrays["signatures"] = np.concatenate(self._signatures)
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        files.write_bytes(arrays_path(self.settings.work, self.number), content.getbuffer())

    def sizes(self) -> dict[str, int]:
        """{name: size} of all files but the record, when they are closed."""
        paths = [*self._paths, arrays_path(self.settings.work, self.number)]
        return {path.name: path.stat().st_size - self.starts.get(path.name, 0) for path in paths}
