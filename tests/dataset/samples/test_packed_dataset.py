"""Packed samples: tokens in the loss, separate examples, mixed sources, and positions that never change."""

import itertools
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.sections.sources import AlpacaSource
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.samples import index_files, packed_dataset
from nbtrain.dataset.samples.packed_dataset import build_split
from tests.dataset.indexed_writer import IndexedWriter

SEQ = 16
EOD = 0


@pytest.fixture
def write(workspace):
    """Return a function that writes {source: (weight, [(ids, mask), ...])} as a dataset with its manifest."""

    def make(sources, with_mask=True, name="tuning"):
        files_ = DatasetFiles.named(name)
        files_.directory.mkdir(parents=True)
        prefixes = [(files_.prefix, None), (files_.prefix.with_name(f"{files_.stem}_loss_mask"), "u1")]
        entries, described, first = {}, [], 0
        for column, (prefix, dtype) in enumerate(prefixes[: 1 + with_mask]):
            with IndexedWriter(prefix, None if dtype else 60_000, None, dtype=dtype) as writer:
                for _, examples in sources.values():
                    for example in examples:
                        writer.add_document(np.array(example[column]))
            entries |= writer.written.files
        for source, (weight, examples) in sources.items():
            described.append(
                {"kind": "alpaca", "name": source, "weight": weight, "documents": len(examples)}
                | {"sequences": [first, first + len(examples)]}
            )
            first += len(examples)
        manifest = DatasetManifest(
            "text", described, {"documents": first}, 60_000, "uint16", EOD, None, entries
        )
        return files_, manifest

    return make


def example(number: int, prompt: int, completion: int) -> tuple[list[int], list[int]]:
    """Return the ids number * 100 + position and EOD, with a mask that puts
    completion and EOD in the loss.
    """
    ids = [number * 100 + place for place in range(prompt + completion)] + [EOD]
    return ids, [0] * prompt + [1] * (completion + 1)


def examples(first: int, count: int) -> list[tuple[list[int], list[int]]]:
    return [example(number, 1 + number % 4, 1 + number % 6) for number in range(first, first + count)]


def config(split="1", seed=7, seq_length=SEQ, rule="megatron-deepspeed", sources=()):
    """Return the three sections of a run that build_split reads."""
    data = SimpleNamespace(split=split, split_rule=rule, seed=seed, sources=sources)
    return SimpleNamespace(data=data, model=SimpleNamespace(seq_length=seq_length))


def opened(written) -> OpenDataset:
    """Open a written dataset with its manifest, as prepare does."""
    files_, manifest = written
    indexed = IndexedDataset(files_.prefix)
    return OpenDataset(files_, manifest, indexed, files_.open_loss_mask(indexed))


def build(written, num_samples=1, split="train", **settings):
    return build_split(opened(written), config(**settings), split, num_samples, num_samples)


def segments(sample):
    """Return (tokens, labels, mask, positions) of each segment in cu_seqlens."""
    bounds = sorted(set(sample.cu_seqlens.tolist()))
    for start, stop in itertools.pairwise(bounds):
        cut = slice(start, stop)
        yield sample.tokens[cut], sample.labels[cut], sample.loss_mask[cut], sample.position_ids[cut]


def numbers_of(dataset, start, stop) -> Counter:
    """Count how often each example number occurs in samples [start, stop)."""
    return Counter(
        int(tokens[0]) // 100
        for position in range(start, stop)
        for tokens, _, mask, _ in segments(dataset.sample(position))
        if mask.any()
    )


def epochs_of(dataset, count):
    ends = dataset._pass(0).epoch_ends.tolist()
    return [numbers_of(dataset, first, last) for first, last in zip([0, *ends], ends[:count])]


