"""Writes DeepSpeed's checkpoint files: at once, or from a copy in the background.

    DeepSpeed calls save(state, path)  at once:      writes the file, and computes its SHA-256 meanwhile
                                       background:   copies the state to host memory; a thread writes the file
    checkpoint.local_dir               `path` is on the node's disk: writes the part's record, and a thread
                                       copies the files to model/; a full disk is skipped
    every rank                         reports the files that it wrote in shares/<rank>.json; a failure is
                                       reported to all ranks at the next step boundary
    rank 0                             publishes the manifest by rename, once all ranks have reported

The copies share no memory with the live state, because the next step may update every weight while its file
is being written. Their memory is reused for the next save, and page-locked if the state is on a GPU. No call
here is collective, so a rank that is still writing does not delay any step. Rank 0 learns only from the files
shares/<rank>.json that all ranks are done.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.files.torch_files import load_file, write_file

SHARES = "shares"
POLL_SECONDS = 0.05

Described = dict[str, dict[str, Any]]
"""Descriptions of files: {file name: {"bytes": size, "sha256": hexadecimal digest}}."""


class CheckpointWriter:
    """The engine.checkpoint_engine of a run, with all methods of DeepSpeed's CheckpointEngine (0.19).

    It does not inherit from that class, because DeepSpeed is imported after the accelerator is chosen
    (parallel/startup.py).
    """

    name = "nbtrain"

    def __init__(self, background: bool = False):
        self.background = background
        self.described: Described = {}
        """Descriptions of the files written since create()."""
        self.refused = ""
        """Reason why the node's own disk did not accept this checkpoint; "" if the disk accepted it, or if no
        such disk is used.
        """
        self.direct: set[str] = set()
        """Names of the files that were written to another folder (see aim()), because the node's own disk did
        not accept them.
        """
        self._is_local = False
        self._instead: Path | None = None
        self._copies: list[tuple[Path, Any]] = []
        self._host = _HostMemory()

    def aim(self, is_local: bool = False, instead: Path | None = None) -> None:
        """Set the destination of the next checkpoint, before DeepSpeed starts to write it.

        With `is_local`, the destination is the node's own disk, whose errors do not end the run. A file that
        does not fit on this disk is written to the folder `instead`, or skipped if `instead` is None.
        """
        self._is_local, self._instead, self.refused, self.direct = is_local, instead, "", set()

    def create(self, info: Any) -> None:
        """Start a checkpoint; called by DeepSpeed."""
        self.described, self._copies = {}, []
        self._host.rewind()

    def save(self, state_dict: Any, path: str) -> None:
        """Write one file, or copy its content to be written later."""
        if self.background:
            self._copies.append((Path(path), _mapped(state_dict, self._host.copy)))
        else:
            self._write(Path(path), _mapped(state_dict, _apart))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Load one file for DeepSpeed, always to the CPU; DeepSpeed copies the tensors to the GPU itself."""
        return load_file(Path(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def commit(self, info: Any) -> bool:
        """Do nothing: a checkpoint is complete once its manifest exists."""
        return True

    def is_data_parallel_writer(self, rank: int) -> bool:
        """Return whether `rank` writes the weights that all data-parallel ranks hold."""
        return rank == 0

    def is_decoupled(self) -> bool:
        """Return False, because Saver does the remaining work after save_checkpoint()."""
        return False

    def preserves_storage_sharing(self) -> bool:
        """Return False, so that DeepSpeed does not clone every tensor before it calls save().

        save() itself copies the tensors for which this is necessary.
        """
        return False

    def wait_for_copies(self) -> None:
        """Wait until the copies are complete; copies from a GPU are made in the background."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def write_copies(self) -> None:
        """Write the copies made by save(); runs in the background thread."""
        while self._copies:
            path, state = self._copies.pop(0)
            self._write(path, state)

    def _write(self, path: Path, state: Any) -> None:
        if self._is_local:
            if not self.refused:
                try:
                    self.described[path.name] = write_file(path, state)
                    return
                except CheckpointError as error:
                    self.refused = str(error)
            if self._instead is None:
                return
            path = self._instead / path.name
            self.direct.add(path.name)
        self.described[path.name] = write_file(path, state)


class BackgroundSave:
    """A checkpoint that is being written. On rank 0 its thread calls publish({rank: its files})."""

    def __init__(
        self,
        writer: CheckpointWriter,
        folder: Path,
        rank: int,
        size: int,
        publish: Callable[[dict[int, Described]], None] | None,
        keep: Callable[[], None] | None = None,
        copy: Callable[[], Described] | None = None,
    ):
        """Prepare the save; the thread calls `keep` and `copy` once the files are written.

        keep() completes the part on the node's own disk. Afterwards copy() copies its files to `folder` and
        returns this rank's files there. If publish is None, the checkpoint stays on the nodes.
        """
        self.folder = folder
        self.error: str | None = None
        """One-line reason why this rank could not write its files, or why rank 0 could not publish the
        checkpoint; None without an error.
        """
        self._writer, self._rank, self._size, self._publish = writer, rank, size, publish
        self._keep, self._copy = keep, copy
        self._kept = threading.Event()
        self._written = threading.Event()
        self._cancelled = threading.Event()
        # A daemon thread, because a failing rank must not wait for the disk. An unpublished folder does not
        # count.
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def wait_kept(self) -> str | None:
        """Wait until another save may use the writer.

        Returns the error if the writer's copies could not be written, otherwise None.
        """
        self._kept.wait()
        return self.error

    def is_written(self, seconds: float) -> bool:
        """Wait at most `seconds`, and return whether this rank has written its files or failed to."""
        return self._written.wait(seconds)

    def wait_published(self) -> str | None:
        """Wait until the thread has ended, and return its error; None if it succeeded."""
        self._thread.join()
        return self.error

    def cancel(self) -> None:
        """Stop waiting for the other ranks, because one of them has failed."""
        self._cancelled.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._writer.write_copies()
            if self._keep is not None:
                self._keep()
            # From here on, another checkpoint for the nodes' own disks may use the writer.
            described = self._writer.described
            self._kept.set()
            if self._publish is None:
                return
            if self._copy is not None:
                described = self._copy()
            share = self.folder / SHARES / f"{self._rank}.json"
            share.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(share, described)
            self._written.set()
            if self._rank == 0 and (shares := self._all_shares()) is not None:
                self._publish(shares)
        except Exception as error:  # reported at the next step boundary, on all ranks
            self.error = " ".join(f"{error}".split()) or type(error).__name__
        finally:
            self._kept.set()
            self._written.set()

    def _all_shares(self) -> dict[int, Described] | None:
        """Wait until every rank has reported its files, and return {rank: descriptions of its files}.

        Returns None if cancel() is called before that.
        """
        shares: dict[int, Described] = {}
        while len(shares) < self._size:
            for rank in range(self._size):
                share = files.read_json(self.folder / SHARES / f"{rank}.json") if rank not in shares else None
                if share is not None:
                    shares[rank] = share
            if len(shares) < self._size and self._cancelled.wait(POLL_SECONDS):
                return None
        return shares


class _HostMemory:
    """Buffers in host memory for copies of tensors, allocated once: the n-th copy of each save reuses its
    buffer.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._next = 0

    def rewind(self) -> None:
        self._next = 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        number, self._next = self._next, self._next + 1
        if number == len(self._buffers):
            self._buffers.append(torch.empty(0))
        buffer = self._buffers[number]
        if buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[number] = buffer
        buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        return buffer


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached from the rest of its storage, which torch.save would write too."""
    tensor = tensor.detach()
    # A rank's part of ZeRO's flat buffers fills its storage except for some padding, which is not worth a
    # copy.
    if tensor.untyped_storage().nbytes() <= tensor.nbytes * 1.01 + 4096:
        return tensor
    return tensor.cpu() if tensor.is_cuda else tensor.clone()


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of nested dicts and sequences in which each tensor is replaced by change(tensor)."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        pairs = ((key, _mapped(entry, change)) for key, entry in value.items())
        return OrderedDict(pairs) if isinstance(value, OrderedDict) else dict(pairs)
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, change) for entry in value)
    return copy.deepcopy(value)
