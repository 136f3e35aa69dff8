"""Joins the shards of a corpus into one .bin/.idx pair per key, dropping repeated documents.

    digests and signatures of all shards, in order -> the documents to keep
    tokens of each shard, copied in runs of kept documents -> .bin, hashed while copying; lengths -> .idx
    tokens of shards that one process has written in order, if all are kept -> the file becomes the .bin; its
        hash was computed while it was written, or is computed now if two processes wrote it

Memory use is a few bytes per document; tokens are copied in chunks of COPY_BYTES.
"""

import contextlib
import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from nbtrain.base import files
from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.corpus.documents.dedup import ExactIndex, NearIndex
from nbtrain.dataset.encode.shard import EncodeSettings, ShardRecord, arrays_path, tokens_path
from nbtrain.dataset.indexed_writer import FileEntry, write_index
from nbtrain.dataset.pair_paths import bin_path, idx_path

COPY_BYTES = 1 << 20


@dataclass
class SourceTotals:
    """Totals of one source in the joined dataset."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    unknown_tokens: int = 0
    """Number of tokens that replace text which the tokenizer cannot encode."""
    loss_tokens: int = 0
    """Number of tokens in the loss; 0 if the dataset has no loss mask."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of documents dropped as duplicates, by reason; the shards' tallies hold the other reasons."""
    first_sequence: int = 0
    last_sequence: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    """Hash of the digests of all the source's documents, including duplicates; it identifies the text."""


@dataclass
class Joined:
    """Result of join(): the totals of each source, and the manifest entries of the written files."""

    sources: list[SourceTotals]
    files: dict[str, FileEntry]


def join(
    settings: EncodeSettings,
    records: Sequence[ShardRecord],
    prefixes: Sequence[Path],
    mask_prefix: Path | None,
    on_bytes: Callable[[int], None],
) -> Joined:
    """Join complete shards into one pair per prefix, and into the loss mask's pair if `mask_prefix` is set.

    `prefixes` lists the main key's pair first, then the pairs of the extra keys. `on_bytes` is called with
    the number of bytes processed since the last call.
    """
    totals = [SourceTotals() for _ in settings.readers]
    stays = _without_duplicates(settings.work, records, settings.cleaning, totals)
    dtype = np.dtype(settings.dtype)
    written: dict[str, FileEntry] = {}
    names = ["", *(f"key-{key}" for key in settings.extra_keys)]
    pairs = [(prefix, dtype, name, index) for index, (prefix, name) in enumerate(zip(prefixes, names))]
    if mask_prefix is not None:
        # The mask has the main pair's lengths: one byte per token.
        pairs.insert(1, (mask_prefix, np.dtype(np.uint8), "mask", 0))
    for prefix, dtype, name, index in pairs:
        pair = _Pair(prefix, dtype)
        in_order = tokens_path(settings.work, None, name)
        with pair.opened(in_order, records, stays, on_bytes) as stream:
            for record, stay in zip(records, stays, strict=True):
                arrays = np.load(arrays_path(settings.work, record.number), allow_pickle=False)
                lengths = arrays[f"lengths{index}"]
                counts = arrays["sequences"] if index == 0 else np.ones(record.documents, np.intc)
                place = _place(record, tokens_path(settings.work, record.number, name), in_order)
                tokens = pair.append(stream, place, lengths, counts, stay, on_bytes)
                if not name:
                    total, kept = totals[record.source], slice(None) if stay is None else stay
                    if not total.last_sequence:
                        total.first_sequence = pair.num_sequences_before
                    total.last_sequence = pair.num_sequences
                    total.tokens += tokens
                    total.documents += record.documents if stay is None else int(stay.sum())
                    total.bytes += int(arrays["bytes"][kept].sum())
                    if "unknown" in arrays:
                        total.unknown_tokens += int(arrays["unknown"][kept].sum())
                    if "loss" in arrays:
                        total.loss_tokens += int(arrays["loss"][kept].sum())
        written |= pair.finish(settings.sentence_language is not None and index == 0)
    return Joined(totals, written)


def _without_duplicates(
    work: Path, records: Sequence[ShardRecord], cleaning: CleaningConfig, totals: list[SourceTotals]
) -> list[np.ndarray | None]:
    """Return, for each shard, a bool array [documents]: True for a document to keep. None keeps them all."""
    exact = ExactIndex() if cleaning.exact_dedup else None
    near = NearIndex(cleaning.near_dedup) if cleaning.near_dedup.enabled else None
    stays: list[np.ndarray | None] = []
    for record in records:
        arrays = np.load(arrays_path(work, record.number), allow_pickle=False)
        digests = arrays["digests"]
        total = totals[record.source]
        total.digest.update(digests.tobytes())
        stay = np.ones(len(digests), bool)
        if exact is not None and len(digests):
            stay = exact.add_all(digests)
            total.dropped["duplicate"] += int(len(stay) - stay.sum())
        if near is not None and len(digests):
            left = np.flatnonzero(stay)
            fresh = near.add(arrays["signatures"][left])
            stay[left[~fresh]] = False
            total.dropped["near_duplicate"] += int(len(left) - fresh.sum())
        stays.append(None if stay.all() else stay)
        total.dropped = +total.dropped
    return stays


