"""Micro batches of one rank, in the global order of dataset/samples/state.py.

    step        the next positions of the training order, as many as the batch schedule says
    micro batch a row of micro_batch_size x data_parallel_size of these positions
    rank r      the r-th of data_parallel_size equal parts of that row

The samples of a step therefore depend only on the data state, not on the number of ranks. Worker processes
read ahead in the same order.
"""

import functools
import multiprocessing
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.config.batch_schedule import BatchSchedule
from nbtrain.dataset.samples.sample import Sample, Samples
from nbtrain.dataset.samples.state import DataState, rank_positions


class Batch(NamedTuple):
    """One micro batch of b samples on the device. A field is None if all its values are the defaults of
    samples/sample.py.
    """

    tokens: torch.Tensor
    """int64 [b, seq_length]."""
    labels: torch.Tensor
    """int64 [b, seq_length]."""
    loss_mask: torch.Tensor | None = None
    """fp32 [b, seq_length]."""
    position_ids: torch.Tensor | None = None
    """int64 [b, seq_length]."""
    cu_seqlens: torch.Tensor | None = None
    """int32 [documents + 1]: cumulative lengths over all b * seq_length tokens; each sample begins a
    document.
    """
    max_seqlen: int = 0
    """Length in tokens of the micro batch's longest document."""
    dataset_ids: torch.Tensor | None = None
    """int64 [b, seq_length]: number of the dataset that each label belongs to, if the batches are `named`."""
    answers: torch.Tensor | None = None
    """int64 [b, seq_length]: number of the answer that each position belongs to: 2 p for the chosen and 2 p +
    1 for the rejected answer of pair p.
    """
    pairs: torch.Tensor | None = None
    """int64 [P]: for each of the P pairs, the number of its sequence in the dataset."""
    reference: torch.Tensor | None = None
    """fp32 [P, 2]: log-probabilities that the reference model gives each pair's chosen and rejected answer.
    """

    @property
    def learnt(self) -> torch.Tensor:
        """Divisor of a masked batch's sum of losses, a float64 tensor: the batch's number of pairs or, in a
        batch without pairs, its number of tokens in the loss.
        """
        if self.pairs is not None:
            return torch.tensor(float(len(self.pairs)), dtype=torch.float64, device=self.pairs.device)
        assert self.loss_mask is not None
        return self.loss_mask.sum(dtype=torch.float64)

    @property
    def bounds(self) -> dict[str, Any]:
        """Arguments position_ids, cu_seqlens and max_seqlen of the model; {} if the batch has neither
        positions nor documents.
        """
        bounds: dict[str, Any] = {}
        if self.position_ids is not None:
            bounds["position_ids"] = self.position_ids
        if self.cu_seqlens is not None:
            bounds |= {"cu_seqlens": self.cu_seqlens, "max_seqlen": self.max_seqlen}
        return bounds

    def to(self, device: torch.device) -> "Batch":
        """Copy this batch to another device without waiting for the copy."""
        return Batch._make(
            part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part for part in self
        )


def training_rows(
    state: DataState, steps: int, schedule: BatchSchedule, micro_batch_size: int, rank: int, size: int
) -> Iterator[list[int]]:
    """Yield the positions of each micro batch of data-parallel rank `rank` of `size`, for `steps` steps."""
    for _ in range(steps):
        batch_size = schedule.size_at(state.consumed_samples)
        positions = state.step_positions(batch_size)
        yield from rank_positions(positions, micro_batch_size, rank, size).tolist()
        state = state.advanced(batch_size)


def evaluation_rows(num_samples: int, micro_batch_size: int, rank: int, size: int) -> Iterator[list[int]]:
    """Yield the positions of each micro batch of data-parallel rank `rank` of `size`.

    The positions of all ranks together are 0 .. num_samples - 1.
    """
    yield from rank_positions(np.arange(num_samples), micro_batch_size, rank, size).tolist()


class Batches:
    """Iterates over micro batches on `device`; `rows` holds the positions of each micro batch's samples.

    With `masked`, every batch has a loss_mask; with `named`, every batch has dataset_ids.
    """

    def __init__(
        self,
        dataset: Samples,
        rows: Iterator[list[int]],
        device: torch.device,
        num_workers: int = 0,
        masked: bool = False,
        named: bool = False,
    ):
        self.wait_seconds = 0.0
        self._device = device
        loader = DataLoader(
            _Readable(dataset),
            batch_sampler=rows,
            collate_fn=functools.partial(_stack, masked=masked, named=named),
            num_workers=num_workers,
            worker_init_fn=_start_worker,
            pin_memory=device.type == "cuda",
            # The loader seeds its workers from this generator instead of the default one, which dropout uses.
            generator=torch.Generator().manual_seed(0),
        )
        others = set(multiprocessing.active_children())
        try:
            self._loader: Iterator[Batch] = iter(loader)
        except OSError:
            # The loader's queues did not fit into /dev/shm. The workers that have already started would wait
            # forever.
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers, even if DeepSpeed's pipeline or the traceback of an error still refers to the
        loader.
        """
        loader, self._loader = self._loader, iter(())
        # The workers ignore SIGTERM, so Python would wait for them forever at exit.
        if hasattr(loader, "_shutdown_workers"):
            loader._shutdown_workers()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Batch:
        started = time.perf_counter()
        try:
            batch = next(self._loader).to(self._device)
        except NbtrainError as error:
            raise _without_worker(error) from error
        self.wait_seconds += time.perf_counter() - started
        return batch


class DatasetLosses:
    """Losses of each named dataset in a step, summed on the device so that the host need not wait.

    Call of() before a micro batch's forward pass, and sums() after the step.
    """

    def __init__(self, num_datasets: int, device: torch.device):
        self._num_datasets = num_datasets
        self._device = device
        self._noted: list[tuple[Batch, torch.Tensor]] = []

    def of(self, batch: Batch) -> torch.Tensor:
        """Return zeros, fp32 [b, s], which the model replaces by each token's loss."""
        token_losses = torch.zeros(batch.labels.shape, device=self._device)
        self._noted.append((batch, token_losses))
        return token_losses

    @property
    def noted(self) -> "_NotedLosses":
        """This object with the interface `Noted`, through which a validation records token losses."""
        return _NotedLosses(self)

    def sums(self, sequence_ranks: int = 1) -> torch.Tensor:
        """Return float64 [datasets, 2]: for each dataset, this rank's sum of losses and its number of tokens
        in the loss.

        Each of the `sequence_ranks` ranks that share sequences sees whole masks but only its own tokens'
        losses, so it counts the tokens in the mask divided by `sequence_ranks`.
        """
        sums = torch.zeros(self._num_datasets, 2, dtype=torch.float64, device=self._device)
        for batch, token_losses in self._noted:
            assert batch.dataset_ids is not None
            learnt = torch.ones_like(token_losses) if batch.loss_mask is None else batch.loss_mask
            rows = torch.stack([(token_losses * learnt).flatten(), learnt.flatten()], dim=1)
            sums.index_add_(0, batch.dataset_ids.flatten(), rows.double())
        sums[:, 1] /= sequence_ranks
        return sums


