"""The tokens that perplexity covers, with a model whose probability depends only on the token."""

import math

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.arithmetic.splits import split_bounds
from nbtrain.config.load import load_resolved
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from nbtrain.evaluation.perplexity import Perplexity
from nbtrain.evaluation.requests import Scored
from tests.dataset.dataset_maker import make_dataset
from tests.evaluation import made

NATS = np.random.default_rng(2).uniform(0.5, 6.0, 400)


def task_of(run, split="valid", limit=None):
    config = load_resolved(run.config_yaml)
    tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    return Perplexity(config, tokenizer, dataset_of(config), split, is_own=True, limit=limit)


def answered(task):
    """Return the outcome for a model with -ln p = NATS[token], and the requested windows."""
    asked = list(task.requests())
    done = 0
    for number in reversed(range(len(asked))):
        [continuation] = asked[number].continuations
        done += task.take(number, [Scored([-NATS[token] for token in continuation], False)])
    assert done == task.total
    return task.outcome(), asked


def documents(run, split="valid"):
    """Return the token ids of each document of a split."""
    config = load_resolved(run.config_yaml)
    indexed = dataset_of(config).open().indexed
    bounds = split_bounds(config.data.split, config.data.split_rule, len(indexed))
    first, last = (0, len(indexed)) if split == "all" else bounds[("train", "valid", "test").index(split)]
    return [indexed[number].astype(int) for number in range(first, last)]


@pytest.mark.parametrize("split", ["valid", "test", "all"])
def test_each_token_is_predicted_once(workspace, split):
    """Each token is predicted once, in consecutive windows in the file's order, including document ends."""
    run = made.run_with_data()
    outcome, asked = answered(task_of(run, split))
    tokens = np.concatenate(documents(run, split))
    windows = [one.context + one.continuations[0] for one in asked]
    assert windows[0] == tokens[:97].tolist() and windows[1][0] == tokens[96]
    assert [token for window in windows for token in window[1:]] == tokens[1:].tolist()
    loss = NATS[tokens[1:]].mean()
    assert outcome.metrics["loss"].value == pytest.approx(loss)
    assert outcome.metrics["perplexity"].value == pytest.approx(math.exp(loss))
    tokenizer = Tokenizer.load(tokenizer_dir("small"))
    text = [token for token in tokens[1:] if token != tokenizer.eod_id]
    length = sum(len(tokenizer.bytes_of(token)) for token in text)
    bits = NATS[text].sum() / math.log(2) / length
    assert outcome.metrics["bits_per_byte"].value == pytest.approx(bits)
    assert outcome.counts == {"windows": len(windows), "tokens": len(tokens) - 1, "bytes": length}
    # Bytes of the text, without the first token's.
    first = len(tokenizer.bytes_of(int(tokens[0])))
    whole = b"".join(tokenizer.bytes_of(token) for token in tokens if token != tokenizer.eod_id)
    assert length == len(whole) - first and whole.decode()


def test_the_first_windows_alone(workspace):
    run = made.run_with_data()
    outcome, asked = answered(task_of(run, limit=2))
    assert len(asked) == 2 and outcome.counts["tokens"] == 2 * 96


@pytest.mark.parametrize("change", ["data.inter_document_masking", "data.reset_position_ids"])
def test_documents_apart(workspace, change):
    """Documents are evaluated separately if the run trained them separately."""
    run = made.run_with_data(overrides={change: True})
    outcome, asked = answered(task_of(run))
    own = documents(run)
    assert outcome.counts["tokens"] == sum(len(one) - 1 for one in own)
    starts = [one.context[0] for one in asked]
    assert starts[0] == own[0][0] and len(asked) >= len(own)
    expected = np.concatenate([one[1:] for one in own])
    assert outcome.metrics["loss"].value == pytest.approx(NATS[expected].mean())


def test_what_is_not_learnt_is_not_counted(workspace):
    """Tokens outside the loss do not count: prompts, and labels after EOD with eod_mask_loss."""
    run = made.run_with_data(overrides={"data.packing": "best_fit"}, learnt_from=[3] * 20)
    outcome, _ = answered(task_of(run))
    expected = np.concatenate([one[max(3, 1) :] for one in documents(run)])
    assert outcome.counts["tokens"] == len(expected)
    assert outcome.metrics["loss"].value == pytest.approx(NATS[expected].mean())


def test_eod_mask_loss(workspace):
    run = made.run_with_data(overrides={"data.eod_mask_loss": True})
    outcome, _ = answered(task_of(run))
    tokens = np.concatenate(documents(run))
    eod = Tokenizer.load(tokenizer_dir("small")).eod_id
    assert outcome.metrics["loss"].value == pytest.approx(NATS[tokens[1:][tokens[:-1] != eod]].mean())


