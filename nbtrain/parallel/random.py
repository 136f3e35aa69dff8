"""A rank's random state: seeds it for dropout, saves and restores it, and protects it from side effects.

Tensor-parallel ranks have two random streams. Outside of sharded regions, they hold equal activations and
must drop the same ones, so seed_rank() gives them the same seed. Inside a sharded region, each rank holds
different heads, columns or tokens and must drop different ones (TensorParallelStream).
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_rank(seed: int, data_parallel_rank: int) -> None:
    """Seed every generator of this process, differently on each data-parallel rank.

    Tensor-parallel ranks hold the same activations, so they must pass the same data_parallel_rank.
    """
    seed = (seed + 1_000_003 * data_parallel_rank) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def get_state() -> dict:
    """Return the state of every generator as values that torch.load(weights_only=True) can read."""
    host, gpu = _torch_state()
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": host,
        "cuda": gpu,
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def set_state(state: dict) -> None:
    """Restore a result of get_state()."""
    _set_torch_state((state["torch"], state["cuda"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restore every generator at the end of the `with` block, even after an exception."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)


class TensorParallelStream:
    """A random stream that differs between tensor-parallel ranks, for dropout on activations that differ.

    These are the attention probabilities (each rank has its own heads) and, with sequence parallelism, the
    hidden states (each rank has its own tokens). Usage: `with stream.fork(): F.dropout(...)`. Torch's dropout
    draws only from the device's generator, so fork() temporarily sets that generator to the state of the
    stream.
    """

    def __init__(self, seed: int, data_parallel_rank: int, tensor_parallel_rank: int):
        digest = hashlib.sha256(f"{seed} {data_parallel_rank} {tensor_parallel_rank}".encode()).digest()
        outside = _torch_state()
        torch.manual_seed(int.from_bytes(digest[:7]))
        self._state = _torch_state()
        _set_torch_state(outside)

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """Draw from this stream inside the `with` block.

        Afterwards, the device's generator continues as before.
        """
        outside = _torch_state()
        _set_torch_state(self._state)
        try:
            yield
        finally:
            self._state = _torch_state()
            _set_torch_state(outside)

    def get_state(self) -> dict:
        """Return the state for a checkpoint, as tensors that torch.load(weights_only=True) can read."""
        return {"torch": self._state[0], "cuda": self._state[1]}

    def set_state(self, state: dict) -> None:
        """Restore a result of get_state()."""
        self._state = (state["torch"], state["cuda"])

    def recompute_contexts(self) -> tuple["_Remembered", "_Remembered"]:
        """Return (context of the forward pass, context of its repetition), so that dropout is repeated.

        This method is the `context_fn` of torch's checkpoint(use_reentrant=False), which itself restores only
        the generators' own states. Without these contexts, the gradient would silently use other dropout
        masks than the loss.
        """
        first = _Remembered(self)
        return first, _Remembered(self, repeats=first)


class _Remembered(contextlib.AbstractContextManager):
    """A context that records the stream's state on entry.

    With `repeats`, an earlier context, the stream starts inside from the state that the earlier context
    recorded. On exit, the stream gets back the state that it had on entry.
    """

    def __init__(self, stream: TensorParallelStream, repeats: "_Remembered | None" = None):
        self._stream, self._repeats = stream, repeats
        self.state = stream._state

    def __enter__(self) -> None:
        self.state = self._stream._state
        if self._repeats is not None:
            self._stream._state = self._repeats.state

    def __exit__(self, *exception: object) -> None:
        if self._repeats is not None:
            self._stream._state = self.state


def _torch_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _set_torch_state(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    torch.set_rng_state(state[0].cpu())
    if state[1] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[1].cpu())
