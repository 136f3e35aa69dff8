"""Measures the seconds of each kind of collective over all ranks, by the bytes of the whole array.

    all_reduce      every rank has the array
    all_gather      the result is the array
    reduce_scatter  the input is the array
    broadcast       every rank has the array
    all_to_all      a rank's input is the array
    send_recv       the first rank sends the array to the last one and gets it back: half of the time

Bytes are counted as in nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.train.calibration.stopwatch import Stopwatch

CPU_BYTES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
GPU_BYTES = (4 << 10, 256 << 10, 4 << 20, 32 << 20, 256 << 20)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


def measure(watch: Stopwatch, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Measure every kind of collective at every size, in fp32. All ranks call it together."""
    for kind in KINDS:
        # A send_recv goes both ways, and the mean is over all ranks although only two of them send.
        share = dist.get_world_size() / 4 if kind == "send_recv" else 1.0
        for size in sizes:
            yield {
                "what": "collective",
                "collective": kind,
                "bytes": size,
                "seconds": share * watch.seconds(task(kind, size, watch.device)),
            }


def task(kind: str, size: int, device: torch.device) -> Callable[[], object]:
    """Return a function that runs one collective over `size` bytes. Raises KeyError for an unknown kind."""
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.ones(size // 4 // world * world, device=device)
    part = torch.ones(whole.numel() // world, device=device)
    other = torch.empty_like(whole)

    def there_and_back() -> None:
        if rank == 0:
            dist.send(whole, world - 1)
            dist.recv(whole, world - 1)
        elif rank == world - 1:
            dist.recv(whole, 0)
            dist.send(whole, 0)

    tasks: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send_recv": there_and_back,
    }
    return tasks[kind]
