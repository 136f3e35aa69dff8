"""Bytes of /dev/shm that the data workers of a machine allocate.

A worker hands each tensor of a micro batch over in shared memory, in whole pages. torch's DataLoader has
every worker read PREFETCH_FACTOR micro batches ahead before the first step. The semaphores of its queues and
events are files in /dev/shm too, a page each: 8 for each loader and 3 for each worker.
"""

from nbtrain.config.schema import RunConfig

PAGE_BYTES = 4096
PREFETCH_FACTOR = 2
"""torch's default, which train/engine/batches.py keeps."""
LOADER_SEMAPHORES = 8
WORKER_SEMAPHORES = 3
TOKEN_BYTES = 8
"""int64."""


def worker_shared_memory_bytes(config: RunConfig) -> int:
    """Return the minimum number of bytes that the data workers of one machine need; 0 without workers.

    Tokens and labels are counted. The masks and positions of packed data come on top.
    """
    workers = config.data.num_workers
    if not workers:
        return 0
    tensor_bytes = TOKEN_BYTES * config.batch.micro_batch_size * config.model.seq_length
    batch_pages = 2 * -(-tensor_bytes // PAGE_BYTES)
    pages = LOADER_SEMAPHORES + workers * (WORKER_SEMAPHORES + PREFETCH_FACTOR * batch_pages)
    return pages * PAGE_BYTES * config.ranks_per_node
