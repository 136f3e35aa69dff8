"""Document, sample and shuffle index and the two split rules: golden arrays, a slow twin, and megatron-core itself."""

import warnings

import numpy as np
import pytest

from nbtrain.data.gpt_index import GPTIndex, build_gpt_index, epochs_needed, split_bounds, split_weights
from nbtrain.data.indexed_writer import IndexedWriter
from nbtrain.errors import ConfigError, DataError

LENGTHS = np.array([5, 3, 0, 9, 2, 7], np.int32)
GOLDEN_DOCUMENTS = [2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1]
GOLDEN_SAMPLES = [
    [0, 0],
    [2, 1],
    [2, 5],
    [3, 2],
    [4, 1],
    [5, 3],
    [5, 7],
    [6, 2],
    [7, 1],
    [8, 3],
    [8, 7],
    [10, 2],
    [10, 6],
]
GOLDEN_SHUFFLE = [1, 0, 3, 2, 5, 4, 8, 9, 7, 10, 11, 6]


def slow_sample_index(lengths, document_index, num_samples, seq_length):
    """Megatron's helpers.cpp, transcribed: walk the documents token by token."""
    rows, place, offset = [(0, 0)], 0, 0
    for _ in range(num_samples):
        left = seq_length + 1
        while left:
            length = lengths[document_index[place]] - offset
            left -= length
            if left <= 0:
                # The last token of a sample is the first of the next.
                offset += left + length - 1
                left = 0
            else:
                place, offset = place + 1, 0
        rows.append((place, offset))
    return np.array(rows)


