"""Which samples a rank reads, and when."""

import itertools

import numpy as np
import pytest
import torch

from nbtrain.data.state import DataState
from nbtrain.train.batches import Batches, evaluation_rows, training_rows

STATE = DataState(
    seed=1, split="1,0,0", split_rule="megatron-core", dataset_sha256="0" * 64, index_samples=1000
)


class Counting:
    """Sample i is i, i + 1, ..., and every read is remembered."""

    def __init__(self):
        self.read = []

    def __getitem__(self, index: int) -> np.ndarray:
        self.read.append(index)
        return np.arange(index, index + 5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_steps_samples_do_not_depend_on_the_ranks(size):
    """Every step takes the next positions of the order, each once, whatever the number of ranks."""
    rows = [list(training_rows(STATE.advanced(16), 3, 8, 2, rank, size)) for rank in range(size)]
    per_step = 8 // (2 * size)
    for step in range(3):
        mine = [row for own in rows for row in own[step * per_step : (step + 1) * per_step]]
        assert sorted(itertools.chain(*mine)) == list(range(16 + 8 * step, 24 + 8 * step))


def test_skipped_positions_are_passed_over():
    rows = training_rows(STATE.skipping(3, 6), 2, 4, 2, 0, 1)
    assert list(itertools.chain(*rows)) == [0, 1, 2, 6, 7, 8, 9, 10]


def test_evaluation_reads_the_first_samples():
    assert [list(evaluation_rows(8, 2, rank, 2)) for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_tokens_and_the_labels_after_them(num_workers):
    """In the order of the rows, with and without a process that reads ahead; no generator is touched."""
    before = torch.get_rng_state()
    batches = Batches(Counting(), iter([[5, 9], [0, 2]]), torch.device("cpu"), num_workers)
    (tokens, labels), second = next(batches), next(batches)
    assert tokens.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert labels.tolist() == [[6, 7, 8, 9], [10, 11, 12, 13]]
    assert second[0][0].tolist() == [0, 1, 2, 3]
    assert batches.wait_seconds > 0
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(StopIteration):
        next(batches)


def test_without_workers_nothing_is_read_ahead():
    dataset = Counting()
    batches = Batches(dataset, iter([[0], [1], [2]]), torch.device("cpu"))
    next(batches)
    assert dataset.read == [0]
