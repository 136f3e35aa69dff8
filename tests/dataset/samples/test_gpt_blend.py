"""Blends: the dataset of each sample, sizes by both rules, and datasets that cannot be combined."""

import math
import shutil

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.samples import gpt_blend, gpt_dataset
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.dataset.samples.gpt_blend import blend_sizes, fill_blend_index
from nbtrain.dataset.samples.state import DataState, rank_positions
from tests.dataset.dataset_maker import stacked


def upstream(weights, size):
    """Choose the dataset of each sample as build_blending_indices does in both upstream projects."""
    datasets, samples, counts = [], [], [0] * len(weights)
    for k in range(size):
        errors = [weight * max(float(k), 1.0) - count for weight, count in zip(weights, counts)]
        best = errors.index(max(errors))
        datasets.append(best)
        samples.append(counts[best])
        counts[best] += 1
    return datasets, samples, counts


WEIGHTS = {
    "two": [0.3, 0.7],
    "equal": [1.0, 1.0, 1.0],
    "one": [2.0],
    "unequal": [1.0, 1e-3, 0.25],
    "rare": [1.0, 1e-5, 3.0],
    "many": [1.0 + (7 * number) % 11 for number in range(40)],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_stretches_walked_side_by_side_are_the_plain_loop(name, monkeypatch):
    """The blend index equals upstream's plain loop, for any division into blocks and stretches."""
    weights = blend_sizes("megatron-core", WEIGHTS[name], 1).weights
    size = 3001
    expected = upstream(weights, size)
    for block, stretches in ((4096, 8), (500, 4), (1 << 22, 512), (4096, 50)):
        monkeypatch.setattr(gpt_blend, "BLOCK_SAMPLES", block)
        monkeypatch.setattr(gpt_blend, "NUM_STRETCHES", stretches)
        datasets, samples = np.empty(size, np.int16), np.empty(size, np.int64)
        counts = fill_blend_index(datasets, samples, weights)
        assert (datasets.tolist(), samples.tolist(), counts.tolist()) == expected


def test_sizes_of_both_rules():
    """For 1,000 samples with weights 1 : 2 : 4, both rules give the sizes of their upstream projects."""
    sizes = blend_sizes("megatron-deepspeed", [1, 2, 4], 1000)
    shares = [1 / 7, 2 / 7, 4 / 7]
    assert sizes.samples == [math.ceil(1000 * share * 1.005) for share in shares] == [144, 288, 575]
    assert sizes.blend == 144 + 288 + 575
    sizes = blend_sizes("megatron-core", [1, 2, 4], 1000)
    assert sizes.samples == [math.ceil(count * 1.005) for count in (143, 286, 572)] == [144, 288, 575]
    assert sizes.blend == 143 + 286 + 572
    assert sum(sizes.weights) == pytest.approx(1)


@pytest.mark.parametrize(("rule", "most"), [("megatron-deepspeed", 254), ("megatron-core", 32_766)])
def test_more_datasets_than_the_index_can_number(rule, most):
    """A blend of more datasets than upstream's uint8 or int16 index can number is refused."""
    assert len(blend_sizes(rule, [1.0] * most, 10).weights) == most
    with pytest.raises(DataError) as caught:
        blend_sizes(rule, [1.0] * (most + 1), 10)
    assert str(caught.value) == (
        f"data.blend: the blend has {most + 1:,} datasets, but {rule} (data.split_rule) "
        f"blends at most {most:,}. Remove datasets."
    )


@pytest.fixture
def blend(make_config, write_dataset):
    """Return a function that makes a RunConfig over datasets a (weight 1) and b
    (weight 3) from changed sections.
    """
    write_dataset("a", documents=150, seed=1)
    write_dataset("b", documents=90, seed=2)

    def make(**sections):
        data = {
            "name": "mixed",
            "sources": [],
            "blend": [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 3.0}],
            **sections.pop("data", {}),
        }
        return make_config(data=data, **sections)

    return make


@pytest.mark.parametrize("rule", ["megatron-deepspeed", "megatron-core"])
def test_samples_of_a_blend_are_those_of_its_datasets(blend, make_config, rule):
    """Each position of a blend is a sample of the dataset that the rule selects, in
    that dataset's own order.
    """
    config = blend(data={"split_rule": rule})
    datasets = build_datasets(config)
    sizes = blend_sizes(rule, [1.0, 3.0], 120)
    numbers, places, _ = upstream(sizes.weights, sizes.blend)
    assert len(datasets.train) == sizes.blend
    assert datasets.train.index.dataset_index.dtype == (np.int16 if rule == "megatron-core" else np.uint8)
    own = [
        build_datasets(make_config(data={"name": name, "split_rule": rule}), asked).train
        for name, asked in zip("ab", sizes.samples)
    ]
    for position in range(len(datasets.train)):
        expected = own[numbers[position]][places[position]]
        sample = datasets.train.sample(position)
        assert np.array_equal(datasets.train[position], expected)
        assert np.array_equal(sample.tokens, expected[:-1])
        assert sample.dataset == numbers[position]
    assert datasets.names == ("a", "b")
    assert numbers.count(1) == pytest.approx(3 * numbers.count(0), abs=3)