def test_what_does_not_fit_the_run(workspace):
    """Data of another tokenizer, an unknown split and a split without tokens are refused."""
    run = made.run_with_data()
    config = load_resolved(run.config_yaml)
    with pytest.raises(ConfigError) as refused:
        task_of(run, "validation")
    assert str(refused.value) == "split = 'validation' must be one of train, valid, test, all."
    manifest = dataset_of(config).manifest_json
    files.write_json(manifest, {**files.read_json(manifest), "tokenizer_sha256": "f" * 64})
    with pytest.raises(DataError) as error:
        task_of(run)
    own = Tokenizer.load(tokenizer_dir("small")).sha256[:12]
    assert str(error.value) == (
        "data/dataset/small/manifest.json: the data was encoded with a tokenizer other than "
        f"data/tokenizer/small (sha256 ffffffffffff instead of {own}), so its ids would mean "
        "different text. Prepare the dataset's text for talks, with tokenizer.name=small. To compare "
        "models with different tokenizers, use bits per byte."
    )


@pytest.mark.slow
def test_a_pair_without_a_manifest(workspace):
    """For a pair without a manifest, such as Megatron's own, every id is compared with the vocabulary."""
    run = made.run_with_data()
    config = load_resolved(run.config_yaml)
    own = dataset_of(config)
    expected, _ = answered(task_of(run))
    own.manifest_json.unlink()
    task = task_of(run)
    assert answered(task)[0].metrics == expected.metrics
    assert task.source == "data/dataset/small/text_document"
    assert task.name == f"perplexity-small-text-document-{task.source_sha256[:8]}-valid"
    tokens = np.fromfile(own.bin, np.uint16)
    tokens[-400:] = len(NATS)
    tokens.tofile(own.bin)
    with pytest.raises(DataError) as error:
        task_of(run, "all")
    entries = Tokenizer.load(tokenizer_dir("small")).vocab_size
    assert str(error.value) == (
        "data/dataset/small/text_document.bin contains the token id 400, but the run's tokenizer has "
        f"{entries} entries, so the data was encoded with another tokenizer. Use data that was encoded with "
        "the run's tokenizer."
    )


def test_each_pair_has_a_name_of_its_own(workspace):
    """Each pair gets a unique name, even if folders or datasets have the same name."""
    run = made.run_with_data()
    config = load_resolved(run.config_yaml)
    tokenizer, home = Tokenizer.load(tokenizer_dir("small")), dataset_of(config)
    pairs = [home, home.pair("title_document"), home.pair("more_document")]
    pairs += [DatasetFiles(workspace / place / "small", stem="text_document") for place in "ab"]
    for number, pair in enumerate(pairs[1:], 2):
        make_dataset(config, made.texts(number), DatasetFiles(workspace / str(number), stem=pair.stem))
        pair.directory.mkdir(parents=True, exist_ok=True)
        for ending in (".bin", ".idx"):
            (workspace / str(number) / f"{pair.stem}{ending}").rename(pair.prefix.with_suffix(ending))
    value = files.read_json(home.manifest_json)
    listed = {
        path.name: {"bytes": path.stat().st_size, "sha256": "0"} for path in (pairs[1].bin, pairs[1].idx)
    }
    files.write_json(home.manifest_json, {**value, "files": {**value["files"], **listed}})
    tasks = [Perplexity(config, tokenizer, pair, "all", is_own=False) for pair in pairs]
    assert [task.source for task in tasks] == [
        "small",
        "data/dataset/small/title_document",
        "data/dataset/small/more_document",
        "a/small/text_document",
        "b/small/text_document",
    ]
    hashes = [task.source_sha256[:8] for task in tasks]
    assert [task.name for task in tasks] == [
        "perplexity-small-all",
        f"perplexity-small-title-document-{hashes[1]}-all",
        f"perplexity-small-more-document-{hashes[2]}-all",
        f"perplexity-small-text-document-{hashes[3]}-all",
        f"perplexity-small-text-document-{hashes[4]}-all",
    ]
    assert hashes[3] != hashes[4]


def test_an_empty_split(workspace):
    run = made.run_with_data(overrides={"data.split": "100,0,0", "evaluation.eval_iters": 0})
    with pytest.raises(DataError) as error:
        task_of(run)
    assert str(error.value) == (
        "data/dataset/small/text_document: the split valid has no tokens to predict (the dataset has 20 "
        "sequences, and data.split is 100,0,0). Use another split, or a larger dataset."
    )
