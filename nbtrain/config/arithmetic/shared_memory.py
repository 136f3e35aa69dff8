"""Bytes of /dev/shm that the data workers of a machine allocate.

A worker passes the tensors of a micro-batch to its rank through shared memory, each in whole pages. torch's
DataLoader has every worker read PREFETCH_FACTOR micro batches ahead before the first step. The semaphores of
its queues and events are files in /dev/shm too, a page each: 8 for each loader and 3 for each worker.
"""

from nbtrain.config.schema import RunConfig

PAGE_BYTES = 4096
PREFETCH_FACTOR = 2
"""Number of micro-batches that a worker reads ahead: torch's default, which train/engine/batches.py keeps."""
LOADER_SEMAPHORES = 8
WORKER_SEMAPHORES = 3
TOKEN_BYTES = 8
"""Size of a token id or label in bytes (int64)."""


def worker_shared_memory_bytes(config: RunConfig) -> int:
    """Return the minimum number of bytes that the data workers of one machine need; 0 without workers.

    Only tokens and labels are counted. Packed data also has masks and positions.
    """
    micro, length = config.batch.micro_batch_size, config.model.seq_length
    return read_ahead_bytes(config.data.num_workers, micro, length) * config.ranks_per_node


def read_ahead_bytes(workers: int, micro_batch_size: int, seq_length: int) -> int:
    """Return the minimum number of bytes that the data workers of one rank need; 0 without workers."""
    if not workers:
        return 0
    batch_pages = 2 * -(-TOKEN_BYTES * micro_batch_size * seq_length // PAGE_BYTES)
    return PAGE_BYTES * (LOADER_SEMAPHORES + workers * (WORKER_SEMAPHORES + PREFETCH_FACTOR * batch_pages))