def test_each_segment_is_one_example_and_learns_exactly_its_completion(write):
    """In a packed segment, labels follow tokens within the example, and positions start at 0.

    The mask covers exactly the completion.
    """
    whole = examples(1, 30)
    dataset = build(write({"a": (1.0, whole)}))
    seen = Counter()
    for position in range(dataset._pass(0).epoch_ends[0]):
        sample = dataset.sample(position)
        assert [value.dtype for value in sample[:5]] == [np.int64, np.int64, np.float32, np.int64, np.int32]
        assert [len(value) for value in sample[:5]] == [SEQ, SEQ, SEQ, SEQ, SEQ + 1]
        assert sample.cu_seqlens[0] == 0 and sample.cu_seqlens[-1] == SEQ
        assert (np.diff(sample.cu_seqlens) >= 0).all()
        for tokens, labels, mask, positions in segments(sample):
            assert positions.tolist() == list(range(len(tokens)))
            if not mask.any():
                assert set(tokens.tolist()) == set(labels.tolist()) == {EOD}
                assert sample.cu_seqlens.tolist().count(SEQ) >= 1
                continue
            number = int(tokens[0]) // 100
            ids, learnt = whole[number - 1]
            assert tokens.tolist() == ids[:-1]
            assert labels.tolist() == ids[1:]
            assert mask.tolist() == learnt[1:]
            seen[number] += 1
    assert seen == Counter(range(1, 31))
    assert dataset.fill > 0.9


def test_padding_is_a_segment_of_its_own(write):
    """Padding is a separate segment of EOD tokens, outside the loss and with its own positions."""
    sample = build(write({"a": (1.0, [example(1, 2, 3)])})).sample(0)
    assert sample.tokens.tolist() == [100, 101, 102, 103, 104] + [EOD] * 11
    assert sample.labels.tolist() == [101, 102, 103, 104, EOD] + [EOD] * 11
    assert sample.loss_mask.tolist() == [0, 1, 1, 1, 1] + [0] * 11
    assert sample.position_ids.tolist() == [*range(5), *range(11)]
    assert sample.cu_seqlens.tolist() == [0, 5] + [SEQ] * 15
    assert sample.dataset == 0 and sample.dataset_ids is None


def test_full_sequence_has_no_padding(write):
    """An example of seq_length + 1 tokens fills a sequence completely."""
    sample = build(write({"a": (1.0, [example(1, 6, 10)])})).sample(0)
    assert sample.cu_seqlens.tolist() == [0] + [SEQ] * SEQ
    assert sample.labels[-1] == EOD and sample.loss_mask[-1] == 1


def test_weights_decide_how_often_an_epoch_sees_an_example(write):
    """An epoch has each example once with weight 1, twice with 2, and half of the examples with 0.5.

    Ten epochs with weight 0.3 have each example three times.
    """
    dataset = build(
        write(
            {
                "once": (1.0, examples(1, 10)),
                "twice": (2.0, examples(11, 5)),
                "half": (0.5, examples(21, 10)),
                "third": (0.3, examples(31, 10)),
            }
        )
    )
    epochs = epochs_of(dataset, 10)
    for epoch in epochs:
        assert {number: epoch[number] for number in range(1, 11)} == dict.fromkeys(range(1, 11), 1)
        assert {number: epoch[number] for number in range(11, 16)} == dict.fromkeys(range(11, 16), 2)
        assert sum(epoch[number] for number in range(21, 31)) == 5
        assert sum(epoch[number] for number in range(31, 41)) == 3
    for even, odd in zip(epochs[::2], epochs[1::2]):
        assert sum((even + odd)[number] for number in range(21, 31)) == 10
        assert all((even + odd)[number] == 1 for number in range(21, 31))
    # Ten epochs of 0.3 are three rounds.
    together = sum(epochs, Counter())
    assert all(together[number] == 3 for number in range(31, 41))
    halves = {tuple(sorted(number for number in epoch if 21 <= number < 31)) for epoch in epochs}
    assert len(halves) > 2, "another round is another half"


