"""Each text once: exact duplicates by hash, near duplicates by MinHash; of equal documents the first stays.

Both indices answer in document order and do not care how the documents are cut into batches.

    exact   XXH3 of 16 bytes, kept as sorted runs: 16 bytes and 1.3 us a document (of 50 M), and 0.2 GB to
            merge
    near    shingles of words -> MinHash (rensa) -> bands; 330 bytes a document that stays, at 128 hash
            functions and threshold 0.8

Sources: MinHash, Broder 1997; bands, Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4;
one byte in place of each minimum, Li and Koenig, b-bit minwise hashing (arXiv:0910.3349).
"""

import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xxhash

from nbtrain.base.errors import DataError
from nbtrain.config.data_section import NearDedupConfig
from nbtrain.corpus import characters

DIGEST_BYTES = 16
RUN_ENTRIES = 1 << 22  # a run grows no longer than this, so that merging never copies the whole index
PAIRS = 1 << 17  # candidates compared at once: 17 MB at 128 hash functions


def digest(content: bytes) -> bytes:
    """The identity of a document: XXH3 of its UTF-8 bytes, 128 bits: 2 of 10^12 documents meet once in 10^15
    corpora.

    It is made for speed, not against an adversary, who could have a document of his own taken for another's
    double.
    """
    return xxhash.xxh3_128_digest(content)


def digests(contents: Iterable[bytes]) -> bytes:
    """digest of each, one after the other."""
    return b"".join(map(xxhash.xxh3_128_digest, contents))


class SortedRuns:
    """A map from uint64 keys to values of one dtype, several to a key, that only grows.

    Runs of sorted keys, of sizes that fall by half; two that come near in size are merged, up to RUN_ENTRIES.
    An entry takes 8 bytes and its value's.
    """

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Remember keys with their values."""
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
        """(which, values): every value of keys[which[i]] is some values[i]; no order is promised."""
        order = np.argsort(keys)  # neighbours in the run are neighbours in the cache
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
        """Memory of the entries."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._runs)


class ExactIndex:
    """The digests of all documents so far."""

    def __init__(self) -> None:
        self._seen = SortedRuns(np.uint64)

    def add_all(self, digests: np.ndarray | bytes | Sequence[bytes]) -> np.ndarray:
        """bool [n]: whether each document is the first of its digest, among these and all before.

        `digests` is bytes (16 for each document, one after the other), a list of such, or uint64 [n, 2].
        """
        if not isinstance(digests, np.ndarray):
            content = digests if isinstance(digests, bytes) else b"".join(digests)
            digests = np.frombuffer(content, "<u8").reshape(-1, 2)
        high, low = digests[:, 0], digests[:, 1]
        is_first = np.ones(len(high), bool)
        order = np.lexsort((low, high))  # stable: of equal ones the earlier comes first
        again = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
        is_first[order[1:][again]] = False
        which, values = self._seen.find(high)
        is_first[which[values == low[which]]] = False
        self._seen.add(high[is_first], low[is_first])
        return is_first

    @property
    def num_bytes(self) -> int:
        """Memory of the index."""
        return self._seen.num_bytes


