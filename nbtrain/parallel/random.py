"""The random state of a rank: seeded apart for dropout, saved, restored and kept from side effects."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_rank(seed: int, data_parallel_rank: int) -> None:
    """Seed every generator. Data-parallel ranks drop different activations, so each has its own stream."""
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
