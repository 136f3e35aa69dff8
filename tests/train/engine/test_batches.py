"""The samples that a rank reads in each step."""

import errno
import itertools
import multiprocessing
import os

import numpy as np
import pytest
import torch

from nbtrain.config.batch_schedule import BatchSchedule, Rampup
from nbtrain.dataset.samples.sample import Sample
from nbtrain.dataset.samples.state import DataState
from nbtrain.train.engine.batches import Batches, evaluation_rows, training_rows

STATE = DataState(
    seed=1, split="1,0,0", split_rule="megatron-core", dataset_sha256="0" * 64, index_samples=1000
)


class Counting:
    """A dataset in which sample i contains i, i + 1, ..., and which records every read."""

    def __init__(self):
        self.read = []

    def sample(self, position: int) -> Sample:
        self.read.append(position)
        tokens = np.arange(position, position + 5)
        return Sample(tokens[:-1], tokens[1:])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_steps_samples_do_not_depend_on_the_ranks(size):
    """Each step reads the next positions of the sample order exactly once, however many ranks there are."""
    rows = [
        list(training_rows(STATE.advanced(16), 3, BatchSchedule(8, 4, 1), 2, rank, size))
        for rank in range(size)
    ]
    per_step = 8 // (2 * size)
    for step in range(3):
        mine = [row for own in rows for row in own[step * per_step : (step + 1) * per_step]]
        assert sorted(itertools.chain(*mine)) == list(range(16 + 8 * step, 24 + 8 * step))


def test_skipped_positions_are_passed_over():
    rows = training_rows(STATE.skipping(3, 6), 2, BatchSchedule(4, 4, 1), 2, 0, 1)
    assert list(itertools.chain(*rows)) == [0, 1, 2, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("size", [1, 2])
def test_steps_grow_with_the_batch_schedule(size):
    """With steps of 4, 4, 8, 12 and then 16 samples, every sample is used once, also if training starts in
    the middle of the ramp.
    """
    schedule = BatchSchedule(16, 4, 1, Rampup(4, 4, 24))
    sizes = [4, 4, 8, 12, 16, 16]
    for begun in (0, 2):
        state = STATE.advanced(sum(sizes[:begun]))
        rows = [list(training_rows(state, 6 - begun, schedule, 2, rank, size)) for rank in range(size)]
        expected = iter(range(state.consumed_samples, sum(sizes)))
        for batch_size in sizes[begun:]:
            micro_batches = batch_size // (2 * size)
            read = sorted(itertools.chain(*(own.pop(0) for own in rows for _ in range(micro_batches))))
            assert read == list(itertools.islice(expected, batch_size))
        assert rows == [[]] * size


def test_evaluation_reads_the_first_samples():
    assert [list(evaluation_rows(8, 2, rank, 2)) for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_tokens_and_the_labels_after_them(num_workers):
    """A batch has tokens and labels shifted by one, in the order of the samples, with and without workers,
    and without using the random generator.
    """
    before = torch.get_rng_state()
    batches = Batches(Counting(), iter([[5, 9], [0, 2]]), torch.device("cpu"), num_workers)
    first, second = next(batches), next(batches)
    assert first.tokens.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert first.labels.tolist() == [[6, 7, 8, 9], [10, 11, 12, 13]]
    assert first[2:] == (None, None, None, 0, None, None, None, None) and first.bounds == {}
    assert second.tokens[0].tolist() == [0, 1, 2, 3]
    assert batches.wait_seconds > 0
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(StopIteration):
        next(batches)


def test_without_workers_nothing_is_read_ahead():
    dataset = Counting()
    batches = Batches(dataset, iter([[0], [1], [2]]), torch.device("cpu"))
    next(batches)
    assert dataset.read == [0]


class Mixed:
    """A dataset in which sample 0 is plain, sample 1 has two documents and a loss mask, and sample 2 comes
    from several datasets.
    """

    def sample(self, position: int) -> Sample:
        tokens = np.arange(5) + 10 * position
        plain = Sample(tokens[:-1], tokens[1:])
        if position == 1:
            return plain._replace(
                loss_mask=np.array([1, 0, 1, 1], np.float32),
                position_ids=np.array([0, 1, 2, 0]),
                cu_seqlens=np.array([0, 3, 4, 4, 4], np.int32),
                dataset=2,
            )
        if position == 2:
            return plain._replace(dataset_ids=np.array([0, 0, 3, 3], np.int16))
        return plain


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_some_samples_carry_all_of_a_batch_have(num_workers):
    """If only some samples of a batch have a field, it is filled in for the others: all tokens in the loss,
    ascending positions, one document.

    The lengths of documents are listed over the whole batch.
    """
    [batch] = Batches(Mixed(), iter([[0, 1, 2]]), torch.device("cpu"), num_workers, named=True)
    assert batch.loss_mask.tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 2, 3]]
    assert (batch.cu_seqlens.tolist(), batch.max_seqlen) == ([0, 4, 7, 8, 12], 4)
    assert batch.dataset_ids.tolist() == [[0] * 4, [2] * 4, [0, 0, 3, 3]]
    assert [tensor.dtype for tensor in batch if isinstance(tensor, torch.Tensor)] == [
        torch.int64,
        torch.int64,
        torch.float32,
        torch.int64,
        torch.int32,
        torch.int64,
    ]
    assert batch.bounds == {
        "position_ids": batch.position_ids,
        "cu_seqlens": batch.cu_seqlens,
        "max_seqlen": 4,
    }


