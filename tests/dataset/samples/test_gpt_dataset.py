"""Samples: their contents, which depend only on their position, and how splits are divided."""

import logging
import pickle

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.samples import gpt_dataset
from nbtrain.dataset.samples.build import build_datasets, refuse_without_loss
from nbtrain.dataset.samples.state import rank_positions
from tests.dataset.dataset_maker import stacked
from tests.dataset.indexed_writer import IndexedWriter


def all_samples(dataset):
    return np.stack([dataset[position] for position in range(len(dataset))])


def test_samples_are_the_shuffled_stream(make_config, write_dataset):
    """Samples start every seq_length tokens in the stream of shuffled documents and overlap by one token."""
    config = make_config()
    write_dataset()
    train = build_datasets(config).train
    index = train._pass(0)
    indexed = IndexedDataset(dataset_of(config).prefix)
    stream = np.concatenate([indexed[document] for document in index.document_index])
    for position in range(len(train)):
        sample = train[position]
        start = int(index.shuffle_index[position]) * 16
        assert sample.dtype == np.int64
        assert sample.tolist() == stream[start : start + 17].tolist()


def test_splits_do_not_meet(make_config, write_dataset):
    """The three splits are disjoint and ordered, and together they contain all documents."""
    config = make_config()
    write_dataset()
    datasets = build_datasets(config)
    bounds = [datasets.train.bounds, datasets.valid.bounds, datasets.test.bounds]
    assert [first for first, _ in bounds] == [0, *(last for _, last in bounds[:-1])]
    assert bounds[-1][1] == datasets.manifest.counts["documents"]
    assert (
        sum(split.num_tokens for split in (datasets.train, datasets.valid, datasets.test))
        == datasets.manifest.counts["tokens"]
    )


def test_steps_are_the_same_on_any_number_of_ranks(make_config, write_dataset):
    """Each step reads the same set of samples, whether through 1, 2 or 4 ranks."""
    config = make_config()
    write_dataset()
    datasets = build_datasets(config)
    state = datasets.state.advanced(8)
    sets = []
    for size, micro in ((1, 4), (2, 1), (4, 1), (2, 2)):
        read = [
            stacked(datasets.train, rank_positions(state.step_positions(4), micro, rank, size).ravel())
            for rank in range(size)
        ]
        sets.append(sorted(map(tuple, np.concatenate(read).tolist())))
    assert sets[0] == sets[1] == sets[2] == sets[3]
    assert len(sets[0]) == 4


def test_more_tokens_later_continue_the_order(make_config, write_dataset, caplog):
    """A run extended to more tokens keeps every earlier position and continues with new passes."""
    config = make_config()
    write_dataset()
    short = build_datasets(config)
    longer_config = make_config(batch={"train_tokens": 16 * 4 * 200})
    with caplog.at_level(logging.INFO, "nbtrain.dataset.samples"):
        longer = build_datasets(longer_config, short.state.index_samples).train
    assert [record.getMessage() for record in caplog.records] == [
        "the order of the training samples was fixed for 120 samples. The run continues to "
        "800 samples; earlier positions do not change."
    ]
    assert short.state.index_samples == 120
    assert len(longer) >= 800
    before = all_samples(short.train)
    after = all_samples(longer)
    assert np.array_equal(after[: len(before)], before)
    per_pass = longer.samples_per_pass
    assert not np.array_equal(after[per_pass : 2 * per_pass], after[:per_pass])
    assert longer._pass(1).document_index.tolist() != longer._pass(0).document_index.tolist()
    # A new run of that length has a different order: index_samples is part of it.
    assert build_datasets(longer_config).state.index_samples == 800


def test_evaluation_reads_the_same_samples_every_time(make_config, write_dataset):
    """Validation and test read eval_iters global batches, however long training is."""
    config = make_config()
    write_dataset()
    valid = build_datasets(config).valid
    other = build_datasets(make_config(batch={"train_tokens": 16 * 4 * 90})).valid
    assert valid.num_samples == other.num_samples == 8
    assert np.array_equal(all_samples(valid), all_samples(other))
    assert build_datasets(make_config(evaluation={"eval_iters": 0})).valid is None