@pytest.mark.parametrize("shuffle", ["megatron", "per_epoch"])
def test_more_tokens_later_continue_a_blend(blend, shuffle):
    """If a run is extended to more tokens, every earlier position stays the same
    and the mixture continues.
    """
    short = build_datasets(blend(data={"shuffle": shuffle}))
    config = blend(data={"shuffle": shuffle}, batch={"train_tokens": 16 * 4 * 400})
    longer = build_datasets(config, short.state.index_samples).train
    before = len(short.train)
    assert len(longer) == 1600
    assert np.array_equal(stacked(longer, range(before)), stacked(short.train, range(before)))
    counts = np.bincount(longer.index.dataset_index)
    assert counts.tolist() == [400, 1200]
    assert stacked(longer, range(before, 1600)).shape == (1600 - before, 17)
    fresh = build_datasets(config).train
    same = np.array_equal(stacked(fresh, range(before)), stacked(short.train, range(before)))
    assert same == (shuffle == "per_epoch")


def test_a_blend_resumes_on_other_ranks_with_a_skipped_range(blend):
    """A blend that resumes after the third step, with a skipped range, is read the
    same by 1 and by 4 ranks.
    """
    datasets = build_datasets(blend())
    state = datasets.state.advanced(24).skipping(30, 37)
    resumed = DataState.from_dict(state.to_dict())
    positions = resumed.step_positions(8)
    assert positions.tolist() == [24, 25, 26, 27, 28, 29, 37, 38]
    read = [
        stacked(datasets.train, rank_positions(positions, 2, rank, 4).ravel()).tolist() for rank in range(4)
    ]
    assert [row for part in read for row in part] == stacked(datasets.train, positions).tolist()


def test_a_rank_builds_nothing_after_prepare(blend, monkeypatch):
    """After prepare, a rank builds no index; the blend and each dataset have their
    index in their own folder.
    """
    build_datasets(blend())
    monkeypatch.setattr(gpt_dataset, "build_gpt_index", None)
    monkeypatch.setattr(gpt_blend, "fill_blend_index", None)
    config = blend()
    build_datasets(config)
    kept = {path.name.partition("-")[2] for path in dataset_of(config).index_cache.glob("*.npy")}
    assert kept == {"dataset_index.npy", "dataset_sample_index.npy"}
    assert len(list(DatasetFiles.named("a").index_cache.glob("*-shuffle_index.npy"))) == 3


def test_pairs_by_prefix(blend, workspace):
    """A user's .bin/.idx without a manifest gives the same samples, and no file is written next to it."""
    expected = build_datasets(blend()).train
    pair = workspace / "brought"
    pair.mkdir()
    for ending in (".bin", ".idx"):
        shutil.copy(DatasetFiles.named("b").prefix.with_suffix(ending), pair / f"b_document{ending}")
    entries = [{"name": "a", "weight": 1.0}, {"prefix": "brought/b_document", "weight": 3.0}]
    config = blend(data={"blend": entries, "eod_mask_loss": True})
    datasets = build_datasets(config)
    assert np.array_equal(
        stacked(datasets.train, range(len(expected))), stacked(expected, range(len(expected)))
    )
    assert datasets.names == ("a", "brought")
    # The other dataset has the same tokenizer and records how a document ends.
    sample = next(
        sample for sample in map(datasets.train.sample, range(40)) if sample.dataset and 0 in sample.tokens
    )
    assert sample.loss_mask.tolist() == (sample.tokens != 0).astype(float).tolist()
    assert sorted(path.name for path in pair.iterdir()) == ["b_document.bin", "b_document.idx"]
    assert datasets.manifest.counts["documents"] == 240


def test_the_hash_of_a_blend(blend):
    """The hash depends on weights, order and datasets, but not on the name that the run gives the blend."""
    hashes = [
        build_datasets(blend(data=change)).state.dataset_sha256
        for change in (
            {},
            {"blend": [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 2.0}]},
            {"blend": [{"name": "b", "weight": 3.0}, {"name": "a", "weight": 1.0}]},
            {"blend": [{"name": "a", "weight": 1.0}, {"name": "a", "weight": 3.0}]},
        )
    ]
    assert len(set(hashes)) == 4
    assert build_datasets(blend(data={"name": "other"})).state.dataset_sha256 == hashes[0]
    assert dataset_of(blend()).manifest().dataset_sha256 == hashes[0]