class NearIndex:
    """The signatures of all documents that stayed so far.

    A document goes when a kept one before it shares a band with it and agrees in so many hash functions that
    their Jaccard similarity is estimated at `threshold` or more. Documents too short for one shingle have a
    single shingle of all their words; one without any word is never a near duplicate.

    `signature` may be called in workers, `add` in one process. Raises DataError if rensa is not installed.
    """

    def __init__(self, config: NearDedupConfig):
        self.config = config
        self.rensa_version = rensa_version()
        self.num_bands, self.band_rows = bands(config.threshold, config.num_permutations)
        self._bands = SortedRuns(np.uint32)
        self._kept = _SignatureRows(config.num_permutations)

    def signature(self, text: str) -> np.ndarray:
        """MinHash of a text, uint32 [num_permutations]; the same in every process and with every hash
        seed."""
        return signature(text, self.config)

    def add(self, signatures: np.ndarray) -> np.ndarray:
        """bool [n]: whether each document stays, in order. `signatures` is uint32 [n, num_permutations]."""
        signatures = np.ascontiguousarray(signatures, dtype=np.uint32)
        stays = np.ones(len(signatures), bool)
        keys = self._band_keys(signatures)
        has_words = ~(signatures == NOTHING).all(axis=1)
        low = signatures.astype(np.uint8)
        which, numbers = self._bands.find(keys.ravel())
        documents = which // self.num_bands
        kept = self._kept.rows
        for start in range(0, len(which), PAIRS):
            some, other = documents[start : start + PAIRS], numbers[start : start + PAIRS]
            alike = self._are_near(low[some], kept[other])
            stays[some[alike]] = False
        stays |= ~has_words
        self._drop_among_themselves(keys, low, stays, has_words)
        new = np.flatnonzero(stays & has_words)
        numbers = np.arange(len(self._kept), len(self._kept) + len(new), dtype=np.uint32)
        self._kept.append(low[new])
        self._bands.add(keys[new].ravel(), np.repeat(numbers, self.num_bands))
        return stays

    def _drop_among_themselves(
        self, keys: np.ndarray, low: np.ndarray, stays: np.ndarray, has_words: np.ndarray
    ) -> None:
        """Clear `stays` of every document that is near an earlier one of the same batch that stays."""
        # Only documents that share a band with another of the batch are looked at one by one.
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
        # Low bytes of different minima agree by chance once in 256.
        agreeing = (some == other).mean(axis=1)
        return (agreeing - 1 / 256) / (1 - 1 / 256) >= self.config.threshold - 1e-9

    def _band_keys(self, signatures: np.ndarray) -> np.ndarray:
        """uint64 [n, bands]: one number for the values of each band and for its place."""
        used = signatures[:, : self.num_bands * self.band_rows].astype(np.uint64)
        rows = used.reshape(len(signatures), self.num_bands, self.band_rows)
        keys = np.broadcast_to(np.arange(1, self.num_bands + 1, dtype=np.uint64), rows.shape[:2]).copy()
        for row in range(self.band_rows):
            keys = _mix(keys ^ rows[:, :, row])
        return keys

    @property
    def num_bytes(self) -> int:
        """Memory of the index."""
        return self._bands.num_bytes + self._kept.num_bytes


NOTHING = np.uint32(0xFFFFFFFF)  # every minimum of a text without words


class _SignatureRows:
    """Rows of bytes that only grow, by half of themselves at a time."""

    def __init__(self, width: int):
        self._rows = np.empty((0, width), np.uint8)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> np.ndarray:
        return self._rows[: self._length]

    @property
    def num_bytes(self) -> int:
        return self._rows.nbytes

    def append(self, rows: np.ndarray) -> None:
        needed = self._length + len(rows)
        if needed > len(self._rows):
            grown = np.empty((max(needed, len(self._rows) * 3 // 2), self._rows.shape[1]), np.uint8)
            grown[: self._length] = self.rows
            self._rows = grown
        self._rows[self._length : needed] = rows
        self._length = needed


def signature(text: str, config: NearDedupConfig) -> np.ndarray:
    """MinHash of a text's shingles, uint32 [num_permutations]. Raises DataError if rensa is not installed."""
    sketch = _rensa().RMinHash(config.num_permutations, config.seed)
    sketch.update(shingles(text, config.shingle_words))
    return np.array(sketch.digest(), np.uint32)


def shingles(text: str, shingle_words: int) -> list[str]:
    """Every run of so many neighbouring words, in lower case; all words at once if there are fewer.

    Words are those of characters.py: punctuation and blanks do not count, and in scripts without blanks (Han,
    Thai) each character is a word, so that a shingle of 5 is 5 characters.
    """
    words = characters.words(text.lower())
    if len(words) <= shingle_words:
        return [" ".join(words)] if words else []
    return list(map(" ".join, zip(*(words[start:] for start in range(shingle_words)))))


def bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    """(bands, rows) of the fewest needless comparisons that miss at most 2 % of the pairs at the threshold
    itself.

    A pair of similarity s shares a band with probability 1 - (1 - s^rows)^bands; more similar pairs are
    missed more rarely. More rows suspect less, so the most rows win for which there are hash functions
    enough.
    """
    choices = []
    for rows in range(1, num_permutations + 1):
        count = num_permutations // rows
        needed = next((n for n in range(1, count + 1) if (1 - threshold**rows) ** n <= 0.02), None)
        if needed is not None:
            choices.append((needed, rows))
    if not choices:
        return num_permutations, 1
    return max(choices, key=lambda choice: choice[1])


def rensa_version() -> str:
    """Of the installed rensa: signatures of different versions do not compare.

    Raises DataError without it.
    """
    _rensa()
    return importlib.metadata.version("rensa")


def _rensa() -> Any:
    try:
        import rensa
    except ImportError:
        raise DataError(
            "data.cleaning.near_dedup: needs the package rensa, which is not installed. Install it with "
            "`pip install 'nbtrain[data]'`, or set near_dedup.enabled: false."
        ) from None
    return rensa


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer (Steele, Lea and Flood 2014), a bijection of uint64; wraps around."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
