"""The autotuner's input, and its JSON result, which becomes overrides that the rules accept."""

import json

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import load
from nbtrain.config.load.autotune import found_words, overrides_of, read_given, tuner_json

EXTRA = {"parallel.deepspeed_extra": {"autotuning": {"fast": False, "end_profile_step": 9}}}


@pytest.fixture(scope="module")
def config():
    """Return an fp32 run of 16 sequences on 4 ranks."""
    sizes = {"batch.micro_batch_size": 2, "batch.global_batch_size": 48}
    return load("gpt-125m-4xdp", {**sizes, "precision.dtype": "fp32", **EXTRA})


def test_the_tuner_tries_what_the_rules_allow(config):
    """The tuner tries micro batches that divide a rank's 12 sequences, but not ZeRO 0
    in 16 bits; options are kept.
    """
    given = tuner_json(config, "/workspace/output/gpt")
    assert given["train_micro_batch_size_per_gpu"] == [1, 2, 4]
    assert given["gradient_accumulation_steps"] == 3 and "train_batch_size" not in given
    assert given["zero_optimization"]["stage"] == [0, 1, 2, 3]
    assert given["autotuning"] == {
        "fast": False,
        "end_profile_step": 9,
        "enabled": True,
        "results_dir": "/workspace/output/gpt/autotuning_results",
        "exps_dir": "/workspace/output/gpt/autotuning_exps",
    }
    half = load(config, {"precision.dtype": "bf16"})
    assert tuner_json(half, "/w")["zero_optimization"]["stage"] == [1, 2, 3]


def test_what_the_tuner_changes_becomes_overrides(config):
    """The tuner's changes become overrides, even if written as floats; keys without a field go to
    deepspeed_extra.
    """
    zero = {"stage": 3, "reduce_bucket_size": 5e7, "overlap_comm": False, "allgather_partitions": False}
    given = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "zero_optimization": zero}
    found = overrides_of(config, given)
    assert found == {
        "batch.micro_batch_size": 4,
        "parallel.zero_stage": 3,
        "parallel.reduce_bucket_size": 50_000_000,
        "parallel.overlap_comm": False,
        "parallel.deepspeed_extra": {
            **config.parallel.deepspeed_extra,
            "zero_optimization": {"allgather_partitions": False},
        },
    }
    derived = deepspeed_config(load(config, found))
    assert {key: derived["zero_optimization"][key] for key in zero} == zero
    assert derived["train_micro_batch_size_per_gpu"] == 4 and derived["gradient_accumulation_steps"] == 3
    assert overrides_of(config, deepspeed_config(config)) == {}
    with pytest.raises(ConfigError) as caught:
        overrides_of(config, {"zero_optimization": {"zero_quantized_weights": True}})
    assert str(caught.value) == (
        "DeepSpeed's autotuner sets zero_optimization.zero_quantized_weights = True, which nbtrain derives "
        "as False. Remove it from the tuner's options (parallel.deepspeed_extra.autotuning)."
    )


def test_what_was_found_is_said_with_the_command_that_takes_it_over(config, workspace):
    run = RunDir.named("gpt")
    assert found_words(run, config, "none", active=True) is None
    folder = "output/gpt/autotuning_results"
    assert found_words(run, config, "tune", active=True) == f"the autotuner writes its trials to {folder}/"
    assert found_words(run, config, "tune", active=False) == (
        f"no trial finished; see stderr.log and stdout.log of each trial in {folder}/"
    )
    run.autotuning_results.mkdir(parents=True)
    best = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
    files.write_json(run.autotuning_optimum, best)
    assert found_words(run, config, "tune", active=False) == (
        f"{folder}/ds_config_optimal.json has the best settings; `nbtrain resume gpt "
        "batch.micro_batch_size=4 parallel.zero_stage=3 backend.kubernetes.autotune=none` trains with them"
    )
    assert found_words(run, config, "run", active=True) == (
        f"the run already has the best settings ({folder}/ds_config_optimal.json)"
    )


def test_a_json_is_read_from_its_path_or_base64(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": 1}))
    assert read_given(str(path)) == read_given("eyJhIjogMX0=") == {"a": 1}
    with pytest.raises(ConfigError, match="must hold a JSON object, not 3"):
        read_given("Mw==")
    path.write_text("[" * 100_000)
    with pytest.raises(
        ConfigError, match="is neither the path of a JSON file nor base64-encoded JSON: maximum recursion"
    ):
        read_given(str(path))
