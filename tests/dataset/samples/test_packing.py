"""Packing: each item is in one bin, no bin is overfull, best fit follows its
definition, and few slots are empty.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.dataset.samples.packing import pack_best_fit
from tests.fuzzing import num_cases


def bins_of(packed) -> list[list[int]]:
    return [packed.items[start:stop].tolist() for start, stop in zip(packed.offsets[:-1], packed.offsets[1:])]


def best_fit_by_definition(lengths: list[int], capacity: int) -> list[int]:
    """Return the used space of each bin if each length in turn goes into the
    fullest bin with enough space.
    """
    used: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [number for number, room in enumerate(used) if room + length <= capacity]
        if fitting:
            used[max(fitting, key=lambda number: used[number])] += length
        else:
            used.append(length)
    return used


@st.composite
def cases(draw):
    capacity = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(1, capacity), max_size=60)), capacity


@given(cases())
@settings(deadline=None, max_examples=num_cases(200))
def test_every_item_is_in_one_bin_and_no_bin_is_too_full(case):
    """Each item is in exactly one bin, no bin is overfull or empty, and a bin's longest item is first."""
    lengths, capacity = case
    packed = pack_best_fit(np.array(lengths), capacity)
    assert sorted(packed.items.tolist()) == list(range(len(lengths)))
    for items in bins_of(packed):
        inside = [lengths[item] for item in items]
        assert inside and sum(inside) <= capacity
        assert inside == sorted(inside, reverse=True)


@pytest.mark.slow
@given(cases())
@settings(deadline=None, max_examples=num_cases(200))
def test_bins_are_as_full_as_best_fit_makes_them(case):
    """The optimizations for equal lengths and free spaces give the same bin sizes as the definition."""
    lengths, capacity = case
    packed = pack_best_fit(np.array(lengths), capacity)
    found = sorted(sum(lengths[item] for item in items) for items in bins_of(packed))
    assert found == sorted(best_fit_by_definition(lengths, capacity))


def test_lengths_of_natural_text_leave_a_thousandth_empty():
    """20,000 log-normal lengths in bins of 2,048 leave at most a thousandth empty, and the result is
    reproducible.
    """
    lengths = np.clip(np.random.RandomState(0).lognormal(5.5, 1.0, 20_000), 1, 2048).astype(np.int64)
    packed = pack_best_fit(lengths, 2048)
    assert lengths.sum() / (len(packed) * 2048) >= 0.999
    again = pack_best_fit(lengths, 2048)
    assert np.array_equal(packed.items, again.items) and np.array_equal(packed.offsets, again.offsets)


def test_nothing_and_what_does_not_fit():
    """No items give no bins; a length of 0 or above the capacity raises ValueError."""
    assert len(pack_best_fit(np.array([], np.int64), 8)) == 0
    for wrong in ([0, 1], [9]):
        with pytest.raises(ValueError, match=r"must be from 1 to the capacity, 8"):
            pack_best_fit(np.array(wrong), 8)