def test_cached_indices_are_read_not_built(make_config, write_dataset, monkeypatch):
    """After prepare, a rank builds no index; another seed, split or length gets its own cache entry."""
    config = make_config()
    write_dataset()
    build_datasets(config)
    cache = dataset_of(config).index_cache
    before = {path.name for path in cache.iterdir()}
    built = []
    build = gpt_dataset.build_gpt_index
    monkeypatch.setattr(
        gpt_dataset, "build_gpt_index", lambda *arguments: built.append(arguments) or build(*arguments)
    )
    first = build_datasets(config)
    assert built == []
    assert {path.name for path in cache.iterdir()} == before
    for change in (
        {"data": {"seed": 5}},
        {"data": {"split": "60,20,20"}},
        {"model": {"seq_length": 8}},
        {"batch": {"train_tokens": 16 * 4 * 40}},
    ):
        built.clear()
        other = build_datasets(make_config(**change))
        assert built, change
        if "batch" not in change:
            assert not np.array_equal(other.train[0], first.train[0])


def test_index_without_its_description_does_not_count(make_config, write_dataset):
    """Arrays without a description, which a killed build leaves, are rebuilt with the same bytes."""
    config = make_config()
    write_dataset()
    build_datasets(config)
    cache = dataset_of(config).index_cache
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    for path in cache.glob("*.json"):
        path.unlink()
    for path in cache.glob("*sample_index.npy"):
        path.write_bytes(b"torn")
    build_datasets(config)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before


def test_data_that_is_not_prepared(make_config):
    """The error names the first missing file and the command that creates it."""
    with pytest.raises(DataError) as caught:
        build_datasets(make_config())
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: no such file. Make it with `nbtrain prepare RUN.yaml`."
    )


def test_vocabulary_that_does_not_fit(make_config, write_dataset):
    """A vocabulary that exceeds the stored dtype, or is smaller than the data's, is refused."""
    write_dataset()
    with pytest.raises(DataError) as caught:
        build_datasets(make_config(tokenizer={"vocab_size": 70_000}))
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: a vocabulary of 70,000 has ids up to 69,999, "
        "but uint16 holds at most 65,535. Encode the data again with dtype int32, or use a "
        "tokenizer with at most 65,536 entries."
    )
    with pytest.raises(DataError) as caught:
        build_datasets(make_config(tokenizer={"vocab_size": 280}))
    assert str(caught.value) == (
        "data/dataset/small/text_document.bin: token ids go up to 299 (a vocabulary of 300), but "
        "tokenizer.vocab_size = 280. Set tokenizer.vocab_size to at least 300."
    )


def test_files_that_are_not_the_manifests(make_config, write_dataset):
    """If another complete pair replaced the files under the same manifest, the sizes show it."""
    config = make_config()
    dataset = write_dataset()
    manifest = dataset.manifest()
    changed = manifest.to_dict()
    changed["files"]["text_document.bin"]["bytes"] += 2
    files.write_json(dataset.manifest_json, changed)
    size = manifest.files["text_document.bin"]["bytes"]
    with pytest.raises(DataError) as caught:
        build_datasets(config)
    assert str(caught.value) == (
        f"data/dataset/small/text_document.bin: the file has {size:,} bytes, but its manifest records "
        f"{size + 2:,} bytes. Restore the file, or run `nbtrain prepare RUN.yaml --force` to "
        "make the dataset again."
    )


def test_empty_splits(make_config, write_dataset, caplog):
    """No training documents is an error; an empty test split is omitted with a warning."""
    config = make_config(data={"split": "1000,50,1"})
    write_dataset()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert build_datasets(config).test is None
    assert [record.getMessage() for record in caplog.records] == [
        "data/dataset/small/text_document: data.split 1000,50,1 (megatron-deepspeed) of 120 "
        "documents leaves no document for test. The split is omitted; use more text or "
        "another data.split."
    ]
    with pytest.raises(DataError) as caught:
        build_datasets(make_config(data={"split": "0,1,0"}))
    assert str(caught.value) == (
        "data/dataset/small/text_document: data.split 0,1,0 (megatron-deepspeed) of 120 "
        "documents leaves no document for train. Use more text or another data.split."
    )


# --- one epoch at a time --------------------------------------------------------------------------


