"""The order of samples is the same for any number of ranks, can be resumed exactly, and can skip ranges."""

import json

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.dataset.samples.state import DataState, rank_positions


def state(**values):
    return DataState(
        **{
            "seed": 1,
            "split": "949,50,1",
            "split_rule": "megatron-core",
            "dataset_sha256": "ab",
            "index_samples": 1000,
            **values,
        }
    )


@pytest.mark.parametrize(("micro", "size"), [(1, 4), (2, 1), (2, 2), (4, 2), (8, 1), (1, 8)])
def test_the_set_of_a_step_does_not_depend_on_the_layout(micro, size):
    """For any layout, the ranks and accumulation steps together read the next 16 positions, each once."""
    positions = state(consumed_samples=32).step_positions(16)
    parts = [rank_positions(positions, micro, rank, size) for rank in range(size)]
    assert all(part.shape == (16 // (micro * size), micro) for part in parts)
    assert sorted(np.concatenate(parts, axis=None)) == list(range(32, 48))


def test_ranks_take_equal_parts_of_each_row():
    """Micro batch m is row m of micro_batch_size * size positions, and rank r reads the row's r-th part."""
    positions = np.arange(8)
    assert rank_positions(positions, 2, 0, 2).tolist() == [[0, 1], [4, 5]]
    assert rank_positions(positions, 2, 1, 2).tolist() == [[2, 3], [6, 7]]
    # One rank with twice the micro batch has the same micro batches.
    assert rank_positions(positions, 4, 0, 1).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_resume_goes_on_where_it_stopped():
    """The state after k steps, stored as JSON, gives the positions of the steps that follow."""
    fresh = state(skipped_sample_ranges=((5, 9), (20, 21)))
    straight, current = [], fresh
    for _ in range(6):
        straight += current.step_positions(7).tolist()
        current = current.advanced(7)
    resumed = DataState.from_dict(json.loads(json.dumps(fresh.advanced(21).to_dict())))
    assert resumed.step_positions(21).tolist() == straight[21:]
    expected = [position for position in range(100) if not (5 <= position < 9 or position == 20)]
    assert straight == expected[:42]


def test_skipped_ranges_against_the_plain_definition():
    """Positions are 0, 1, 2, ... without the skipped ranges, even if ranges touch or begin at 0."""
    for ranges in [((0, 3),), ((0, 1), (1, 4)), ((2, 5), (6, 7), (7, 9)), ()]:
        left = [position for position in range(40) if not any(a <= position < b for a, b in ranges)]
        assert state(skipped_sample_ranges=ranges).step_positions(30).tolist() == left[:30]


def test_skipping_what_lies_behind_is_refused():
    """Only positions that have not been read can be skipped, because others would
    shift the samples already read.
    """
    current = state(consumed_samples=10)
    assert current.skipping(12, 20).skipping(10, 11).step_positions(3).tolist() == [11, 20, 21]
    with pytest.raises(DataError) as caught:
        current.skipping(9, 12)
    assert str(caught.value) == (
        "positions [9, 12) cannot be skipped, because the run is already at position 10. "
        "Resume from a checkpoint before these positions."
    )


@pytest.mark.parametrize("ranges", [((5, 5),), ((7, 3),), ((4, 8), (6, 9)), ((9, 10), (1, 2)), ((-1, 2),)])
def test_ranges_must_be_ascending_and_apart(ranges):
    """Ranges that are empty, backward, overlapping, unsorted or negative are refused."""
    with pytest.raises(
        DataError, match=r"must be non-empty \[first, last\) pairs in ascending order that do not overlap"
    ):
        state(skipped_sample_ranges=ranges)


def test_a_step_that_does_not_divide():
    """A batch that cannot be divided among the layout's ranks is refused, with the numbers."""
    with pytest.raises(DataError) as caught:
        rank_positions(np.arange(10), 4, 0, 2)
    assert str(caught.value) == (
        "a step has 10 samples, but their number must be a multiple of micro_batch_size(4) * "
        "data_parallel_size(2) = 8."
    )


def test_a_state_is_read_back_whole():
    """Every setting is read from the checkpoint; a missing setting is an error instead of a default."""
    other = state(shuffle="per_epoch", packing="best_fit")
    value = json.loads(json.dumps(other.to_dict()))
    assert DataState.from_dict(value) == other
    for key in value:
        with pytest.raises(KeyError, match=key):
            DataState.from_dict({name: value[name] for name in value if name != key})
