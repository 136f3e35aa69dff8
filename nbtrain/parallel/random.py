"""The random state of a rank: seeded apart for dropout, saved, restored and kept from side effects.

Tensor-parallel ranks have two streams. Outside of their regions they hold the same activations and must drop
the same ones: seed_rank gives them the same seed. Inside each holds other heads, columns or tokens and must
drop others: TensorParallelStream.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_rank(seed: int, data_parallel_rank: int) -> None:
    """Seed every generator. Data-parallel ranks drop different activations, so each has its own stream.

    Ranks that share a model's activations, the tensor-parallel ones, must be given the same number.
    """
    seed = (seed + 1_000_003 * data_parallel_rank) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def get_state() -> dict:
    """The state of every generator, as tensors and plain values that torch.load(weights_only=True) reads."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def set_state(state: dict) -> None:
    """Restore what get_state returned."""
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Leave every generator as it was, whatever happens inside."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)


class TensorParallelStream:
    """Numbers that differ between tensor-parallel ranks, for dropout on what each of them holds apart.

    Attention probabilities (each rank its heads) and, with sequence parallelism, hidden states (each its
    tokens): `with stream.fork(): F.dropout(...)`. torch's dropout knows the device's generator only, so
    fork() lends that one the stream's state. Only torch's generators are concerned.
    """

    def __init__(self, seed: int, data_parallel_rank: int, tensor_parallel_rank: int):
        digest = hashlib.sha256(f"{seed} {data_parallel_rank} {tensor_parallel_rank}".encode()).digest()
        outside = _torch_state()
        torch.manual_seed(int.from_bytes(digest[:7]))
        self._state = _torch_state()
        _set_torch_state(outside)

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """Draw from this stream inside; outside goes on where it was."""
        outside = _torch_state()
        _set_torch_state(self._state)
        try:
            yield
        finally:
            self._state = _torch_state()
            _set_torch_state(outside)

    def get_state(self) -> dict:
        """For a checkpoint, as tensors that torch.load(weights_only=True) reads."""
        return {"torch": self._state[0], "cuda": self._state[1]}

    def set_state(self, state: dict) -> None:
        """Restore what get_state returned."""
        self._state = (
            state["torch"].cpu(),
            state["cuda"].cpu() if state["cuda"] is not None else None,
        )

    def recompute_contexts(self) -> tuple["_Remembered", "_Remembered"]:
        """`context_fn` of torch.utils.checkpoint(use_reentrant=False): the recomputation repeats the numbers.

        checkpoint itself does so for the generators' own stream, and knows nothing of this one: without it
        the gradient would be that of other masks than the loss, without an error.
        """
        first = _Remembered(self)
        return first, _Remembered(self, repeats=first)


class _Remembered(contextlib.AbstractContextManager):
    """Notes the stream's state on entry, or repeats from the noted one and leaves the stream where it was."""

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
    torch.set_rng_state(state[0])
    if state[1] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[1])
