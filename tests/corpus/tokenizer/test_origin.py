"""The tokens that end a text: the tokenizer's, and those of the folder that the run's model came from."""

import pytest

from nbtrain.base import files
from nbtrain.base.rundir import RunDir
from nbtrain.corpus.tokenizer.origin import end_ids, origin_of, recorded_origin
from tests.inference import made

OTHER = {"config": {}, "generation_config": {"eos_token_id": 7}, "tokenizer_sha256": "0" * 64}


@pytest.fixture
def tokenizer(tmp_path):
    return made.beginning_tokenizer_in(tmp_path / "tokenizer", tmp_path / "theirs")


def run_from(tmp_path, origin, name="run", between=False):
    """A run from a folder, or from a run that came from it."""
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
        # transformers makes its generation config of config.json then.
        ({}, {"eos_token_id": [3, 4]}, {3, 4}),
        ({"eos_token_id": None}, {"eos_token_id": 3}, {3}),
        ({}, {}, set()),
        ({"eos_token_id": [5, "6", True, None, [7]]}, {}, {5}),
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


def test_a_run_from_random_weights(tokenizer, tmp_path):
    """Or from a run of such weights."""
    assert end_ids(RunDir(tmp_path / "none"), tokenizer) == {tokenizer.eod_id}
    assert recorded_origin(run_from(tmp_path, {}, between=True)) == {}