def test_each_label_knows_its_dataset(write):
    """dataset_ids has the source of each label; sources with the same name share an id."""
    files_, manifest = write(
        {"a": (1.0, examples(1, 8)), "b": (1.0, examples(11, 8)), "c": (1.0, examples(21, 8))}
    )
    manifest.sources[2]["name"] = "a"
    dataset = build((files_, manifest))
    assert dataset.dataset_names == ("a", "b")
    mixed = 0
    for position in range(dataset._pass(0).epoch_ends[0]):
        sample = dataset.sample(position)
        assert sample.dataset_ids.dtype == np.int16 and len(sample.dataset_ids) == SEQ
        mixed += len(set(sample.dataset_ids[sample.loss_mask > 0].tolist())) == 2
        starts = sample.cu_seqlens.tolist()
        for place, value in enumerate(sample.dataset_ids.tolist()):
            start = max(begin for begin in starts if begin <= place)
            number = int(sample.tokens[start]) // 100
            assert value == (1 if 11 <= number < 21 else 0)
    assert mixed, "a sequence mixes sources"


def test_too_long_examples(write, caplog):
    """Long completions are truncated and counted; examples without a label in the loss are dropped."""
    written = write(
        {
            "a": (
                1.0,
                [example(1, 5, 40), example(2, 40, 5), example(3, 2, 2), ([400], [1]), ([500, 501], [1, 0])],
            )
        }
    )
    dataset = build(written)
    assert dataset.counts == {
        "examples": 2,
        "cut": 0,
        "truncated": 1,
        "nothing_learnt": 2,
        "too_short": 1,
    }
    assert caplog.messages == [
        "data/dataset/tuning/text_document: 1 example longer than 17 tokens (seq_length + "
        "1): truncated; 2 examples without a token in the loss among the first 17 tokens "
        "(seq_length + 1): skipped; 1 example with fewer than 2 tokens: skipped."
    ]
    first = next(
        part for position in range(2) for part in segments(dataset.sample(position)) if part[0][0] == 100
    )
    assert first[1].tolist() == list(range(101, 117))
    assert first[2].tolist() == [0] * 4 + [1] * 12
    caplog.clear()
    build(written)
    assert caplog.messages == [], "reported once, when the index is built"


def test_nothing_to_learn_is_an_error(write):
    """If every prompt is longer than the sequence, the error counts the examples
    and names model.seq_length.
    """
    with pytest.raises(DataError) as caught:
        build(write({"a": (1.0, [example(1, 40, 5)])}))
    assert str(caught.value) == (
        "data/dataset/tuning/text_document: the train split of a has no token in the loss: 1 example "
        "without a token in the loss among the first 17 tokens (seq_length + 1): skipped. Raise "
        "model.seq_length = 16, or fix the sources."
    )


def test_a_validation_split_without_a_token_in_the_loss_is_named(write):
    """A validation split without tokens in the loss is reported; the run can train without it."""
    both, halves = opened(write({"a": (1.0, [example(1, 3, 5), example(2, 40, 5)])})), config(split="50,50,0")
    assert build_split(both, halves, "train", 1, 1) is not None
    with pytest.raises(DataError, match=r"the valid split of a has no token in the loss: .*eval_iters: 0"):
        build_split(both, halves, "valid", 1, 1)


@pytest.mark.parametrize("with_mask", [False, True])
def test_text_is_learnt_everywhere_and_loses_no_label(write, with_mask):
    """Packed text is split without losing labels: each token but a document's first is a label once."""
    ids = [[*range(number * 100, number * 100 + 5 + 7 * number), EOD] for number in range(1, 9)]
    files_, manifest = write({"a": (1.0, [(one, [1] * len(one)) for one in ids])}, with_mask)
    dataset = build((files_, manifest))
    labels = Counter()
    for position in range(dataset._pass(0).epoch_ends[0]):
        sample = dataset.sample(position)
        labels.update(sample.labels[sample.loss_mask > 0].tolist())
    assert labels == Counter(token for one in ids for token in one[1:])
    assert dataset.counts["cut"] == 7 and dataset.counts["truncated"] == 0


