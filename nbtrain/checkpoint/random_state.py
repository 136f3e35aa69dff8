"""The random state of a rank: saved, restored, and drawn anew in another layout."""

import hashlib
from typing import Any

from nbtrain.checkpoint.live_run import LiveRun
from nbtrain.parallel import random
from nbtrain.parallel.random import TensorParallelStream


def random_state(live: LiveRun) -> dict[str, Any]:
    """Every generator of this rank."""
    state = random.get_state()
    return state if live.stream is None else {**state, "stream": live.stream.get_state()}


def restore(live: LiveRun, state: dict[str, Any]) -> None:
    """The inverse of random_state()."""
    random.set_state(state)
    if live.stream is not None:
        live.stream.set_state(state["stream"])


def reseed(live: LiveRun, step: int) -> None:
    """Begin new streams from the seed and the step, as another layout needs; each load begins the same."""
    digest = hashlib.sha256(f"{live.config.model.seed} {step}".encode()).digest()
    seed = int.from_bytes(digest[:4])
    place, tensor = divmod(live.world.rank, live.config.parallel.tensor_parallel_size)
    random.seed_rank(seed, place)
    if live.stream is not None:
        live.stream.set_state(TensorParallelStream(seed, place, tensor).get_state())
