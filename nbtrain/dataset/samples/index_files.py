"""Stores the arrays of an index on disk: written to files, published when complete, memory-mapped by readers.

    <folder>/<key>-<name>.npy    one array each, with the bytes that numpy.save writes
    <folder>/<key>.json          the description; written last, so an index without it is ignored

`key` is a hash of the description. Two processes that build the same arrays at the same time write the same
bytes to separate files, and each publishes by rename. Neither waits for the other, and a reader sees the old
file or the new one, never a partial file.
"""

import contextlib
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.dataset.samples.gpt_index import Allocate

# A step reads from one pass, or from two at the end of a pass; validation between steps has a separate
# dataset. Each open array of an index holds a file descriptor.
OPEN_PASSES = 2
Index = TypeVar("Index")


def opened_pass(opened: OrderedDict[int, Index], number: int, open_index: Callable[[int], Index]) -> Index:
    """Return the index of pass `number`, opened with `open_index` unless it is in the cache `opened`.

    The cache holds the OPEN_PASSES indices that were opened last.
    """
    if number not in opened:
        opened[number] = open_index(number)
        if len(opened) > OPEN_PASSES:
            opened.popitem(last=False)
    return opened[number]


def cached_arrays(
    folder: Path, description: dict[str, Any], names: tuple[str, ...], build: Callable[[Allocate], Any]
) -> dict[str, np.ndarray]:
    """Return the arrays of `description`, memory-mapped. If they do not exist, `build` fills them first.

    `build` receives a function that allocates an array inside its file, and must call it for each of `names`.
    Raises DataError if a stored array cannot be read.
    """
    key = store(folder, description, names, build)
    paths = {name: folder / f"{key}-{name}.npy" for name in names}
    try:
        # asarray gives a plain array over the same memory, without memmap's cost at every row.
        return {
            name: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for name, path in paths.items()
        }
    except ValueError as error:
        raise DataError(
            f"{display(folder / key)}-*.npy: the cached index cannot be read ({error}). Remove "
            f"{display(folder)}; the next run builds the index again."
        ) from error


def store(
    folder: Path, description: dict[str, Any], names: tuple[str, ...], build: Callable[[Allocate], Any]
) -> str:
    """Build the arrays unless they are on disk, without opening them. Return the key in their file names."""
    text = json.dumps(description, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    whole = all((folder / f"{key}-{name}.npy").is_file() for name in names)
    if not whole or files.read_json(folder / f"{key}.json") != description:
        folder.mkdir(parents=True, exist_ok=True)
        with _writing(folder, key) as allocate:
            build(allocate)
        files.write_json(folder / f"{key}.json", description)
    return key


@contextlib.contextmanager
def _writing(folder: Path, key: str) -> Iterator[Allocate]:
    with contextlib.ExitStack() as stack:
        arrays: list[np.memmap] = []

        def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            stream = stack.enter_context(files.atomic_writer(folder / f"{key}-{name}.npy", "w+b"))
            arrays.append(_mapped(stream, shape, dtype))
            return arrays[-1]

        yield allocate
        for array in arrays:
            array.flush()


def _mapped(stream: IO, shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    stream.flush()
    offset = stream.tell()
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    # Space is allocated before the first byte is mapped, so that a full disk raises OSError instead of
    # crashing.
    os.posix_fallocate(stream.fileno(), 0, offset + num_bytes)
    return np.memmap(stream, dtype, "r+", offset, shape)
