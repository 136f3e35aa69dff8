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
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.workspace import display

SUFFIX = ".pt"
# torch writes a whole tensor in one call; the process that waits for a save checks its progress every second.
PIECE_BYTES = 64 << 20
# Hashing less than this takes less time than handing it to another thread.
SMALL_BYTES = 1 << 20
# How torch's reader names a function or class that it refuses to call.
REFUSED = re.compile(r"GLOBAL ([\w.]+)")
# Classes in DeepSpeed's files besides tensors and plain values, as (module, name).
DEEPSPEED_TYPES = (
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)
# Exceptions of torch's reader for damaged bytes, or bytes made to confuse it.
DAMAGED = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, LookupError, TypeError, ValueError),
)

_written = 0
_lock = threading.Lock()


def written_bytes() -> int:
    """Return the bytes of checkpoints that this process has written so far, in all its threads."""
    return _written


def count_written(count: int) -> None:
    """Add `count` bytes to written_bytes()."""
    global _written
    with _lock:
        _written += count


def write_file(path: Path, state: Any) -> dict[str, Any]:
    """Write a file with torch.save, visible by rename once it is on the disk; return its size and SHA-256.

    Raises CheckpointError if the file cannot be written.
    """
    stream = _HashedStream()
    try:
        with (
            files.atomic_writer(path) as stream.file,
            ThreadPoolExecutor(1, "checkpoint-hash") as stream.hasher,
        ):
            torch.save(state, stream)  # type: ignore[arg-type]
            if stream.failure is not None:
                raise stream.failure
    except (OSError, RuntimeError) as error:
        # torch replaces the system's message about a full disk with another one.
        raise CheckpointError(f"{path}: could not be written: {stream.failure or error}") from error
    return {"bytes": stream.size, "sha256": stream.sha256.hexdigest()}


def load_file(path: Path, mmap: bool = False) -> Any:
    """Load a file of a checkpoint to the CPU; with `mmap` its tensors are read on access.

    No code in the file runs. Raises CheckpointError if it contains code, or anything but tensors, plain
    values and the classes in DEEPSPEED_TYPES.
    """
    try:
        with torch.serialization.safe_globals(_deepspeed_types()), warnings.catch_warnings():
            # The warning requests a report of other pickle protocols to PyTorch; only we write these files.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise CheckpointError(
            f"{display(path)}: does not exist; a run that continues training removes older checkpoints. Take "
            "another step, or raise checkpoint.keep_last."
        ) from None
    except DAMAGED as error:
        # Without torch's message, which advises turning the protection off.
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
        return "holds code or other objects than tensors and plain values; not loaded"
    return "is damaged, or was not written by torch.save; not loaded"


class _StandIn:
    """An object of DeepSpeed with all its attributes, for reading only: it cannot be written again."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a file that is read without DeepSpeed cannot be written again: import DeepSpeed first."
        )


def _deepspeed_types() -> list[Any]:
    """Return the classes of DEEPSPEED_TYPES with their full names, as torch's reader takes them.

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
        # Linux starts to write dirty pages that are not needed soon; it keeps those that it has not written.
        os.posix_fadvise(file.fileno(), start, count, os.POSIX_FADV_DONTNEED)


class _HashedStream:
    """A stream for torch.save that writes to `file`, and counts and hashes the bytes.

    SHA-256 is as slow as a quick disk, so `hasher` computes it while the same bytes are being written.
    """

    file: IO[bytes]
    hasher: Executor

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        whole = memoryview(content).cast("B")
        if len(whole) < SMALL_BYTES:
            self._write(whole)
            self.sha256.update(whole)
            return len(whole)
        pieces = [whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)]
        hashed = [self.hasher.submit(self.sha256.update, piece) for piece in pieces]
        try:
            for piece in pieces:
                self._write(piece)
        finally:
            # torch may free the bytes after this call.
            wait(hashed)
        return len(whole)

    def _write(self, piece: memoryview) -> None:
        try:
            self.file.write(piece)
            start_writeback(self.file, self.size, len(piece))
        except OSError as error:
            self.failure = self.failure or error
            raise
        self.size += len(piece)
        count_written(len(piece))

    def flush(self) -> None:
        self.file.flush()