def slow_index(lengths, first, last, seq_length, num_samples, seed):
    """The whole algorithm as upstream writes it, with loops."""
    tokens = int(lengths[first:last].sum())
    epochs, total = 1, tokens
    while (total - 1) // seq_length < num_samples:
        epochs, total = epochs + 1, total + tokens
    available = (total - 1) // seq_length
    generator = np.random.RandomState(seed)
    documents = list(range(first, last))
    before = ((epochs - 1) * tokens - 1) // seq_length
    separate = epochs > 1 and num_samples - before < int(0.80 * ((tokens - 1) // seq_length))

    def shuffled(values, dtype):
        values = np.array(values, dtype)
        generator.shuffle(values)
        return values.tolist()

    if separate:
        document_index = shuffled(documents * (epochs - 1), np.int32) + shuffled(documents, np.int32)
    else:
        document_index = shuffled(documents * epochs, np.int32)
    sample_index = slow_sample_index(lengths, document_index, available, seq_length)
    if separate:
        shuffle = shuffled(range(before), np.uint32) + shuffled(range(before, available), np.uint32)
    else:
        shuffle = shuffled(range(available), np.uint32)
    return np.array(document_index), sample_index, np.array(shuffle)


def test_golden_arrays():
    """Six documents, one of them empty, two epochs: arrays of megatron-core 0.16.1 (seed 1234)."""
    index = build_gpt_index(LENGTHS, 0, 6, seq_length=4, num_samples=9, seed=1234)
    assert index.document_index.tolist() == GOLDEN_DOCUMENTS
    assert index.sample_index.tolist() == GOLDEN_SAMPLES
    assert index.shuffle_index.tolist() == GOLDEN_SHUFFLE
    assert [
        array.dtype.name for array in (index.document_index, index.sample_index, index.shuffle_index)
    ] == [
        "int32",
        "int32",
        "uint32",
    ]


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_slow_twin(seed):
    """Random documents, cut, length and epochs: all three arrays equal the loops of upstream."""
    generator = np.random.RandomState(seed)
    # No empty first document here: the loop of upstream starts inside it, as row 0 of ours does.
    lengths = generator.randint(1, 30, size=generator.randint(3, 40)).astype(np.int32)
    first = int(generator.randint(0, len(lengths) - 2))
    arguments = (first, len(lengths), int(generator.randint(1, 25)), int(generator.randint(1, 400)), seed)
    index = build_gpt_index(lengths, *arguments)
    for ours, slow in zip(
        (index.document_index, index.sample_index, index.shuffle_index),
        slow_index(lengths, *arguments),
        strict=True,
    ):
        assert np.array_equal(ours, slow)


def test_every_token_is_read_once_in_an_epoch():
    """One epoch cuts the shuffled documents into pieces that meet in one token and leave less than one out."""
    lengths = np.array([4, 10, 1, 6, 25], np.int32)
    index = build_gpt_index(lengths, 0, 5, seq_length=8, num_samples=1, seed=3)
    ends = np.concatenate([[0], np.cumsum(lengths[index.document_index])])
    starts = ends[index.sample_index[:, 0]] + index.sample_index[:, 1]
    assert starts.tolist() == [8 * row for row in range(len(index) + 1)]
    assert len(index) == (46 - 1) // 8


def test_last_epoch_is_separate_below_eighty_percent():
    """A last epoch needed for under 80 % is shuffled behind the others, so that it is cut short evenly."""
    lengths = np.full(100, 11, np.int32)  # 1,100 tokens, 109 samples of 10 each epoch
    short, long = epochs_needed(1100, 10, 109 + 80), epochs_needed(1100, 10, 109 + 100)
    assert (short.num_epochs, short.separate_last_epoch) == (2, True)
    assert (long.num_epochs, long.separate_last_epoch) == (2, False)
    assert not epochs_needed(1100, 10, 5).separate_last_epoch
    index = build_gpt_index(lengths, 0, 100, 10, 109 + 80, seed=5)
    assert sorted(index.document_index[100:]) == list(range(100))
    assert sorted(index.shuffle_index[:109]) == list(range(109))


def test_documents_without_a_token():
    """A split without tokens cannot give a sample, and that is said."""
    with pytest.raises(DataError) as caught:
        build_gpt_index(LENGTHS, 2, 3, 4, 1, seed=0)
    assert str(caught.value) == "documents 2 to 3 hold no token: no sample can be cut from them."


def test_index_that_would_fill_the_memory():
    """Thousands of epochs of many documents are refused before they are laid out."""
    with pytest.raises(DataError) as caught:
        build_gpt_index(np.full(100_000, 2, np.int32), 0, 100_000, 2048, 10_000_000, seed=0)
    assert str(caught.value) == (
        "10,000,000 samples of 2,048 tokens are 102,401 epochs of 200,000 tokens; their document index would take "
        "38 GiB (at most 16 GiB). Use more text, or set data.index_samples: the order is then built for that many "
        "and repeated with another seed."
    )


def test_split_rules_differ_by_a_document():
    """Ten documents by 949,50,1: Megatron-DeepSpeed trains on 10, megatron-core on 9."""
    assert split_bounds("949,50,1", "megatron-deepspeed", 10) == [(0, 10), (10, 10), (10, 10)]
    assert split_bounds("949,50,1", "megatron-core", 10) == [(0, 9), (9, 10), (10, 10)]


@pytest.mark.parametrize(("split", "expected"), [("949,50,1", 4940), ("98,2,0", 400), ("100,0,0", 0)])
def test_how_often_the_rules_differ(split, expected):
    """Over sizes 1 to 20,000 the two rules differ as often as upstream's two functions do."""
    differ = 0
    for size in range(1, 20_001):
        upstream, core = (split_bounds(split, rule, size) for rule in ("megatron-deepspeed", "megatron-core"))
        assert upstream[0][0] == core[0][0] == 0
        assert upstream[2][1] == core[2][1] == size
        differ += upstream != core
    assert differ == expected


def test_split_texts():
    """One to three numbers, with commas or slashes; anything else is refused."""
    assert split_weights("98/2") == [98, 2, 0]
    assert split_weights("1") == [1, 0, 0]
    for bad in ("", "a,b", "1,2,3,4", "-1,2,3", "0,0,0", "nan,1"):
        with pytest.raises(ConfigError) as caught:
            split_weights(bad)
        assert str(caught.value) == (
            f'data.split = {bad!r}: must be one to three relative sizes, e.g. "949,50,1".'
        )
    with pytest.raises(ConfigError, match="must be megatron-deepspeed or megatron-core"):
        split_bounds("1,1,1", "other", 10)


@pytest.mark.slow
def test_equals_megatron_core(tmp_path):
    """Bounds, indices and dtypes are those of the megatron-core that is installed, on our own files."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    class Names:
        vocab_size, eod, pad, unique_identifiers = 1000, 0, -1, {}

    generator = np.random.RandomState(7)
    lengths = generator.randint(1, 90, size=60)
    with IndexedWriter(tmp_path / "x_document", 1000, 0) as writer:
        for length in lengths:
            writer.add_document(generator.randint(1, 1000, length))
    for seq_length, split, sizes in [
        (32, "80,15,5", (5, 3, 2)),
        (32, "70,20,10", (300, 60, 20)),
        (16, "70,20,10", (250, 77, 31)),
    ]:
        settings = GPTDatasetConfig(
            random_seed=1234,
            sequence_length=seq_length,
            blend=([str(tmp_path / "x_document")], None),
            split=split,
            path_to_cache=str(tmp_path / "cache"),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            tokenizer=Names(),
        )
        theirs = BlendedMegatronDatasetBuilder(GPTDataset, list(sizes), lambda: True, settings).build()
        bounds = split_bounds(split, "megatron-core", len(lengths))
        for (first, last), size, core in zip(bounds, sizes, theirs, strict=True):
            assert (core is None) == (first == last)
            if core is not None:
                ours = build_gpt_index((lengths + 1).astype(np.int32), first, last, seq_length, size, 1234)
                for name in GPTIndex.__dataclass_fields__:
                    assert getattr(ours, name).dtype == getattr(core, name).dtype
                    assert np.array_equal(getattr(ours, name), getattr(core, name))