def test_a_dataset_twice_keeps_two_names(blend):
    """Two entries whose folders have the same name get different names, so that each has its own loss."""
    entries = [{"name": "a", "weight": 1.0}, {"name": "a", "weight": 3.0}]
    assert build_datasets(blend(data={"blend": entries})).names == ("a", "a#2")


def test_an_entry_that_is_not_there(blend):
    """If an entry's file is missing, the error names it, and the blend has no
    manifest until all files exist.
    """
    config = blend(data={"blend": [{"name": "a", "weight": 1.0}, {"name": "c", "weight": 1.0}]})
    assert dataset_of(config).manifest() is None
    with pytest.raises(DataError, match=r"^data/dataset/c/text_document.bin: no such file"):
        dataset_of(config).require(300)
    config = blend(data={"blend": [{"name": "a", "weight": 1.0}, {"prefix": "x/y_document", "weight": 1.0}]})
    assert dataset_of(config).manifest() is None
    with pytest.raises(DataError, match=r"^x/y_document.idx: no such file"):
        dataset_of(config).require(300)


def test_vocabularies_and_tokenizers_must_go_together(blend, write_dataset):
    """Datasets with different tokenizers are refused, and so is a vocabulary larger than the model's."""
    write_dataset("other", tokenizer_sha256="1" * 64)
    config = blend(data={"blend": [{"name": "a", "weight": 1.0}, {"name": "other", "weight": 1.0}]})
    with pytest.raises(DataError) as caught:
        build_datasets(config)
    assert str(caught.value) == (
        "default: data.blend: the datasets were encoded with different tokenizers (sha256: a "
        "000000000000, other 111111111111), so the same id would mean different text. Encode "
        "them with one tokenizer."
    )
    write_dataset("large", vocab_size=301)
    config = blend(data={"blend": [{"name": "a", "weight": 1.0}, {"name": "large", "weight": 1.0}]})
    with pytest.raises(DataError, match=r"^data/dataset/large/text_document.bin: token ids go up to 300"):
        build_datasets(config)


def test_a_split_without_documents_of_one_dataset(blend, write_dataset, caplog):
    """If a dataset has no documents for a split, that is an error for training and
    a warning for validation.
    """
    write_dataset("short", documents=3)
    entries = [{"name": "a", "weight": 1.0}, {"name": "short", "weight": 1.0}]
    datasets = build_datasets(blend(data={"blend": entries, "split": "90,8,2"}))
    assert [record.getMessage() for record in caplog.records] == [
        "default: data.blend: data.split 90,8,2 (megatron-deepspeed) leaves no document "
        "of short for valid. The valid split blends the other datasets.",
        "default: data.blend: data.split 90,8,2 (megatron-deepspeed) leaves no document "
        "of short for test. The test split blends the other datasets.",
    ]
    assert {datasets.valid.sample(position).dataset for position in range(8)} == {0}
    with pytest.raises(DataError) as caught:
        build_datasets(blend(data={"blend": entries, "split": "5,85,10"}))
    assert str(caught.value) == (
        "default: data.blend: data.split 5,85,10 (megatron-deepspeed) leaves no document of "
        "short for train. Use more text, or remove the dataset from the blend."
    )


def test_a_blend_that_takes_more_than_there_is(blend, write_dataset):
    """Many datasets of tiny weight enlarge the blend until the large dataset has
    too few samples: an error.
    """
    for number in range(30):
        write_dataset(f"tiny-{number}", documents=4)
    write_dataset("large", documents=2, tokens=(100, 101))
    entries = [{"name": "large", "weight": 1.0}] + [
        {"name": f"tiny-{number}", "weight": 1e-4} for number in range(30)
    ]
    sections = {"batch": {"train_tokens": 16 * 4}, "evaluation": {"eval_iters": 0}}
    core = {"blend": entries, "split": "100,0,0", "split_rule": "megatron-core"}
    with pytest.raises(DataError) as caught:
        build_datasets(blend(data=core, **sections))
    assert str(caught.value) == (
        "default: data.blend: the train blend needs 33 samples of large, whose index was built for "
        "5 samples and holds 12 in whole epochs; megatron-core rejects such a blend. Request "
        "more samples, or set data.split_rule: megatron-deepspeed, which continues past the "
        "last epoch."
    )
    read_on = build_datasets(blend(data={**core, "split_rule": "megatron-deepspeed"}, **sections)).train
    assert stacked(read_on, range(len(read_on))).shape == (len(read_on), 17)
