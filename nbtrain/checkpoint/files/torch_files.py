"""Files of a checkpoint: written with torch.save and hashed while they are written, read without running
code.
"""

import hashlib
import importlib
import os
import pickle
import re
import sys
import threading
import warnings
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.workspace import display

SUFFIX = ".pt"
# torch writes a whole tensor in one call. The tensor is processed in pieces of this size, which one thread
# writes and another one hashes. This is faster if a piece fits into the processor's cache.
PIECE_BYTES = 16 << 20
# Fewer bytes than these are hashed faster in the same thread than in another one.
SMALL_BYTES = 1 << 20
# Finds, in an error message of torch's reader, the name of the function or class that it refuses to call.
REFUSED = re.compile(r"GLOBAL ([\w.]+)")
# Classes, as (module, name), whose objects are in DeepSpeed's files in addition to tensors and plain values.
DEEPSPEED_TYPES = (
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)
# Exceptions that torch's reader raises for damaged or maliciously modified bytes.
DAMAGED = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, LookupError, TypeError, ValueError),
)

_written = 0
_lock = threading.Lock()


def written_bytes() -> int:
    """Return the number of bytes of checkpoints that this process has written so far, in all its threads."""
    return _written


def count_written(count: int) -> None:
    """Add `count` bytes to written_bytes()."""
    global _written
    with _lock:
        _written += count


def write_file(path: Path, state: Any) -> dict[str, Any]:
    """Write a file with torch.save, and return its size and SHA-256. It gets its final name by a rename, once
    it is on the disk.

    Raises CheckpointError if the file cannot be written.
    """
    stream = _HashedStream(state)
    try:
        # The file is synced to the disk while the last pieces are hashed.
        with (
            ThreadPoolExecutor(1, "checkpoint-hash") as stream.hasher,
            files.atomic_writer(path) as stream.file,
        ):
            torch.save(state, stream)  # type: ignore[arg-type]
            stream.hash_small()
            if stream.failure is not None:
                raise stream.failure
    except (OSError, RuntimeError) as error:
        # torch replaces the system's message about a full disk with another one.
        raise CheckpointError(f"{path}: could not be written: {stream.failure or error}") from error
    return {"bytes": stream.size, "sha256": stream.digest()}


def load_file(path: Path, mmap: bool = False) -> Any:
    """Load a file of a checkpoint to the CPU; with `mmap` its tensors are read on access.

    No code in the file runs. Raises CheckpointError if it contains code, or anything but tensors, plain
    values and the classes in DEEPSPEED_TYPES.
    """
    try:
        with torch.serialization.safe_globals(_deepspeed_types()), warnings.catch_warnings():
            # The warning asks users to report files with other pickle protocols to PyTorch, but only nbtrain
            # writes these files.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise CheckpointError(
            f"{display(path)}: does not exist; a run that is training removes older checkpoints. Choose "
            "another step, or raise checkpoint.keep_last."
        ) from None
    except DAMAGED as error:
        # torch's own message is omitted, because it advises turning the protection off.
        problem = pointer_problem_of(path) or _why_refused(error)
        raise CheckpointError(f"{display(path)} {problem}.") from None


def code_problem(path: Path) -> str | None:
    """Return why a file cannot be loaded safely; None if it can. Tensors are not read."""
    try:
        load_file(path, mmap=True)
    except CheckpointError as error:
        return str(error).removeprefix(f"{display(path)} ").removesuffix(".")
    return None


def _why_refused(error: Exception) -> str:
    if named := REFUSED.search(str(error)):
        return f"holds code ({named[1]}); not loaded"
    if isinstance(error, pickle.UnpicklingError):
        return "holds code, or objects other than tensors and plain values; not loaded"
    return "is damaged, or was not written by torch.save; not loaded"


class _StandIn:
    """Stand-in for a DeepSpeed object, with all its attributes. It is for reading only and cannot be written
    again.
    """

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an object from a file that was read without DeepSpeed cannot be written again: import "
            "DeepSpeed before reading the file."
        )