def test_names_and_weights_are_the_runs(write):
    """A run may change names and weights of prepared sources, but not their number."""
    written = write({"a": (1.0, examples(1, 8)), "b": (1.0, examples(11, 8))})
    sources = [
        AlpacaSource(kind="alpaca", path="a", weight=2.0),
        AlpacaSource(kind="alpaca", path="b", name="other"),
    ]
    dataset = build(written, sources=sources)
    assert [(source.name, source.weight) for source in dataset.sources] == [("alpaca", 2.0), ("other", 1.0)]
    assert epochs_of(dataset, 1)[0] == Counter(
        {number: 2 if number < 11 else 1 for number in [*range(1, 9), *range(11, 19)]}
    )
    with pytest.raises(DataError) as caught:
        build(written, sources=sources[:1])
    assert str(caught.value) == (
        "data/dataset/tuning/manifest.json: the dataset was made from 2 sources, but "
        "data.sources has 1. Run `nbtrain prepare RUN.yaml` to prepare the dataset again."
    )


def test_a_dataset_without_places_is_one_source(write):
    """If the manifest does not say where sources begin, the dataset is one source with the dataset's name."""
    files_, manifest = write({"a": (1.0, examples(1, 8))}, with_mask=False)
    del manifest.sources[0]["sequences"]
    dataset = build((files_, manifest))
    assert dataset.dataset_names == ("tuning",)
    assert (dataset.num_documents, dataset.num_tokens) == (8, int(dataset.indexed.lengths.sum()))


def test_more_samples_never_change_earlier_positions(write, monkeypatch):
    """The order of samples does not depend on how many samples or passes are requested."""
    monkeypatch.setattr("nbtrain.dataset.samples.packed_index.LEAST_PASS_SAMPLES", 20)
    written = write({"a": (1.0, examples(1, 20)), "b": (0.5, examples(21, 9))})
    short = build(written, 10)
    longer = build(written, 300)
    assert len(short) >= 10 and len(longer) >= 300 and len(longer._ends) > 4
    for position in range(len(short)):
        assert all(
            np.array_equal(one, other) for one, other in zip(short.sample(position), longer.sample(position))
        )
    assert len(longer._open) == index_files.OPEN_PASSES, (
        "a long run would need a file descriptor for each array"
    )
    assert longer.num_samples == 300 and short.num_epochs < longer.num_epochs
    # Every epoch has a different order, across the ends of passes too.
    per_pass = longer.epochs_per_pass
    assert per_pass > 1
    bounds = [0, *longer._pass(0).epoch_ends, *(len(short) + longer._pass(1).epoch_ends)]
    orders = [
        tuple(tuple(sorted(numbers_of(longer, place, place + 1))) for place in range(start, stop))
        for start, stop in itertools.pairwise(bounds)
    ]
    assert len(orders) == len(set(orders)) == 2 * per_pass
    with pytest.raises(IndexError):
        short.sample(len(short))


def test_epochs_are_counted(write):
    """num_epochs is a whole number at the last sample of an epoch."""
    written = write({"a": (1.0, examples(1, 20))})
    per_epoch = int(build(written)._pass(0).epoch_ends[0])
    assert build(written, per_epoch).num_epochs == 1
    assert build(written, 2 * per_epoch).num_epochs == pytest.approx(2, abs=0.2)
    assert build(written, 1).num_epochs == pytest.approx(1 / per_epoch)


def test_seed_decides_the_order(write):
    """Another seed gives other bins and another order of samples."""
    written = write({"a": (1.0, examples(1, 20))})
    assert not np.array_equal(build(written).sample(0).tokens, build(written, seed=8).sample(0).tokens)


