"""End-of-text ids: the tokenizer's own, and those recorded in the folder from which the run's model came."""

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.origin import end_ids, origin_of, recorded_origin
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from tests.inference import made

OTHER = {"config": {}, "generation_config": {"eos_token_id": 7}, "tokenizer_sha256": "0" * 64}


@pytest.fixture
def tokenizer(tmp_path):
    return made.beginning_tokenizer_in(tmp_path / "tokenizer", tmp_path / "theirs")


def run_from(tmp_path, origin, name="run", between=False):
    """Create a run that started from a model folder, directly or through another run."""
    run = RunDir(tmp_path / name)
    run.path.mkdir()
    record = {"schema_version": 1, "path": "somewhere"}
    started = {"run": "base", "tokenizer_sha256": "1" * 64, "origin": origin} if between else origin
    files.write_json(run.init_from_json, {**record, **started})
    return run


@pytest.mark.parametrize(
    ("generation_config", "config", "ids"),
    [
        ({"eos_token_id": [5, 9]}, {"eos_token_id": 3}, {5, 9}),
        ({"eos_token_id": 5}, {}, {5}),
        # transformers derives its generation config from config.json in this case.
        ({}, {"eos_token_id": [3, 4]}, {3, 4}),
        ({"eos_token_id": None}, {"eos_token_id": 3}, set()),
        ({"temperature": 0.6}, {"eos_token_id": [3, 4]}, set()),
        ({}, {}, set()),
        ({"eos_token_id": [5, "6", True, None, [7]]}, {}, {5}),
        ({"eos_token_id": {"a": 5}}, {}, set()),
    ],
)
@pytest.mark.parametrize("between", [False, True], ids=["folder", "run"])
def test_all_that_transformers_ends_at(generation_config, config, ids, between, tokenizer, tmp_path):
    sha256 = files.sha256_of(tmp_path / "theirs" / "tokenizer.json")
    origin = {"config": config, "generation_config": generation_config, "tokenizer_sha256": sha256}
    run = run_from(tmp_path, origin, between=between)
    assert recorded_origin(run) == origin_of(run, tokenizer.directory) == origin
    assert end_ids(run, tokenizer) == ids | {tokenizer.eod_id}


@pytest.mark.parametrize("between", [False, True], ids=["folder", "run"])
def test_ids_of_another_tokenizer_say_nothing(between, tokenizer, tmp_path):
    run = run_from(tmp_path, OTHER, between=between)
    assert recorded_origin(run) == OTHER and origin_of(run, tokenizer.directory) == {}
    assert end_ids(run, tokenizer) == {tokenizer.eod_id}


def test_a_tokenizer_with_tokens_more(tokenizer, tmp_path):
    """The recorded end-of-text ids apply even if tokens are added, also after a second import."""
    sha256 = files.sha256_of(tmp_path / "theirs" / "tokenizer.json")
    run = run_from(tmp_path, {**OTHER, "tokenizer_sha256": sha256})
    source = tmp_path / "theirs"
    for name, tokens in (("first", ["<|a|>"]), ("second", ["<|b|>"])):
        adopt(source, "<|endoftext|>", tmp_path / name, tokens)
        source = tmp_path / name
        assert end_ids(run, Tokenizer.load(source)) == {tokenizer.eod_id, 7}
    adopt(tokenizer.directory, "<|endoftext|>", tmp_path / "third", ["<|c|>"])
    assert end_ids(run, Tokenizer.load(tmp_path / "third")) == {tokenizer.eod_id, 7}


def test_a_run_from_random_weights(tokenizer, tmp_path):
    """A run that started from random weights, directly or through another run, adds no end-of-text ids."""
    assert end_ids(RunDir(tmp_path / "none"), tokenizer) == {tokenizer.eod_id}
    assert recorded_origin(run_from(tmp_path, {}, between=True)) == {}
