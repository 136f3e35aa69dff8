"""N-gram baselines: constructed cases, a slow reference, the cache, and the samples they use."""

import math
from collections import Counter

import numpy as np
import pytest
from IPython.lib.pretty import pretty

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.views import baselines as module
from nbtrain.dataset.views.baselines import K_GRID, NoBaselines, baselines, compute
from tests.dataset.dataset_maker import make_dataset


def test_uniform_tokens_have_the_entropy_of_a_die():
    """For uniformly random tokens, the entropy, the unigram loss and the bigram loss are all ln V."""
    generator = np.random.RandomState(0)
    train, valid = generator.randint(0, 8, 200_000), generator.randint(0, 8, 50_000)
    result = compute(train, valid[:-1], valid[1:], 8)
    for value in (result.unigram_entropy_nats, result.unigram_nats, result.bigram_nats):
        assert value == pytest.approx(math.log(8), abs=0.002)


def test_a_cycle_is_known_to_the_bigram_alone():
    """For the cycle 0 1 2 3 0 1 2 3, the unigram loss is ln 4 and the bigram loss is nearly 0."""
    tokens = np.arange(40_000) % 4
    result = compute(tokens, tokens[:4_000], tokens[1:4_001], 4)
    assert result.unigram_entropy_nats == pytest.approx(math.log(4))
    assert result.bigram_nats < 1e-6


def test_equals_the_definition():
    """The vectorised results equal the formulas computed with dictionaries; k is the best of the grid."""
    generator = np.random.RandomState(3)
    train, valid = generator.zipf(1.5, 3000) % 50, generator.zipf(1.4, (8, 50)) % 60
    vocab = 60
    counts, pairs = Counter(train.tolist()), Counter(zip(train[:-1].tolist(), train[1:].tolist()))
    contexts = Counter(train[:-1].tolist())

    def unigram(k):
        return -np.mean(
            [math.log((counts[b] + k) / (len(train) + k * vocab)) for b in valid[:, 1:].ravel().tolist()]
        )

    def bigram(k):
        steps = zip(valid[:, :-1].ravel().tolist(), valid[:, 1:].ravel().tolist())
        return -np.mean([math.log((pairs[a, b] + k) / (contexts[a] + k * vocab)) for a, b in steps])

    result = compute(train, valid[:, :-1].ravel(), valid[:, 1:].ravel(), vocab)
    assert result.unigram_nats == pytest.approx(min(map(unigram, K_GRID)))
    assert result.bigram_nats == pytest.approx(min(map(bigram, K_GRID)))
    assert result.bigram_nats == pytest.approx(bigram(result.bigram_k))
    assert result.unigram_entropy_nats <= result.unigram_nats


def test_cached_for_this_data_and_split(make_config, texts, monkeypatch):
    """Baselines are computed once per dataset, split and number of samples, and cached in a file."""
    config = make_config()
    make_dataset(config, texts)
    first = baselines(config)
    other_config = make_config(data={"split": "50,40,10"})
    other = baselines(other_config)
    samples = config.evaluation.eval_iters * config.batch.global_batch_size
    assert first.validation_tokens == other.validation_tokens == samples * config.model.seq_length
    assert other.bigram_nats != first.bigram_nats
    monkeypatch.setattr(module, "compute", None)
    assert baselines(config) == first
    assert baselines(other_config) == other
    assert str(first).startswith("validation samples, nats/token: unigram entropy ")
    dataset_of(config).baselines_json.write_text("{")
    with pytest.raises(DataError, match=r"not JSON.*Remove the file; it will be computed again\.$"):
        baselines(config)


