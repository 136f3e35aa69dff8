"""Finds exact duplicates by hash and near duplicates by MinHash, and keeps the first document of each group.

Both indices process documents in order, and the result does not depend on how they are split into batches.

    exact   16-byte XXH3 digests in sorted runs: for 50 M documents, 16 bytes and 1.3 us each, 0.2 GB to merge
    near    shingles of words -> MinHash (rensa) -> bands: 330 bytes per document with 128 hash functions and
            threshold 0.8

Sources: MinHash, Broder 1997; bands, Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4;
one byte instead of each minimum, Li and Koenig, b-bit minwise hashing (arXiv:0910.3349).
"""

import importlib.metadata
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from nbtrain.base.errors import DataError
from nbtrain.config.sections.data_section import NearDedupConfig
from nbtrain.corpus import characters
from nbtrain.corpus.optional import optional

DIGEST_BYTES = 16
RUN_ENTRIES = 1 << 22  # maximum length of a run, so that merging never copies the whole index
LARGEST_NUMBER = 2**32 - 1  # largest number of a kept document, stored in four bytes in each band
NOTHING = np.uint32(0xFFFFFFFF)  # value of every entry in the signature of a text without words
PAIRS = 1 << 17  # candidate pairs compared at once: 17 MB with 128 hash functions


def digest(content: bytes) -> bytes:
    """Return a document's identity, the 128-bit XXH3 hash of its UTF-8 bytes. It is not cryptographic.

    The probability that any two of 10^12 different documents share a digest is about 10^-15.
    """
    return xxhash.xxh3_128_digest(content)


def digests(contents: Iterable[bytes]) -> bytes:
    """Return the digest of each content, concatenated."""
    return b"".join(map(xxhash.xxh3_128_digest, contents))