def test_a_masked_run_has_a_mask_in_every_batch():
    """In a run with a loss mask, every batch has a mask, even if its samples have none, because the
    denominator of the step is the sum of all masks.
    """
    [batch] = Batches(Mixed(), iter([[0]]), torch.device("cpu"), masked=True)
    assert batch.loss_mask.tolist() == [[1, 1, 1, 1]]
    assert batch.cu_seqlens is None and batch.dataset_ids is None


def test_workers_end_with_the_block_though_somebody_holds_it():
    """Data workers end at the end of the `with` block, although DeepSpeed's pipeline engine still refers to
    their iterator; otherwise the rank could not exit.
    """
    with Batches(Counting(), iter([[5, 9], [0, 2]]), torch.device("cpu"), num_workers=1) as batches:
        next(batches)
        (worker,) = multiprocessing.active_children()
    worker.join(600)
    assert not worker.is_alive()


class Unreadable:
    """A dataset whose samples cannot be read."""

    def sample(self, position: int) -> Sample:
        raise ValueError(f"sample {position} is damaged")


def test_workers_end_with_the_block_though_a_traceback_holds_it():
    """Data workers end at the end of the `with` block, although a traceback still refers to them; otherwise
    the rank's error would be delayed.
    """
    with pytest.raises(ValueError, match="sample 5 is damaged") as error:  # noqa: SIM117
        with Batches(Unreadable(), iter([[5, 9], [0, 2]]), torch.device("cpu"), num_workers=1) as batches:
            (worker,) = multiprocessing.active_children()
            next(batches)
    assert not worker.is_alive() and error.traceback


def test_a_batch_that_does_not_fit_into_shared_memory_is_an_error_of_the_rank(monkeypatch):
    """A batch that is too large for shared memory is an error of the rank, and not a worker that dies without
    a message.
    """

    def share(tensor: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", share)
    with Batches(Counting(), iter([[5, 9]]), torch.device("cpu"), num_workers=1) as batches:  # noqa: SIM117
        with pytest.raises(RuntimeError, match="unable to allocate shared memory"):
            next(batches)
    [batch] = Batches(Counting(), iter([[5, 9]]), torch.device("cpu"))  # not without workers
    assert batch.tokens.shape == (2, 4)


# A torch loader whose construction failed prints an error when it is garbage-collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_were_started_are_ended_if_the_next_queue_does_not_fit(monkeypatch):
    """If the semaphore for the next queue does not fit in /dev/shm, the workers that were already started are
    ended.
    """
    make, queues = torch.multiprocessing.Queue, []

    def queue():
        queues.append(make())
        if len(queues) == 3:  # one queue for results, and one for each of two workers
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return queues[-1]

    monkeypatch.setattr(torch.multiprocessing, "Queue", queue)
    with pytest.raises(OSError, match="No space left on device"):
        Batches(Counting(), iter([[5, 9]]), torch.device("cpu"), num_workers=2)
    for worker in multiprocessing.active_children():
        worker.join(600)
    assert len(queues) == 3 and multiprocessing.active_children() == []