def test_packed_sources_are_cut_each_by_itself(make_config, texts, monkeypatch):
    """Each packed source is split separately; both are in the training counts, and weights change the
    validation set.
    """
    places = ([0, 60], [60, 120])
    sources = [{"kind": "jsonl", "name": f"s{number}", "sequences": places[number]} for number in range(2)]
    own = [{"kind": "chat", "path": f"{number}.jsonl"} for number in range(2)]
    config = make_config(data={"packing": "best_fit", "split": "50,50,0", "sources": own})
    make_dataset(config, texts, sources=sources)
    indexed = IndexedDataset(dataset_of(config).prefix)
    seen = []

    def counted(train, *rest):
        seen.append(train)
        return compute(train, *rest)

    monkeypatch.setattr(module, "compute", counted)
    baselines(config)
    halves = [indexed[number] for number in (*range(30), *range(60, 90))]
    assert np.array_equal(seen[0], np.concatenate(halves))
    own[1]["weight"] = 3.0
    baselines(make_config(data={"packing": "best_fit", "split": "50,50,0", "sources": own}))
    assert len(seen) == 2


def test_no_validation_tokens(make_config, texts):
    """A split without validation tokens is an error, or a reason that the notebook
    shows instead of baselines.
    """
    config = make_config(data={"split": "1,0,0"})
    tokens = make_dataset(config, texts).counts["tokens"]
    reason = (
        f"data/dataset/small/text_document: split 1,0,0 leaves {tokens:,} training tokens and 0 validation "
        "documents; baselines need at least 2 training tokens and 1 validation document. Use "
        "more text or another data.split."
    )
    with pytest.raises(DataError) as caught:
        baselines(config)
    assert str(caught.value) == reason
    explained = baselines(config, too_small="explain")
    assert explained == NoBaselines(reason)
    assert pretty(explained) == f"no baselines: {reason}"


def test_a_tiny_dataset(make_config):
    """A dataset of two documents has none left for validation, whatever the split."""
    config = make_config()
    make_dataset(config, ["a first document", "and a second"])
    assert isinstance(baselines(config, too_small="explain"), NoBaselines)


def test_nothing_learnt(make_config, texts, monkeypatch):
    """Masks and packing can leave no validation label in the loss, which is reported."""
    config = make_config()
    make_dataset(config, texts)
    none = np.empty(0, np.int64)
    monkeypatch.setattr(module, "_validation_labels", lambda *arguments: (none, none))
    assert baselines(config, too_small="explain") == NoBaselines(
        f"data/dataset/small/text_document: no label in the {config.evaluation_samples} "
        "validation samples is in the loss. Use more text or another data.split."
    )


def test_what_is_wrong_with_the_data_is_told_however_small(make_config):
    """too_small="explain" applies to small data only; missing data and unknown values still raise errors."""
    with pytest.raises(DataError, match="nbtrain prepare"):
        baselines(make_config(), too_small="explain")
    with pytest.raises(ConfigError, match=r"^too_small = 'yes': must be"):
        baselines(make_config(), too_small="yes")


def test_only_labels_that_bear_loss_count(make_config, texts):
    """With a loss mask or eod_mask_loss, only validation labels in the loss are evaluated."""
    config = make_config()
    every = config.evaluation_samples * config.model.seq_length
    make_dataset(config, texts)
    assert baselines(config).validation_tokens == every
    assert baselines(make_config(data={"eod_mask_loss": True})).validation_tokens < every
    make_dataset(config, texts, learnt_from=[4] * 120)
    assert baselines(config).validation_tokens < every


def test_sentences_are_one_stream(make_config):
    """For a dataset of sentences, baselines are computed over the stream of all sentences."""
    config = make_config(data={"split_sentences": "en", "split": "50,40,10"})
    make_dataset(config, ["the model reads.\nand is cut.\n"] * 60)
    assert baselines(config).train_tokens == IndexedDataset(dataset_of(config).prefix).num_tokens // 2


def test_a_blend_is_refused(make_config, texts):
    """Baselines of a blend are refused, because they describe a single dataset."""
    make_dataset(make_config(), texts)
    config = make_config(data={"name": "mix", "sources": [], "blend": [{"name": "small", "weight": 1}]})
    with pytest.raises(DataError) as caught:
        baselines(config)
    assert str(caught.value) == (
        "data.blend: baselines describe one dataset, but the blend has 1. Request the "
        "baselines of one entry with a run that sets data.name to this entry and has no "
        "data.blend."
    )
    assert baselines(config, too_small="explain") == NoBaselines(str(caught.value))
