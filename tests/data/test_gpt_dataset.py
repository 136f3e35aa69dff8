"""Samples: what they hold, that they depend on nothing but their position, and how the splits are cut."""

import logging

import numpy as np
import pytest

from nbtrain import files
from nbtrain.data import gpt_dataset
from nbtrain.data.dataset_files import DatasetFiles
from nbtrain.data.indexed import IndexedDataset
from nbtrain.data.prepare import prepare
from nbtrain.data.state import rank_positions
from nbtrain.errors import DataError


def all_samples(dataset):
    return np.stack([dataset[position] for position in range(len(dataset))])


def test_samples_are_the_shuffled_stream(make_config):
    """In shuffle order, samples are seq_length apart in the stream of shuffled documents and overlap by one token."""
    config = make_config()
    prepare(config)
    train = gpt_dataset.build(config).train
    index = train._passes[0]
    indexed = IndexedDataset(DatasetFiles.of(config).prefix)
    stream = np.concatenate([indexed[document] for document in index.document_index])
    for position in range(len(train)):
        sample = train[position]
        start = int(index.shuffle_index[position]) * 16
        assert sample.dtype == np.int64
        assert sample.tolist() == stream[start : start + 17].tolist()


def test_splits_do_not_meet(make_config):
    """Documents of the three splits are apart, in order, and together all there are."""
    config = make_config()
    prepare(config)
    datasets = gpt_dataset.build(config)
    bounds = [datasets.train.bounds, datasets.valid.bounds, datasets.test.bounds]
    assert [first for first, _ in bounds] == [0, *(last for _, last in bounds[:-1])]
    assert bounds[-1][1] == datasets.manifest.counts["documents"]
    assert (
        sum(split.num_tokens for split in (datasets.train, datasets.valid, datasets.test))
        == datasets.manifest.counts["tokens"]
    )


def test_steps_are_the_same_on_any_number_of_ranks(make_config):
    """The samples of each step, read through 1, 2 and 4 ranks, are the same set."""
    config = make_config()
    prepare(config)
    datasets = gpt_dataset.build(config)
    state = datasets.state.advanced(8)
    sets = []
    for size, micro in ((1, 4), (2, 1), (4, 1), (2, 2)):
        read = [
            datasets.train.batch(rank_positions(state.step_positions(4), micro, rank, size).ravel())
            for rank in range(size)
        ]
        sets.append(sorted(map(tuple, np.concatenate(read).tolist())))
    assert sets[0] == sets[1] == sets[2] == sets[3]
    assert len(sets[0]) == 4


def test_more_tokens_later_continue_the_order(make_config):
    """A resumed run with more tokens keeps every earlier position, and goes on in passes with other seeds."""
    config = make_config()
    prepare(config)
    short = gpt_dataset.build(config)
    longer_config = make_config(batch={"train_tokens": 16 * 4 * 200})
    longer = gpt_dataset.build(longer_config, short.state.index_samples).train
    assert short.state.index_samples == 120
    assert len(longer) >= 800
    before = all_samples(short.train)
    after = all_samples(longer)
    assert np.array_equal(after[: len(before)], before)
    per_pass = longer.samples_per_pass
    assert not np.array_equal(after[per_pass : 2 * per_pass], after[:per_pass])
    assert longer._passes[1].document_index.tolist() != longer._passes[0].document_index.tolist()
    # A fresh run of that length has an order of its own: index_samples is part of it.
    assert gpt_dataset.build(longer_config).state.index_samples == 800


def test_evaluation_reads_the_same_samples_every_time(make_config):
    """Validation and test hold eval_iters global batches whatever the length of training."""
    config = make_config()
    prepare(config)
    valid = gpt_dataset.build(config).valid
    other = gpt_dataset.build(make_config(batch={"train_tokens": 16 * 4 * 90})).valid
    assert valid.num_samples == other.num_samples == 8
    assert np.array_equal(all_samples(valid), all_samples(other))
    assert gpt_dataset.build(make_config(evaluation={"eval_iters": 0})).valid is None


