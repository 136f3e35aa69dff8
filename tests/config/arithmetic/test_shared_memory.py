"""Shared memory of data workers, compared with measurements on an empty tmpfs at /dev/shm."""

from types import SimpleNamespace

import pytest

from nbtrain.config.arithmetic.shared_memory import worker_shared_memory_bytes


@pytest.mark.parametrize(
    ("workers", "micro_batch_size", "seq_length", "measured"),
    [(2, 8, 256, 188_416), (1, 3, 100, 61_440), (4, 2, 4096, 1_130_496), (0, 8, 256, 0)],
)
def test_it_is_what_torchs_loader_allocates(workers, micro_batch_size, seq_length, measured):
    """The estimate equals the shared memory that torch 2.13's loaders of two ranks
    filled, measured by statvfs.
    """
    config = SimpleNamespace(
        data=SimpleNamespace(num_workers=workers),
        batch=SimpleNamespace(micro_batch_size=micro_batch_size),
        model=SimpleNamespace(seq_length=seq_length),
        ranks_per_node=2,
    )
    assert worker_shared_memory_bytes(config) == 2 * measured
