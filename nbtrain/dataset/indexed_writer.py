"""Writes an .idx file in chunks, and inserts EOD tokens into arrays of tokens."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from nbtrain.base import files
from nbtrain.dataset.indexed import CODES, HEADER, MAGIC, VERSION

CHUNK = 1 << 20
"""Number of index entries that are written at a time."""
Chunks = Callable[[], Iterable[np.ndarray]]
"""Function that yields an array in chunks. Each call starts at the beginning of the array."""
FileEntry = dict[str, int | str]
"""A file's `bytes` and `sha256`, as a manifest stores them."""
# If there are more than LONG_SLICE values for each inserted value, copying slices is faster than a boolean
# mask.
LONG_SLICE = 64


def write_index(path: Path, dtype: np.dtype, lengths: np.ndarray, documents: np.ndarray | None = None) -> str:
    """Write an .idx atomically and return its SHA-256.

    If `documents` is None, each sequence is a document.
    """
    num_entries = len(lengths) + 1 if documents is None else len(documents)

    def entries() -> Iterator[np.ndarray]:
        if documents is not None:
            return pieces(documents)
        firsts = range(0, num_entries, CHUNK)
        return (np.arange(first, min(first + CHUNK, num_entries)) for first in firsts)

    return write_index_chunks(path, dtype, len(lengths), num_entries, lambda: pieces(lengths), entries)


def write_index_chunks(
    path: Path, dtype: np.dtype, num_sequences: int, num_entries: int, lengths: Chunks, documents: Chunks
) -> str:
    """Write an .idx from arrays in chunks and return its SHA-256.

    `lengths` is called twice, `documents` once.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    digest = hashlib.sha256()
    with files.atomic_writer(path) as stream:

        def put(content: bytes | memoryview) -> None:
            digest.update(content)
            stream.write(content)

        put(HEADER.pack(MAGIC, VERSION, CODES[dtype], num_sequences, num_entries))
        for chunk in lengths():
            put(np.ascontiguousarray(chunk, "<i4").data)
        end = 0
        for chunk in lengths():
            ends = np.cumsum(chunk, dtype="<i8")
            put(((ends - chunk) * dtype.itemsize + end).astype("<i8", copy=False).data)
            end += int(ends[-1]) * dtype.itemsize if len(ends) else 0
        for chunk in documents():
            put(np.ascontiguousarray(chunk, "<i8").data)
    return digest.hexdigest()


def pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield consecutive views of `values` with at most CHUNK entries each."""
    return (values[first : first + CHUNK] for first in range(0, len(values), CHUNK))


def insert_at(values: np.ndarray, ends: np.ndarray, inserted: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a copy of `values`, as `dtype`, with inserted[k] before values[ends[k]].

    `ends` must be ascending.
    """
    flat = np.empty(len(values) + len(ends), dtype)
    places = ends + np.arange(len(ends))
    if len(values) > LONG_SLICE * len(ends):
        start = 0
        for number, end in enumerate(ends.tolist()):
            flat[start + number : end + number] = values[start:end]
            start = end
        flat[start + len(ends) :] = values[start:]
    else:
        kept = np.ones(len(flat), bool)
        kept[places] = False
        flat[kept] = values
    flat[places] = inserted
    return flat