def test_cached_indices_are_read_not_built(make_config, monkeypatch):
    """After prepare, a rank builds nothing; another seed, split or length has a cache entry of its own."""
    config = make_config()
    prepare(config)
    cache = DatasetFiles.of(config).index_cache
    before = {path.name for path in cache.iterdir()}
    built = []
    build = gpt_dataset.build_gpt_index
    monkeypatch.setattr(
        gpt_dataset, "build_gpt_index", lambda *arguments: built.append(arguments) or build(*arguments)
    )
    first = gpt_dataset.build(config)
    assert built == []
    assert {path.name for path in cache.iterdir()} == before
    for change in (
        {"data": {"seed": 5}},
        {"data": {"split": "60,20,20"}},
        {"model": {"seq_length": 8}},
        {"batch": {"train_tokens": 16 * 4 * 40}},
    ):
        built.clear()
        other = gpt_dataset.build(make_config(**change))
        assert built, change
        if "batch" not in change:
            assert not np.array_equal(other.train[0], first.train[0])


def test_index_without_its_description_does_not_count(make_config):
    """Arrays that a killed build left are built again, and are the same bytes."""
    config = make_config()
    prepare(config)
    cache = DatasetFiles.of(config).index_cache
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    for path in cache.glob("*.json"):
        path.unlink()
    for path in cache.glob("*sample_index.npy"):
        path.write_bytes(b"torn")
    gpt_dataset.build(config)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before


def test_data_that_is_not_prepared(make_config):
    """The first missing file is named with the command that makes it."""
    with pytest.raises(DataError) as caught:
        gpt_dataset.build(make_config())
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: no such file. Make it with `nbtrain prepare RUN.yaml`."
    )


def test_vocabulary_that_does_not_fit(make_config):
    """A run whose vocabulary is larger than the stored dtype, or smaller than the data's, is refused."""
    config = make_config()
    prepare(config)
    with pytest.raises(DataError) as caught:
        gpt_dataset.build(make_config(tokenizer={"vocab_size": 70_000}))
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: a vocabulary of 70,000 has ids up to 69,999, but uint16 holds at most "
        "65,535. Encode again with dtype int32, or use a tokenizer of at most 65,536 entries."
    )
    with pytest.raises(DataError) as caught:
        gpt_dataset.build(make_config(tokenizer={"vocab_size": 280}))
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: token ids go up to 299 (a vocabulary of 300), but tokenizer.vocab_size "
        "= 280. Set it to at least 300."
    )


def test_files_that_are_not_the_manifests(make_config):
    """A whole pair of other files under the manifest is noticed by its sizes."""
    config = make_config()
    manifest = prepare(config).manifest
    dataset = DatasetFiles.of(config)
    changed = manifest.to_dict()
    changed["files"]["text_document.bin"]["bytes"] += 2
    files.write_json(dataset.manifest_json, changed)
    size = manifest.files["text_document.bin"]["bytes"]
    with pytest.raises(DataError) as caught:
        gpt_dataset.build(config)
    assert str(caught.value) == (
        f"data/dataset/small/text_document.bin: has {size:,} bytes, its manifest says {size + 2:,}. Restore it, or "
        "make the dataset again: `nbtrain prepare RUN.yaml --force`."
    )


def test_empty_splits(make_config, caplog):
    """No document for training is an error; none for a wished test split is left out with a warning."""
    config = make_config(data={"split": "1000,50,1"})
    prepare(config)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert gpt_dataset.build(config).test is None
    assert [record.getMessage() for record in caplog.records] == [
        "data/dataset/small/text_document: split 1000,50,1 (megatron-deepspeed) of 120 documents leaves none for "
        "test. It is left out; use more text or another data.split."
    ]
    with pytest.raises(DataError) as caught:
        gpt_dataset.build(make_config(data={"split": "0,1,0"}))
    assert str(caught.value) == (
        "data/dataset/small/text_document: split 0,1,0 (megatron-deepspeed) of 120 documents leaves none for train. "
        "Use more text or another data.split."
    )