def _place(record: ShardRecord, own: Path, in_order: Path) -> tuple[Path, int]:
    """Return the file that holds a shard's tokens, and the byte offset of the first token."""
    start = record.starts.get(in_order.name)
    return (own, 0) if start is None else (in_order, start)


def _is_joined(in_order: Path, records: Sequence[ShardRecord], stays: Sequence[np.ndarray | None]) -> bool:
    """Return whether `in_order` holds exactly the tokens of all shards, in order."""
    end = 0
    for record, stay in zip(records, stays, strict=True):
        if stay is not None or record.starts.get(in_order.name) != end:
            return False
        end += record.files[in_order.name]
    return in_order.is_file() and in_order.stat().st_size == end


class _Pair:
    """A .bin file that is being joined, and the lengths for its .idx."""

    def __init__(self, prefix: Path, dtype: np.dtype):
        self.prefix, self.dtype = prefix, dtype.newbyteorder("<")
        self.digest = hashlib.sha256()
        self._known_sha256 = ""
        self.num_bytes = 0
        self.num_sequences_before = 0
        self._lengths = array("i")
        self._counts = array("i")
        self._buffer = memoryview(bytearray(COPY_BYTES))

    @property
    def num_sequences(self) -> int:
        return len(self._lengths)

    @contextlib.contextmanager
    def opened(
        self,
        in_order: Path,
        records: Sequence[ShardRecord],
        stays: Sequence[np.ndarray | None],
        on_bytes: Callable[[int], None],
    ) -> Iterator[IO[bytes] | None]:
        """Open the .bin for writing and yield it, or yield None if `in_order` becomes the .bin unchanged."""
        if not _is_joined(in_order, records, stays):
            with files.atomic_writer(bin_path(self.prefix)) as stream:
                yield stream
            return
        yield None
        size = in_order.stat().st_size
        if in_order.name in records[-1].sha256:
            self._known_sha256, self.num_bytes = records[-1].sha256[in_order.name], size
            on_bytes(size)
        else:
            with in_order.open("rb", buffering=0) as content:
                self._copy(content, None, size, on_bytes)
        in_order.replace(bin_path(self.prefix))
        files.fsync_directory(self.prefix.parent)

    def append(
        self,
        stream: IO[bytes] | None,
        place: tuple[Path, int],
        lengths: np.ndarray,
        counts: np.ndarray,
        stay: np.ndarray | None,
        on_bytes: Callable[[int], None],
    ) -> int:
        """Append one shard's kept documents to the .bin and return their number of tokens."""
        self.num_sequences_before = len(self._lengths)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        # Token offset of each document's beginning, then the total.
        documents = ends[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])]
        if stay is None:
            runs = [(0, len(counts))]
        else:
            edges = np.flatnonzero(np.diff(stay, prepend=False, append=False))
            runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
            sequence_stays = np.repeat(stay, counts)
            lengths, counts = lengths[sequence_stays], counts[stay]
        copied = int(sum(documents[last] - documents[first] for first, last in runs))
        if stream is not None:
            path, begin = place
            with path.open("rb", buffering=0) as content:
                for first, last in runs:
                    start, stop = (int(documents[at]) * self.dtype.itemsize for at in (first, last))
                    content.seek(begin + start)
                    self._copy(content, stream, stop - start, on_bytes)
            # Skipped bytes count as progress too.
            on_bytes((int(documents[-1]) - copied) * self.dtype.itemsize)
        self._lengths.frombytes(lengths.astype(np.intc).tobytes())
        self._counts.frombytes(counts.astype(np.intc).tobytes())
        return copied

    def _copy(
        self, content: IO[bytes], stream: IO[bytes] | None, num_bytes: int, on_bytes: Callable[[int], None]
    ) -> None:
        """Hash the next `num_bytes` of `content`, and write them to `stream` unless `stream` is None."""
        while num_bytes:
            piece = self._buffer[: content.readinto(self._buffer[:num_bytes])]  # type: ignore[attr-defined]
            if not piece:
                raise OSError(None, "the shard became shorter while it was read", content.name)
            self.digest.update(piece)
            if stream is not None:
                stream.write(piece)
            num_bytes -= len(piece)
            self.num_bytes += len(piece)
            on_bytes(len(piece))

    def finish(self, several_sequences: bool) -> dict[str, FileEntry]:
        """Write the .idx and return the manifest entries of the .bin and the .idx."""
        index = idx_path(self.prefix)
        documents = None
        if several_sequences:
            documents = np.concatenate([[0], np.cumsum(np.frombuffer(self._counts, np.intc), dtype=np.int64)])
        sha256 = write_index(index, self.dtype, np.frombuffer(self._lengths, np.intc), documents)
        sha256_of_bin = self._known_sha256 or self.digest.hexdigest()
        return {
            bin_path(self.prefix).name: {"bytes": self.num_bytes, "sha256": sha256_of_bin},
            index.name: {"bytes": index.stat().st_size, "sha256": sha256},
        }
