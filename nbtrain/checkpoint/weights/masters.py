"""Sources of master weights, read by canonical name and in chunks, from files or from computed tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from nbtrain.checkpoint.weights.store import MASTER, WHOLE, StoredParameter, TensorPart


class Weights(Protocol):
    """A source of master weights: a CheckpointStore, a run's initial weights (initial.py), or MadeWhole."""

    @property
    def folder(self) -> Path: ...

    @property
    def dtype(self) -> torch.dtype:
        """Format in which the weights were trained."""

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embedding that belong to tokens."""

    @property
    def parameters(self) -> Mapping[str, StoredParameter]: ...

    def read(
        self,
        name: str,
        state: str,
        part: TensorPart = ...,
        start: int = ...,
        count: int | None = ...,
        rows: int | None = ...,
    ) -> torch.Tensor: ...


class MadeWhole:
    """Base class of sources that compute unsharded parameters: read() calls full() and returns the requested
    chunk of the result.
    """

    _newest: tuple[str, torch.Tensor] | None = None

    def full(self, name: str) -> torch.Tensor:
        """Return an unsharded parameter in fp32."""
        raise NotImplementedError

    def unchanged(self, name: str) -> Weights | None:
        """Return another source that contains this parameter unchanged; read() then reads it there.

        Returns None if full() computes the parameter.
        """
        return None

    def read(
        self,
        name: str,
        state: str = MASTER,
        part: TensorPart = WHOLE,
        start: int = 0,
        count: int | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Return elements [start, start + count) of a part of a parameter, like CheckpointStore.read."""
        if (held := self.unchanged(name)) is not None:
            return held.read(name, state, part, start, count, rows)
        # The parameter that was computed last is kept, because its chunks are requested one after the other.
        if self._newest is None or self._newest[0] != name:
            self._newest = name, self.full(name)
        return _elements(self._newest[1], part, start, count)


def _elements(whole: torch.Tensor, part: TensorPart, start: int, count: int | None) -> torch.Tensor:
    """Return elements [start, start + count) of a rank's part of the tensor `whole`, flat."""
    if part.dim is not None and part.size > 1:
        whole = whole.chunk(part.size, part.dim)[part.rank]
    flat = whole.reshape(-1)
    return flat[start:] if count is None else flat[start : start + count]
