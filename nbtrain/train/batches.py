"""The micro batches of one rank, in the global order of data/state.py.

    step        the next global_batch_size positions behind the data state
    micro batch a row of micro_batch_size x data_parallel_size of them
    rank r      the r-th of data_parallel_size equal parts of that row

so the set of samples of a step depends on the data state alone, not on the number of ranks. With workers,
processes read ahead; the order is the same.
"""

import signal
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from nbtrain.data.state import DataState, rank_positions
from nbtrain.parent_death import die_with_parent


class Samples(Protocol):
    """What a dataset must give: `dataset[i]` is seq_length + 1 token ids."""

    def __getitem__(self, index: int) -> np.ndarray: ...


def training_rows(
    state: DataState, steps: int, global_batch_size: int, micro_batch_size: int, rank: int, size: int
) -> Iterator[list[int]]:
    """Positions of each micro batch of data-parallel rank `rank` of `size`, for the next `steps` steps."""
    for _ in range(steps):
        positions = state.step_positions(global_batch_size)
        yield from rank_positions(positions, micro_batch_size, rank, size).tolist()
        state = state.advanced(global_batch_size)


def evaluation_rows(num_samples: int, micro_batch_size: int, rank: int, size: int) -> Iterator[list[int]]:
    """The same for the first `num_samples` samples of a split."""
    yield from rank_positions(np.arange(num_samples), micro_batch_size, rank, size).tolist()


class Batches:
    """Iterates over (tokens, labels), each [micro batch, seq_length] on `device`; `rows` say which samples."""

    def __init__(
        self, dataset: Samples, rows: Iterator[list[int]], device: torch.device, num_workers: int = 0
    ):
        self.wait_seconds = 0.0
        self._device = device
        self._loader = iter(
            DataLoader(
                _Readable(dataset),
                batch_sampler=_Rows(rows),
                collate_fn=_stack,
                num_workers=num_workers,
                worker_init_fn=_start_worker,
                pin_memory=device.type == "cuda",
                # The loader seeds its workers from this one and leaves the dropout's generator alone.
                generator=torch.Generator().manual_seed(0),
            )
        )

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        sequences = next(self._loader).to(self._device, non_blocking=True)
        self.wait_seconds += time.perf_counter() - started
        return sequences[:, :-1], sequences[:, 1:]


class _Readable(Dataset):
    """Shows the loader one method of a dataset; the length is not its business."""

    def __init__(self, dataset: Samples):
        self._dataset = dataset

    def __getitem__(self, index: int) -> np.ndarray:
        return self._dataset[index]


class _Rows(torch.utils.data.Sampler):
    def __init__(self, rows: Iterator[list[int]]):
        self._rows = rows

    def __iter__(self) -> Iterator[list[int]]:
        return self._rows


def _start_worker(number: int) -> None:
    # A stop signals the whole process group: the rank still needs its batches to finish the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)


def _stack(samples: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(samples).astype(np.int64, copy=False))