def _deepspeed_types() -> list[Any]:
    """Return the classes of DEEPSPEED_TYPES with their full names, in the form that torch's reader requires.

    A process that has not loaded DeepSpeed gets stand-ins, because loading it takes 0.4 s.
    """
    is_loaded = "deepspeed" in sys.modules
    return [
        (getattr(importlib.import_module(module), name) if is_loaded else _StandIn, f"{module}.{name}")
        for module, name in DEEPSPEED_TYPES
    ]


def start_writeback(file: IO[bytes], start: int, count: int) -> None:
    """Ask the system to write a range of a file to the disk now, so that the final fsync has little left."""
    if count >= SMALL_BYTES and hasattr(os, "posix_fadvise"):
        # This call tells Linux that the range is not needed soon, so Linux starts to write its dirty pages.
        # Linux drops only pages that are already on the disk, so no data is lost.
        os.posix_fadvise(file.fileno(), start, count, os.POSIX_FADV_DONTNEED)


def _addresses(state: Any) -> set[int]:
    """Return the start address of each tensor in host memory that nested dicts and sequences contain."""
    found, left, seen = set(), [state], set()
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            # A sparse tensor has no storage; torch saves its indices and values.
            if value.device.type == "cpu" and value.layout == torch.strided:
                found.add(value.untyped_storage().data_ptr())
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            left.extend(value.values() if isinstance(value, dict) else value)
    return found


class _HashedStream:
    """A stream for torch.save that writes to `file`, and counts and hashes the bytes.

    SHA-256 is as slow as a quick disk, so `hasher` computes it in another thread. A tensor of `state` in host
    memory may still be hashed while later tensors are written: `state` keeps its bytes, which must not change
    before the file is complete. All other bytes, such as a copy of a tensor from a GPU, belong to torch and
    may be freed after write(), so write() waits until they are hashed.
    """

    file: IO[bytes]
    hasher: Executor

    def __init__(self, state: Any) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.failure: OSError | None = None
        self._lasting = _addresses(state)
        self._hashed: list[Future[None]] = []
        self._started = 0
        """Number of bytes, from the file's beginning, that the system was asked to write to the disk."""
        self._small = bytearray()
        """Bytes between two tensors, which are hashed with the next large piece."""

    def write(self, content: bytes | memoryview) -> int:
        whole = memoryview(content).cast("B")
        if len(whole) < SMALL_BYTES:
            self._small += whole
            if len(self._small) >= SMALL_BYTES:
                self.hash_small()
            self._write(whole)
            return len(whole)
        self.hash_small()
        pieces = [whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)]
        for piece in pieces:
            self._hash(piece)
        try:
            for piece in pieces:
                self._write(piece)
        finally:
            if np.frombuffer(whole, np.uint8).ctypes.data not in self._lasting:
                self._wait()
        return len(whole)

    def hash_small(self) -> None:
        """Hash the bytes since the last large piece."""
        if self._small:
            self._hash(self._small)
            self._small = bytearray()

    def _hash(self, piece: memoryview | bytearray) -> None:
        self._hashed.append(self.hasher.submit(self.sha256.update, piece))

    def _wait(self) -> None:
        """Wait until all bytes so far are hashed."""
        for one in self._hashed:
            one.result()
        self._hashed.clear()

    def digest(self) -> str:
        """Return the SHA-256 of all bytes, in hexadecimal."""
        self._wait()
        return self.sha256.hexdigest()

    def _write(self, piece: memoryview) -> None:
        try:
            self.file.write(piece)
        except OSError as error:
            self.failure = self.failure or error
            raise
        self.size += len(piece)
        if self.size - self._started >= PIECE_BYTES:
            start_writeback(self.file, self._started, self.size - self._started)
            self._started = self.size
        count_written(len(piece))

    def flush(self) -> None:
        self.file.flush()