class _NotedLosses(NamedTuple):
    losses: DatasetLosses

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"token_losses": self.losses.of(batch)}


class _Readable(Dataset):
    """A dataset in the form that torch's loader reads: samples by position, without a length."""

    def __init__(self, dataset: Samples):
        self._dataset = dataset

    def __getitem__(self, index: int) -> Sample:
        return self._dataset.sample(index)


def _without_worker(error: NbtrainError) -> NbtrainError:
    """Return a worker process's error without torch's text around it ("Caught ... in DataLoader worker"). The
    first line of a rank's error is shown as the reason why the job ended.
    """
    kind = type(error)
    if not str(error).startswith(f"Caught {kind.__name__} in DataLoader worker"):
        return error
    *_, message = re.split(rf"^(?:[\w.]+\.)?{kind.__name__}: ", str(error), flags=re.MULTILINE)
    return kind(message.rstrip())


def _start_worker(number: int) -> None:
    # A stop request signals the whole process group, but the rank still needs batches from its workers to
    # finish the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)


def _stack(samples: list[Sample], masked: bool, named: bool) -> Batch:
    """Stack samples into a batch. A field that only some samples have is filled with its default for the
    others.
    """
    length = len(samples[0].tokens)
    tokens = _tensor([sample.tokens for sample in samples])
    labels = _tensor([sample.labels for sample in samples])
    loss_mask = position_ids = cu_seqlens = dataset_ids = None
    max_seqlen = 0
    if masked or any(sample.loss_mask is not None for sample in samples):
        everything = np.ones(length, np.float32)
        loss_mask = _tensor([_or(sample.loss_mask, everything) for sample in samples], np.float32)
    if any(sample.position_ids is not None for sample in samples):
        straight = np.arange(length)
        position_ids = _tensor([_or(sample.position_ids, straight) for sample in samples])
    if any(sample.cu_seqlens is not None for sample in samples):
        whole = np.zeros(1, np.int32)
        begins = [
            number * length + starts[starts < length]
            for number, starts in enumerate(_or(sample.cu_seqlens, whole) for sample in samples)
        ]
        ends = np.concatenate([*begins, [length * len(samples)]])
        cu_seqlens, max_seqlen = torch.from_numpy(ends.astype(np.int32)), int(np.diff(ends).max())
    if named:
        ids = [_or(sample.dataset_ids, np.full(length, sample.dataset)) for sample in samples]
        dataset_ids = _tensor(ids)
    batch = Batch(tokens, labels, loss_mask, position_ids, cu_seqlens, max_seqlen, dataset_ids)
    if samples[0].pairs is not None:
        batch = _with_pairs(batch, samples)
    if get_worker_info() is not None:
        # An error that is raised here reaches the rank. If it were raised later, in the thread that sends the
        # batch, that thread would only print it, and the rank would wait for the batch forever.
        for part in batch:
            if isinstance(part, torch.Tensor):
                part.share_memory_()
    return batch


def _with_pairs(batch: Batch, samples: list[Sample]) -> Batch:
    """Add the pairs of all samples to a batch, numbered consecutively."""
    answers, pairs, reference, before = [], [], [], 0
    for sample in samples:
        assert sample.answers is not None and sample.pairs is not None and sample.reference is not None
        # Padding stays 0.
        assert sample.loss_mask is not None
        answers.append(np.where(sample.loss_mask, sample.answers + 2 * before, 0))
        pairs.append(sample.pairs)
        reference.append(sample.reference)
        before += len(sample.pairs)
    return batch._replace(
        answers=_tensor(answers),
        pairs=torch.from_numpy(np.concatenate(pairs)),
        reference=torch.from_numpy(np.concatenate(reference)),
    )


def _tensor(rows: list[np.ndarray], dtype: type = np.int64) -> torch.Tensor:
    return torch.from_numpy(np.stack(rows).astype(dtype, copy=False))


def _or(array: np.ndarray | None, other: np.ndarray) -> np.ndarray:
    return other if array is None else array
