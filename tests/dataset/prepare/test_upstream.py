"""Each of the nine upstream runs is prepared by a single call, from the dump that its YAML names."""

import shutil

import pytest

from nbtrain.base import files
from nbtrain.base.workspace import data_home
from nbtrain.config.load import load
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from tests.config.conftest import UPSTREAM


@pytest.mark.slow
def test_the_nine_runs_share_one_dataset_of_english_wikipedia(shared_data, workspace):
    """One call builds the tokenizer and the dataset from a sample of the dump, stored
    where a download would be.

    Only the vocabulary and the run are smaller than upstream's: the sample does not have 52,000 different
    tokens, and the index of samples would take too long. The other eight runs use the same text, tokenizer
    and dataset.
    """
    dump = shared_data / "wiki" / "enwiki-pages-articles-sample.xml.bz2"
    downloads = data_home() / "download"
    downloads.mkdir(parents=True)
    name = "enwiki-20260101-pages-articles-multistream.xml.bz2"
    shutil.copyfile(dump, downloads / name)
    record = {"file": name, "date": "20260101", "url": "https://example.org", "sha1": "0" * 40}
    files.write_json(downloads / f"{name}.json", {**record, "bytes": dump.stat().st_size})
    files.write_json(downloads / "enwiki-latest.json", {"date": "20260101"})
    first, *others = [load(run) for run in UPSTREAM]
    for other in others:
        assert other.tokenizer == first.tokenizer
        assert (other.data.name, other.data.sources) == (first.data.name, first.data.sources)
    small = load(first, ["tokenizer.vocab_size=2000", "data.num_prepare_workers=1", "batch.train_tokens=1e6"])
    small = load(small, ["lr_schedule={lr_warmup_tokens: null, lr_decay_tokens: null}"])
    made = [step.name for step in prepare(small).steps if step.action == "made"]
    assert made == ["extract", "tokenizer", "encode", "index"]
    assert dataset_of(small).manifest().counts["tokens"] > 100_000
    assert not [step for step in prepare(small).steps if step.action == "made"]