def test_per_epoch_goes_through_every_document_once_in_each_pass(make_config, write_dataset):
    """With per-epoch shuffling, each pass has the same documents in another order, from its own seed."""
    write_dataset()
    train = build_datasets(make_config(data={"shuffle": "per_epoch"})).train
    first, last = train.bounds
    assert train.samples_per_pass == (train.num_tokens - 1) // 16
    orders = [train._pass(number).document_index.tolist() for number in range(train.num_passes)]
    assert train.num_passes == -(-120 // train.samples_per_pass)
    train.num_passes = 2  # as with more tokens
    orders.append(train._pass(1).document_index.tolist())
    assert all(sorted(order) == list(range(first, last)) for order in orders)
    assert orders[0] != orders[-1]


def test_per_epoch_is_not_moved_by_more_tokens(make_config, write_dataset):
    """With per-epoch shuffling, more training tokens keep the earlier samples;
    Megatron's shuffling changes them.
    """
    write_dataset()
    short, long = (
        build_datasets(make_config(data={"shuffle": "per_epoch"}, batch={"train_tokens": 16 * 4 * steps}))
        for steps in (30, 300)
    )
    assert len(long.train) >= 1200 > len(short.train)
    assert np.array_equal(all_samples(long.train)[: len(short.train)], all_samples(short.train))
    assert short.state.shuffle == "per_epoch"
    tiled = [
        stacked(build_datasets(make_config(batch={"train_tokens": 16 * 4 * steps})).train, range(100))
        for steps in (30, 300)
    ]
    assert not np.array_equal(*tiled)


def test_per_epoch_passes_are_built_before_training_and_opened_when_reached(
    make_config, write_dataset, monkeypatch
):
    """prepare builds every pass, and a rank keeps at most two passes open."""
    write_dataset()
    config = make_config(data={"shuffle": "per_epoch"}, batch={"train_tokens": 16 * 4 * 300})
    build_datasets(config)
    monkeypatch.setattr(gpt_dataset, "build_gpt_index", None)
    train = build_datasets(config).train
    assert (train.num_passes, list(train._open)) == (8, [0])
    all_samples(train)
    assert list(train._open) == [6, 7]


def test_a_worker_process_maps_the_index_itself(make_config, write_dataset):
    """A pickled dataset contains no arrays, and its copy gives the same samples."""
    write_dataset()
    train = build_datasets(make_config()).train
    content = pickle.dumps(train)
    assert len(content) < 3000
    assert np.array_equal(all_samples(pickle.loads(content)), all_samples(train))


def test_resume_reads_the_same_samples_on_other_ranks(make_config, write_dataset):
    """Resuming on 4 ranks after three steps reads the same samples as 1 rank, past
    an epoch's end and a skip.
    """
    write_dataset()
    config = make_config(data={"shuffle": "per_epoch"}, batch={"train_tokens": 16 * 4 * 300})
    datasets = build_datasets(config)
    per_pass = datasets.train.samples_per_pass
    state = datasets.state.advanced(per_pass - 10).skipping(per_pass - 3, per_pass + 5)
    straight = [
        stacked(datasets.train, state.advanced(8 * step).step_positions(8)).tolist() for step in range(4)
    ]
    resumed = type(state).from_dict(state.advanced(16).to_dict())
    again = build_datasets(config, resumed.index_samples).train
    for step in (2, 3):
        positions = resumed.advanced(8 * (step - 2)).step_positions(8)
        read = [stacked(again, rank_positions(positions, 2, rank, 4).ravel()).tolist() for rank in range(4)]
        assert [row for part in read for row in part] == straight[step]


# --- what a sample carries ------------------------------------------------------------------------


def with_options(make_config, **options):
    return build_datasets(make_config(data=options)).train


def test_a_plain_sample_carries_nothing_else(make_config, write_dataset):
    """A plain sample has Megatron's tokens and labels; its other fields are None."""
    write_dataset()
    train = with_options(make_config)
    sample = train.sample(7)
    assert sample.tokens.tolist() == train[7][:-1].tolist()
    assert sample.labels.tolist() == train[7][1:].tolist()
    assert sample[2:] == (None, None, None, 0, None, None, None, None)


def test_bounds_of_documents_come_from_the_documents(make_config, write_dataset):
    """Document bounds come from the index, so an end-of-document token inside a
    document does not split it.
    """
    target = write_dataset()
    tokens = np.memmap(target.bin, np.uint16, "r+")
    tokens[::7] = 0
    tokens.flush()
    train = with_options(make_config, reset_position_ids=True, inter_document_masking=True)
    index, indexed = train._pass(0), IndexedDataset(target.prefix)
    lengths = np.asarray(indexed.lengths)[index.document_index]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    place = np.concatenate([np.arange(length) for length in lengths])
    for position in range(len(train)):
        sample = train.sample(position)
        start = int(index.shuffle_index[position]) * 16
        own, inside = owner[start : start + 16], place[start : start + 16]
        begins = np.flatnonzero(np.diff(own, prepend=-1))
        assert sample.cu_seqlens.dtype == np.int32 and sample.position_ids.dtype == np.int64
        assert sample.cu_seqlens.tolist() == [*begins, *[16] * (17 - len(begins))]
        # The document in which the sample begins counts from 0 too, as upstream's positions do.
        assert sample.position_ids.tolist() == [
            int(row - begins[begins <= row].max()) for row in range(len(inside))
        ]
        assert sample.loss_mask is None


def test_no_loss_where_the_input_is_eod(make_config, write_dataset):
    """With eod_mask_loss, the label that follows an end-of-document token is outside the loss."""
    write_dataset()
    train = with_options(make_config, eod_mask_loss=True)
    sample = next(sample for sample in map(train.sample, range(40)) if 0 in sample.tokens)
    assert sample.loss_mask.dtype == np.float32
    assert sample.loss_mask.tolist() == [float(token != 0) for token in sample.tokens]
    assert sample.position_ids is None and sample.cu_seqlens is None


def test_eod_mask_needs_to_know_the_token(make_config, write_dataset):
    """eod_mask_loss is refused for a user's dataset whose end-of-document token is not recorded."""
    write_dataset(eod_id=None)
    with pytest.raises(DataError) as caught:
        with_options(make_config, eod_mask_loss=True)
    assert str(caught.value) == (
        "default: data.eod_mask_loss needs the end-of-document token, but the manifest in "
        "data/dataset/small does not name this token. Set data.eod_mask_loss to false, or "
        "prepare the dataset."
    )


@pytest.mark.parametrize("number", [1, 255])
def test_a_loss_mask_beside_the_tokens_is_cut_as_they_are(make_config, write_dataset, number):
    """The loss mask is shifted like the labels: a sample's mask says which of its labels are in the loss.

    Any number but 0 puts a token in the loss, with a weight of 1.
    """
    target = write_dataset()
    indexed = IndexedDataset(target.prefix)
    with IndexedWriter(target.loss_mask.prefix, 256, None, dtype=np.dtype(np.uint8)) as writer:
        for sequence in range(len(indexed)):
            writer.add_document(np.where(indexed[sequence] % 3 > 0, number, 0).astype(np.uint8))
    train = build_datasets(make_config(data={"eod_mask_loss": True})).train
    for position in range(20):
        sample = train.sample(position)
        assert sample.loss_mask.tolist() == [
            float(label % 3 > 0 and token != 0) for token, label in zip(sample.tokens, sample.labels)
        ]


def test_a_run_whose_samples_have_no_token_in_the_loss_is_refused(make_config, write_dataset):
    """A run without any token in the loss is refused, also with packing: stream; one such token is enough."""
    write_dataset()
    config = make_config()
    target, indexed = dataset_of(config), IndexedDataset(dataset_of(config).prefix)

    def with_mask(learnt):
        for path in (target.loss_mask.bin, target.loss_mask.idx):
            path.unlink(missing_ok=True)
        with IndexedWriter(target.loss_mask.prefix, 2, None, dtype=np.dtype(np.uint8)) as writer:
            for document in range(indexed.num_documents):
                writer.add_document(np.full(len(indexed[document]), learnt, np.uint8))
        return build_datasets(config)

    refuse_without_loss(config, build_datasets(config))
    refuse_without_loss(config, with_mask(1))
    none = with_mask(0)
    samples = config.batch_schedule.samples_after(config.train_steps)
    with pytest.raises(
        DataError, match=rf"none of the {samples:,} samples .* has a token in the loss.*best_fit"
    ):
        refuse_without_loss(config, none)
    last = none.train.sample(samples - 1)
    none.train.sample = lambda at: last._replace(loss_mask=np.arange(16) == (3 if at == samples - 1 else 99))
    refuse_without_loss(config, none)