class SortedRuns:
    """An append-only map from uint64 keys to values of one dtype; a key may have several values.

    Entries are kept in sorted runs. A new run is merged with the run before it, unless that run is more than
    twice as long or the merged run would exceed RUN_ENTRIES.
    """

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Store keys with their values."""
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order].astype(self.dtype, copy=False)
        while self._runs:
            older, older_values = self._runs[-1]
            if len(older) > 2 * len(keys) or len(older) + len(keys) > RUN_ENTRIES:
                break
            self._runs.pop()
            keys, values = np.concatenate([older, keys]), np.concatenate([older_values, values])
            order = np.argsort(keys, kind="stable")
            keys, values = keys[order], values[order]
        self._runs.append((keys, values))

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (positions, values) of all matches in any order: values[n] belongs to keys[positions[n]]."""
        order = np.argsort(keys)  # searching in sorted order keeps accesses to a run close together in cache
        wanted = keys[order]
        found, values = [np.empty(0, np.int64)], [np.empty(0, self.dtype)]
        for run_keys, run_values in self._runs:
            first = np.searchsorted(run_keys, wanted)
            first[first == len(run_keys)] = 0
            hit = np.flatnonzero(run_keys[first] == wanted)
            if not len(hit):
                continue
            first = first[hit]
            count = np.searchsorted(run_keys, wanted[hit], side="right") - first
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            found.append(np.repeat(order[hit], count))
            values.append(run_values[np.repeat(first, count) + within])
        return np.concatenate(found), np.concatenate(values)

    @property
    def num_bytes(self) -> int:
        """Return how many bytes of memory the entries occupy."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._runs)


class ExactIndex:
    """The digests of all documents added so far."""

    def __init__(self) -> None:
        self._seen = SortedRuns(np.uint64)

    def add_all(self, digests: np.ndarray) -> np.ndarray:
        """Add `digests`, uint64 [n, 2], and return bool [n]: whether each was new to the index."""
        high, low = digests[:, 0], digests[:, 1]
        is_first = np.ones(len(high), bool)
        order = np.lexsort((low, high))  # stable: among equal digests, the earlier one comes first
        again = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
        is_first[order[1:][again]] = False
        which, values = self._seen.find(high)
        is_first[which[values == low[which]]] = False
        self._seen.add(high[is_first], low[is_first])
        return is_first

    @property
    def num_bytes(self) -> int:
        """Return how many bytes of memory the index occupies."""
        return self._seen.num_bytes


class NearIndex:
    """The signatures of all documents kept so far.

    A document is dropped if it shares a band with an earlier kept document and their estimated Jaccard
    similarity, computed from the number of hash functions on which the two agree, is at least `threshold`. A
    document too short for one shingle has a single shingle of all its words; a document without words is
    never a near duplicate. `signature` may be called in workers, but `add` only in one process. Raises
    DataError if rensa is not installed.
    """

    def __init__(self, config: NearDedupConfig):
        self.config = config
        self.rensa_version = rensa_version()
        self.num_bands, self.band_rows = bands(config.threshold, config.num_permutations)
        self._bands = SortedRuns(np.uint32)
        self._kept = bytearray()  # the low bytes of the kept documents' signatures, concatenated

    def signature(self, text: str) -> np.ndarray:
        """Return the MinHash of a text, uint32 [num_permutations]; it does not depend on PYTHONHASHSEED."""
        return signature(text, self.config)

    def add(self, signatures: np.ndarray) -> np.ndarray:
        """Add documents by `signatures`, uint32 [n, num_permutations]; return bool [n]: which are kept."""
        signatures = np.ascontiguousarray(signatures, dtype=np.uint32)
        stays = np.ones(len(signatures), bool)
        keys = self._band_keys(signatures)
        has_words = ~(signatures == NOTHING).all(axis=1)
        low = signatures.astype(np.uint8)
        which, numbers = self._bands.find(keys.ravel())
        documents = which // self.num_bands
        kept = np.frombuffer(self._kept, np.uint8).reshape(-1, signatures.shape[1])
        for start in range(0, len(which), PAIRS):
            some, other = documents[start : start + PAIRS], numbers[start : start + PAIRS]
            alike = self._are_near(low[some], kept[other])
            stays[some[alike]] = False
        stays |= ~has_words
        self._drop_among_themselves(keys, low, stays, has_words)
        new = np.flatnonzero(stays & has_words)
        if len(kept) + len(new) > LARGEST_NUMBER:
            raise DataError(
                f"data.cleaning.near_dedup can compare at most {LARGEST_NUMBER:,} documents, but the sources "
                "contain more. Set data.cleaning.near_dedup.enabled: false, or prepare the text as several "
                "datasets and mix them with data.blend."
            )
        numbers = np.arange(len(kept), len(kept) + len(new), dtype=np.uint32)
        del kept  # a bytearray cannot grow while there is a view of it
        self._kept += low[new].tobytes()
        self._bands.add(keys[new].ravel(), np.repeat(numbers, self.num_bands))
        return stays

    def _drop_among_themselves(
        self, keys: np.ndarray, low: np.ndarray, stays: np.ndarray, has_words: np.ndarray
    ) -> None:
        """Clear `stays` for documents that nearly duplicate an earlier kept document of the same batch."""
        # Only documents that share a band with another document of the batch are compared one by one.
        _, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
        shared = (count > 1)[inverse.reshape(keys.shape)]
        kept_in: dict[int, list[int]] = {}
        for document in np.flatnonzero(shared.any(axis=1) & stays & has_words).tolist():
            own = keys[document, shared[document]].tolist()
            candidates = sorted({other for key in own for other in kept_in.get(key, ())})
            if candidates and self._are_near(low[candidates], low[document]).any():
                stays[document] = False
                continue
            for key in own:
                kept_in.setdefault(key, []).append(document)

    def _are_near(self, some: np.ndarray, other: np.ndarray) -> np.ndarray:
        # The low bytes of different minima agree by chance in one of 256 cases.
        agreeing = (some == other).mean(axis=1)
        return (agreeing - 1 / 256) / (1 - 1 / 256) >= self.config.threshold - 1e-9

    def _band_keys(self, signatures: np.ndarray) -> np.ndarray:
        """Return a key for each band, uint64 [n, bands], computed from the band's values and position."""
        used = signatures[:, : self.num_bands * self.band_rows].astype(np.uint64)
        rows = used.reshape(len(signatures), self.num_bands, self.band_rows)
        keys = np.broadcast_to(np.arange(1, self.num_bands + 1, dtype=np.uint64), rows.shape[:2]).copy()
        for row in range(self.band_rows):
            keys = _mix(keys ^ rows[:, :, row])
        return keys

    @property
    def num_bytes(self) -> int:
        """Return how many bytes of memory the index occupies."""
        return self._bands.num_bytes + len(self._kept)


def signature(text: str, config: NearDedupConfig) -> np.ndarray:
    """Return the MinHash of a text's shingles, uint32 [num_permutations]. Raises DataError without rensa."""
    sketch = _rensa().RMinHash(config.num_permutations, config.seed)
    sketch.update(shingles(text, config.shingle_words))
    return np.array(sketch.digest(), np.uint32)


def shingles(text: str, shingle_words: int) -> list[str]:
    """Return all sequences of `shingle_words` adjacent words, in lower case.

    A text with fewer words has one sequence with all its words, or none if it has no words.
    """
    words = characters.words(text.lower())
    if len(words) <= shingle_words:
        return [" ".join(words)] if words else []
    return list(map(" ".join, zip(*(words[start:] for start in range(shingle_words)))))


def bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    """Return (number of bands, rows per band) with the fewest comparisons for a threshold.

    At most 2 % of the pairs with similarity `threshold` are missed. A pair of similarity s shares a band with
    probability 1 - (1 - s^rows)^bands.
    """
    for rows in range(num_permutations, 0, -1):
        for count in range(1, num_permutations // rows + 1):
            if (1 - threshold**rows) ** count <= 0.02:
                return count, rows
    return num_permutations, 1


def rensa_version() -> str:
    """Return rensa's version, on which signatures depend. Raises DataError if rensa is not installed."""
    _rensa()
    return importlib.metadata.version("rensa")


def _rensa() -> Any:
    return optional("rensa", "data.cleaning.near_dedup", "set near_dedup.enabled: false")


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply splitmix64's finalizer (Steele, Lea and Flood 2014), a bijection of uint64, with wraparound."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
