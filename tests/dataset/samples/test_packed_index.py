"""Pieces and epochs agree with their definitions, for any lengths, masks and weights."""

import math
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.dataset.samples import packed_index
from nbtrain.dataset.samples.packed_index import (
    MixedSource,
    build_pass,
    build_pieces,
    epochs_per_pass,
    mixed_sources,
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
    """Return a stand-in for IndexedDataset that holds uint8 sequences."""
    lengths = np.array([len(row) for row in rows], "<i4")
    tokens = np.array([value for row in rows for value in row], np.uint8)
    pointers = np.cumsum(lengths, dtype=np.int64) - lengths
    return SimpleNamespace(lengths=lengths, pointers=pointers, tokens=tokens, dtype=np.dtype("u1"))


def labels_by_definition(rows) -> Counter:
    """Return (sequence, position) of the labels in the loss: all of a text, or those
    in the first SEQ + 1 tokens.
    """
    expected: Counter = Counter()
    for sequence, row in enumerate(rows):
        seen = row if all(row) else row[: SEQ + 1]
        expected.update((sequence, place) for place in range(1, len(seen)) if seen[place])
    return expected


@pytest.mark.slow
@given(masks, st.integers(0, 20), st.sampled_from([1, 7, 1 << 22]))
@settings(deadline=None, max_examples=num_cases(150))
def test_every_learnt_label_is_in_one_piece(rows, cut, scan_tokens):
    """For any order of sources and chunks, each label is in exactly one piece and
    each sequence counts once.
    """
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


@pytest.mark.slow
@given(weights, st.data())
@settings(deadline=None, max_examples=num_cases(60))
def test_epochs_take_each_source_in_rounds(given_weights, data):
    """After e epochs, a source with n examples and weight w has given ceil(e w n) examples.

    The counts of any two of its examples differ by at most one.
    """
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
    # Two passes are the same epochs as one pass.
    second = build_pass(pieces, given_weights, SEQ, seed, 3, 3)
    start = index.epoch_ends[2]
    assert np.array_equal(index.items[index.offsets[start] :], second.items)
    assert np.array_equal(index.offsets[start:] - index.offsets[start], second.offsets)


def test_pieces_and_counts_of_a_few_examples():
    """Text is split every SEQ labels, and examples are truncated after SEQ + 1 tokens."""
    rows = [
        [1] * 20,  # text: 19 slots in three pieces
        [1] * 9,  # exactly full
        [1] * 10,  # one slot more
        [0] * 5 + [1] * 10,  # truncated
        [0] * 8 + [1],  # its last label is the last one that fits
        [0] * 9 + [1],  # its only label in the loss does not fit
        [1] + [0] * 4,  # only the first token is in the loss
        [1],  # a single token
        [],
        [0, 1],
    ]
    mask = pair(rows)
    pieces = build_pieces(mask, mask, [MixedSource("a", 0, 4), MixedSource("b", 4, 10)], SEQ)
    assert pieces.rows.tolist() == [
        *([0, 0, 8], [0, 8, 8], [0, 16, 3]),
        [1, 0, 8],
        *([2, 0, 8], [2, 8, 1]),
        [3, 0, 8],
        [4, 0, 8],
        [9, 0, 1],
    ]
    assert pieces.source_offsets.tolist() == [0, 7, 9]
    assert dict(zip(packed_index.COUNTS, pieces.counts.tolist(), strict=True)) == {
        "examples": 6,
        "cut": 2,
        "truncated": 1,
        "nothing_learnt": 2,
        "too_short": 2,
    }
    assert pieces.rows.dtype == np.int32
    text = build_pieces(mask, None, [MixedSource("a", 0, 10)], SEQ)
    assert text.counts.tolist() == [8, 4, 0, 0, 2]


def test_pieces_of_long_datasets_are_int64():
    """Arrays are int64 once a sequence number or a token position needs more than 31 bits."""
    largest = np.iinfo(np.int32).max
    for last, dtype in ((largest, np.int32), (largest + 1, np.int64)):
        none = SimpleNamespace(lengths=np.empty(0, "<i4"))
        assert build_pieces(none, None, [MixedSource("a", last, last)], SEQ).rows.dtype == dtype


def manifest_of(*places) -> SimpleNamespace:
    return SimpleNamespace(sources=[{"kind": "chat", "name": "chat", "sequences": place} for place in places])


FILES = SimpleNamespace(directory=Path("mine"), manifest_json=Path("/m.json"), idx=Path("/x.idx"))


def configured(**settings) -> SimpleNamespace:
    return SimpleNamespace(model_dump=lambda: {"kind": "alpaca", **settings})


def test_sources_have_the_run_s_names_and_weights():
    """The run's names and weights take precedence, then the manifest's, then the kind and 1.0."""
    places = ([0, 3], [3, 3], [3, 7])
    mine = [configured(name="a", weight=0.5), configured(name=None, weight=2.0), configured(name=None)]
    assert mixed_sources(FILES, manifest_of(*places), mine, 7) == [
        MixedSource("a", 0, 3, 0.5),
        MixedSource("alpaca", 3, 3, 2.0),
        MixedSource("alpaca", 3, 7, 1.0),
    ]
    assert [source.name for source in mixed_sources(FILES, manifest_of(*places), [], 7)] == ["chat"] * 3
    for manifest in (manifest_of(), manifest_of([0, 3], None)):
        assert mixed_sources(FILES, manifest, [], 7) == [MixedSource("mine", 0, 7)]


@pytest.mark.parametrize(
    ("places", "num_configured", "message"),
    [
        (([0, 7],), 2, r"^/m\.json: the dataset was made from 1 source, but data\.sources has 2\."),
        (([1, 7],), 0, r"sources\[0\]\.sequences is \[1, 7\], but must begin at 0,"),
        (([0, 3], [4, 7]), 0, r"sources\[1\]\.sequences is \[4, 7\], but must begin at 3,"),
        (([0, 3], [3, 2]), 0, r"sources\[1\]\.sequences is \[3, 2\], but must begin at 3,"),
        (
            ([0, 8],),
            0,
            (
                r"sources\[0\]\.sequences is \[0, 8\], but must begin at 0, .* the 7 sequences of "
                r"/x\.idx\."
            ),
        ),
        (([0, 6],), 0, r"^/m\.json: the sources hold 6 sequences, but /x\.idx has 7\."),
    ],
)
def test_places_that_do_not_fit_are_refused(places, num_configured, message):
    """Sources must follow one another from 0 to the last sequence, and there must
    be as many as in the run.
    """
    mine = [configured() for _ in range(num_configured)]
    with pytest.raises(DataError, match=message):
        mixed_sources(FILES, manifest_of(*places), mine, 7)


def test_weights_must_leave_an_example_an_epoch():
    """Weights must give at least one example per epoch."""
    mask = pair([[1] * 9] * 10)
    pieces = build_pieces(mask, None, [MixedSource("a", 0, 4), MixedSource("b", 4, 10)], SEQ)
    assert epochs_per_pass(pieces, [0.25, 0.0], SEQ) == 1024
    with pytest.raises(DataError) as caught:
        epochs_per_pass(pieces, [0.1, 0.05], SEQ)
    assert re.search(
        r"weights \[0\.1, 0\.05\] of sources with \[4, 6\] examples give 0\.7 examples", str(caught.value)
    )


def test_few_examples_make_long_passes():
    """A pass has about 1,024 samples, or one epoch if that is longer."""
    mask = pair([[1] * 9] * 30)
    pieces = build_pieces(mask, None, [MixedSource("a", 0, 30)], SEQ)
    assert epochs_per_pass(pieces, [1.0], SEQ) == 35  # 30 samples each
    assert epochs_per_pass(pieces, [100.0], SEQ) == 1
    assert len(build_pass(pieces, [1.0], SEQ, 0, 0, 35)) == 30 * 35
    # The seeds of later epochs wrap around after NumPy's largest seed.
    assert len(build_pass(pieces, [1.0], SEQ, 2**32 - 1, 0, 2)) == 30 * 2


def test_the_order_of_a_pass_stays_what_it_was():
    """The order of epochs 1 to 3 with seed 7 never changes, because checkpoints store positions in it."""
    lengths, sources = (9, 5, 9, 4, 9, 3), [MixedSource("a", 0, 4), MixedSource("b", 4, 6)]
    pieces = build_pieces(pair([[1] * length for length in lengths]), None, sources, SEQ)
    index = build_pass(pieces, [1.0, 0.5], SEQ, 7, 1, 3)
    assert index.items.tolist() == [1, 3, 4, 2, 0, 5, 2, 1, 3, 0, 1, 3, 0, 4, 2]
    assert index.offsets.tolist() == [0, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 14, 15]
    assert index.epoch_ends.tolist() == [4, 8, 12]
    assert [array.dtype.name for array in index] == ["int32", "int64", "int64"]


def test_the_seed_decides_which_examples_an_epoch_takes():
    """With weight 0.5, the seed and the source determine which half of the examples an epoch has."""
    pieces = build_pieces(
        pair([[1] * 9] * 60), None, [MixedSource("a", 0, 30), MixedSource("b", 30, 60)], SEQ
    )
    taken = [set(build_pass(pieces, [0.5, 0.5], SEQ, seed, 0, 1).items.tolist()) for seed in (1, 2, 1)]
    assert taken[0] == taken[2] != taken[1]
    assert all(len(rows) == 30 for rows in taken)
    assert {row for row in taken[0] if row < 30} != {row - 30 for row in taken[0] if row >= 30}


def test_a_split_is_taken_from_each_source():
    """A split takes the same fraction of each source, and every sequence is in exactly one split."""
    sources = [MixedSource("a", 0, 100), MixedSource("b", 100, 107, 0.5), MixedSource("c", 107, 107)]
    parts = [of_split(sources, "70,20,10", "megatron-core", name) for name in ("train", "valid", "test")]
    assert [[(source.first, source.last) for source in part] for part in parts] == [
        [(0, 70), (100, 105), (107, 107)],
        [(70, 90), (105, 106), (107, 107)],
        [(90, 100), (106, 107), (107, 107)],
    ]
    assert {source.weight for part in parts for source in part if source.name == "b"} == {0.5}
