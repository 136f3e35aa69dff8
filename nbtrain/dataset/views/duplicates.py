"""Finds documents in a .bin that are byte-for-byte copies of others, in bounded time and memory.

    key (length and four tokens) of every document -> documents with equal keys -> hash of all their tokens

A dataset that nbtrain prepared has no such copies if cleaning.exact_dedup was on. A dataset from another
program may have some.
"""

import hashlib
import time
from array import array
from dataclasses import dataclass

import numpy as np

from nbtrain.dataset.indexed import IndexedDataset

MAX_DOCUMENTS = 1_000_000
MAX_HASHED_BYTES = 512 << 20
MAX_SECONDS = 10.0
NUM_PARTS = 20
SEED = 1234
# Odd, with bits everywhere: 2**64 divided by the golden ratio (Knuth, volume 3, section 6.4).
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Duplicates:
    """The result of find_duplicates(): how many of the checked documents are copies of one another."""

    copies: int
    """Number of documents that could be dropped: of three equal documents, two are copies."""
    checked: int
    documents: int
    """Number of non-empty documents in the dataset, checked or not."""

    def __str__(self) -> str:
        if self.checked == self.documents:
            return f"{self.copies:,} of {self.documents:,} documents"
        return (
            f"{self.copies:,} among {self.checked:,} documents drawn at random from {self.documents:,} "
            "(copies of documents that were not drawn are not detected)"
        )


def find_duplicates(indexed: IndexedDataset) -> Duplicates:
    """Count exact duplicates within MAX_DOCUMENTS, MAX_HASHED_BYTES and MAX_SECONDS.

    Beyond these limits, only a sample of the documents is counted.
    """
    indexed.check()
    bounds = indexed.document_bounds()
    filled = np.flatnonzero(bounds[1:] > bounds[:-1])
    chosen = filled
    if len(filled) > MAX_DOCUMENTS:
        drawn = np.random.default_rng(SEED).integers(0, len(filled), MAX_DOCUMENTS)
        chosen = filled[np.unique(drawn)]
    deadline = time.monotonic() + MAX_SECONDS
    # Each pass checks every NUM_PARTS-th document, so that the checked documents are spread over the dataset
    # if time runs out.
    keys, done = [], []
    for part in range(NUM_PARTS):
        if part and time.monotonic() > deadline:
            break
        documents = chosen[part::NUM_PARTS]
        keys.append(_keys(indexed, bounds, documents))
        done.append(documents)
    key, documents = np.concatenate(keys), np.concatenate(done)
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    alike = np.zeros(len(key), bool)
    alike[order[1:][same]] = alike[order[:-1][same]] = True
    hashes = array("Q")
    hashed_bytes = unread = 0
    for document in documents[alike].tolist():
        tokens = indexed.tokens[bounds[document] : bounds[document + 1]]
        hashed_bytes += tokens.nbytes
        if hashed_bytes > MAX_HASHED_BYTES or time.monotonic() > deadline + MAX_SECONDS:
            unread += 1
            continue
        hashes.append(int.from_bytes(hashlib.blake2b(tokens.data, digest_size=8).digest()))
    copies = len(hashes) - len(np.unique(np.frombuffer(hashes, np.uint64))) if hashes else 0
    return Duplicates(copies, len(documents) - unread, len(filled))


def _keys(indexed: IndexedDataset, bounds: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return a uint64 key per document, from its length and four tokens. Equal documents have equal keys."""
    starts = bounds[documents]
    lengths = bounds[documents + 1] - starts
    keys = lengths.astype(np.uint64)
    for quarter in range(4):
        tokens = indexed.tokens[starts + (lengths - 1) * quarter // 4]
        if tokens.dtype.kind == "f":
            tokens = np.ascontiguousarray(tokens).view(f"<u{tokens.dtype.itemsize}")
        keys = keys * MULTIPLIER + tokens.astype(np.uint64)
    return keys
