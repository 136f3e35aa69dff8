"""Pieces and epochs by their definitions, on any lengths, masks and weights."""

import math
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.dataset.samples import packed_index
from nbtrain.dataset.samples.packed_index import (
    MixedSource,
    build_pass,
    build_pieces,
    epochs_per_pass,
    of_split,
)
from tests.fuzzing import num_cases

SEQ = 8

masks = st.lists(
    st.one_of(
        st.lists(st.integers(0, 1), min_size=0, max_size=25),
        st.integers(1, 25).map(lambda length: [1] * length),
    ),
    min_size=1,
    max_size=20,
)


def pair(rows):
    """What IndexedDataset gives of uint8 sequences."""
    lengths = np.array([len(row) for row in rows], "<i4")
    tokens = np.array([value for row in rows for value in row], np.uint8)
    pointers = np.cumsum(lengths, dtype=np.int64) - lengths
    return SimpleNamespace(lengths=lengths, pointers=pointers, tokens=tokens, dtype=np.dtype("u1"))


def labels_by_definition(rows) -> Counter:
    """(sequence, place) of each learnt label: of all if all is learnt, else of the first SEQ + 1 tokens."""
    expected: Counter = Counter()
    for sequence, row in enumerate(rows):
        seen = row if all(row) else row[: SEQ + 1]
        expected.update((sequence, place) for place in range(1, len(seen)) if seen[place])
    return expected


@given(masks, st.integers(0, 20), st.sampled_from([1, 7, 1 << 22]))
@settings(deadline=None, max_examples=num_cases(150))
def test_every_learnt_label_is_in_one_piece(rows, cut, scan_tokens):
    """However the sources lie and the mask is read, no label is lost or doubled; a sequence counts once."""
    mask = pair(rows)
    cut = min(cut, len(rows))
    sources = [MixedSource("a", 0, cut), MixedSource("b", cut, len(rows))]
    before, packed_index.SCAN_TOKENS = packed_index.SCAN_TOKENS, scan_tokens
    try:
        pieces = build_pieces(mask, mask, sources, SEQ)
    finally:
        packed_index.SCAN_TOKENS = before
    found = Counter(
        (sequence, place)
        for sequence, first, slots in pieces.rows.tolist()
        for place in range(first + 1, first + slots + 1)
        if rows[sequence][place]
    )
    assert found == labels_by_definition(rows)
    if len(pieces.rows):
        assert pieces.rows[:, 2].min() >= 1 and pieces.rows[:, 2].max() <= SEQ
    counts = dict(zip(packed_index.COUNTS, pieces.counts.tolist(), strict=True))
    assert counts["examples"] + counts["nothing_learnt"] + counts["too_short"] == len(rows)
    of_source = [np.unique(part[:, 0]) for part in np.split(pieces.rows, pieces.source_offsets[1:-1])]
    assert (of_source[0] < cut).all() and (of_source[1] >= cut).all()


weights = st.lists(st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 3.7]), min_size=1, max_size=3)


@given(weights, st.data())
@settings(deadline=None, max_examples=num_cases(60))
def test_epochs_take_each_source_in_rounds(given_weights, data):
    """After e epochs a source of n and weight w has given ceil(e w n) examples, evenly to within one."""
    sizes = [data.draw(st.integers(1, 12)) for _ in given_weights]
    lengths = [data.draw(st.integers(2, SEQ + 1)) for _ in range(sum(sizes))]
    ends = np.cumsum(sizes).tolist()
    sources = [MixedSource(str(end), end - size, end) for end, size in zip(ends, sizes)]
    mask = pair([[1] * length for length in lengths])
    pieces = build_pieces(mask, None, sources, SEQ)
    num_epochs, seed = 6, data.draw(st.integers(0, 2**32 - 1))
    index = build_pass(pieces, given_weights, SEQ, seed, 0, num_epochs)
    slots = pieces.rows[:, 2]
    for start, stop in zip(index.offsets[:-1], index.offsets[1:]):
        assert 0 < slots[index.items[start:stop]].sum() <= SEQ
    for epoch in range(1, num_epochs + 1):
        taken = index.items[: index.offsets[index.epoch_ends[epoch - 1]]]
        for number, weight in enumerate(given_weights):
            first, last = pieces.source_offsets[number : number + 2]
            counts = np.bincount(taken, minlength=len(slots))[first:last]
            assert counts.sum() == math.ceil(epoch * Fraction(str(weight)) * sizes[number])
            assert counts.max() - counts.min() <= 1
    # Two passes are the same epochs as one.
    second = build_pass(pieces, given_weights, SEQ, seed, 3, 3)
    start = index.epoch_ends[2]
    assert np.array_equal(index.items[index.offsets[start] :], second.items)
    assert np.array_equal(index.offsets[start:] - index.offsets[start], second.offsets)


def test_few_examples_make_long_passes():
    """About 1,024 samples a pass, at least one epoch."""
    mask = pair([[1] * 9] * 30)
    pieces = build_pieces(mask, None, [MixedSource("a", 0, 30)], SEQ)
    assert epochs_per_pass(pieces, [1.0], SEQ) == 35  # 30 samples each
    assert epochs_per_pass(pieces, [100.0], SEQ) == 1
    assert len(build_pass(pieces, [1.0], SEQ, 0, 0, 35)) == 30 * 35


def test_a_split_is_taken_from_each_source():
    """By the same rule on its own size; none of the sequences is in two splits or in none."""
    sources = [MixedSource("a", 0, 100), MixedSource("b", 100, 107, 0.5), MixedSource("c", 107, 107)]
    parts = [of_split(sources, "70,20,10", "megatron-core", name) for name in ("train", "valid", "test")]
    assert [[(source.first, source.last) for source in part] for part in parts] == [
        [(0, 70), (100, 105), (107, 107)],
        [(70, 90), (105, 106), (107, 107)],
        [(90, 100), (106, 107), (107, 107)],
    ]
    assert {source.weight for part in parts for source in part if source.name == "b"} == {0.5}