def test_cached_passes_are_read_not_built(write, monkeypatch):
    """The second call reads cached passes; arrays without a description are rebuilt byte for byte."""
    written = write({"a": (1.0, examples(1, 20))})
    build(written)
    cache = written[0].index_cache
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    assert len(before) == 8
    calls = []
    for name in ("build_pass", "build_pieces"):
        function = getattr(packed_dataset, name)
        monkeypatch.setattr(
            packed_dataset, name, lambda *given, f=function, n=name: calls.append(n) or f(*given)
        )
    build(written)
    assert calls == []
    for path in cache.glob("*.json"):
        path.unlink()
    for path in cache.glob("*items.npy"):
        path.write_bytes(b"torn")
    build(written)
    assert sorted(calls) == ["build_pass", "build_pieces"]
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before


def test_each_source_is_split_by_the_same_rule(write):
    """Validation has a part of every source, the splits share no example, and an empty split is None."""
    written = write({"a": (1.0, examples(1, 20)), "b": (1.0, examples(21, 10))})
    assert build(written, split="valid") is None, "data.split of 1 leaves all to train"

    def part(name):
        dataset = build_split(opened(written), config(split="70,20,10"), name, 1, 1)
        return {number for number in epochs_of(dataset, 1)[0]}, dataset.num_documents

    train, valid, test = part("train"), part("valid"), part("test")
    assert train == ({*range(1, 15), *range(21, 28)}, 21)
    assert valid == ({*range(15, 19), 28, 29}, 6)
    assert test == ({19, 20, 30}, 3)


def test_weights_that_leave_nothing(write):
    """Weights that give less than one example per epoch are refused, with the numbers."""
    with pytest.raises(DataError) as caught:
        build(write({"a": (0.05, examples(1, 4)), "b": (0.1, examples(5, 5))}))
    assert re.search(
        r"weights \[0\.05, 0\.1\] of sources with \[4, 5\] examples give 0\.7 examples", str(caught.value)
    )


def test_places_and_masks_of_another_dataset(write):
    """Source positions that do not cover the .idx, and a loss mask of other lengths, are refused."""
    files_, manifest = write({"a": (1.0, examples(1, 8))})
    manifest.sources[0]["sequences"] = [0, 7]
    with pytest.raises(DataError) as caught:
        build((files_, manifest))
    assert str(caught.value) == (
        "data/dataset/tuning/manifest.json: the sources hold 7 sequences, but "
        "data/dataset/tuning/text_document.idx has 8. Make the dataset again."
    )
    manifest.sources[0]["sequences"] = [1, 8]
    with pytest.raises(DataError, match=r"sources\[0\].sequences is \[1, 8\], but must begin at 0, where"):
        build((files_, manifest))
    manifest.sources[0]["sequences"] = [0, 8]
    with IndexedWriter(f"{files_.prefix}_loss_mask", None, None, dtype="u1") as writer:
        writer.add_document(np.ones(3))
    with pytest.raises(
        DataError,
        match=(
            r"text_document_loss_mask.idx: the mask has 1 sequences and 3 uint8 entries, but "
            r"the mask of"
        ),
    ):
        build((files_, manifest))


def test_mask_is_read_in_chunks(write, monkeypatch):
    """A loss mask that is read in several chunks gives the same segments."""
    written = write({"a": (1.0, [*examples(1, 30), example(40, 30, 30), example(41, 3, 30)])})
    whole = build(written)
    monkeypatch.setattr("nbtrain.dataset.samples.packed_index.SCAN_TOKENS", 10)
    for path in written[0].index_cache.iterdir():
        path.unlink()
    chunked = build(written)
    assert np.array_equal(whole.pieces.rows, chunked.pieces.rows)
    assert (
        whole.counts
        == chunked.counts
        == {"examples": 31, "cut": 0, "truncated": 1, "nothing_learnt": 1, "too_short": 0}
    )
