"""A training length in tokens, samples or steps gives the same run, counted in tokens."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.load import load

# A step of gpt-125m is 256 samples of 2,048 tokens.
STEP = 256 * 2048
RAMP = {"start_batch_size": 64, "batch_size_increment": 64, "ramp_samples": 3 * 640}


def amounts(**overrides):
    """Return gpt-125m without any training length, with `overrides` applied."""
    gone = dict.fromkeys(
        ("batch.train_tokens", "lr_schedule.lr_warmup_tokens", "lr_schedule.lr_decay_tokens")
    )
    return load("gpt-125m", gone | {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.mark.parametrize(
    "unit, length, warmup, decay, wsd",
    [
        ("tokens", 1000 * STEP, 10 * STEP, 900 * STEP, 100 * STEP),
        ("samples", 1000 * 256, 10 * 256, 900 * 256, 100 * 256),
        ("steps", 1000, 10, 900, 100),
    ],
)
def test_three_units_make_one_run(unit, length, warmup, decay, wsd):
    config = amounts(
        **{
            f"batch__train_{unit}": length,
            f"lr_schedule__lr_warmup_{unit}": warmup,
            f"lr_schedule__lr_decay_{unit}": decay,
            f"lr_schedule__lr_wsd_decay_{unit}": wsd,
            "lr_schedule__lr_decay_style": "WSD",
        }
    )
    assert (config.train_tokens, config.train_steps) == (1000 * STEP, 1000)
    assert LrSchedule.of(config) == LrSchedule(
        6e-4, 1e-6, "WSD", 10 * STEP, 900 * STEP, wsd_decay_tokens=100 * STEP
    )


def test_steps_of_a_ramp_are_small():
    """With a batch ramp, steps are 10 of 64, 5 of 128 and 4 of 192 (the last starts
    before sample 1,920), then full.
    """
    config = amounts(batch__train_steps=30, lr_schedule__lr_warmup_steps=12, batch__rampup=RAMP)
    assert config.train_tokens == (10 * 64 + 5 * 128 + 4 * 192 + 11 * 256) * 2048
    assert config.lr_warmup_tokens == (10 * 64 + 2 * 128) * 2048
    assert (config.scheduled_steps, config.train_samples) == (30, 10 * 64 + 5 * 128 + 4 * 192 + 11 * 256)
    assert config.lr_decay_tokens == config.train_tokens


def test_the_decay_follows_the_length():
    config = amounts(batch__train_samples=2_560_001)
    assert (config.train_tokens, config.train_steps) == (2_560_001 * 2048, 10_001)
    assert (config.lr_warmup_tokens, config.lr_decay_tokens) == (0, config.train_tokens)


def test_a_run_without_a_length(run_yaml):
    """The message about a missing length names the line that removed it, or the file if no line did."""
    with pytest.raises(ConfigError) as raised:
        load(run_yaml("batch:\n  train_tokens: null\n"))
    assert str(raised.value) == (
        "my-run.yaml:3: batch.train_tokens is missing: set it, or train_samples or train_steps."
    )


def test_two_units_are_reported_with_both_lines(run_yaml):
    with pytest.raises(ConfigError) as raised:
        load(run_yaml("lr_schedule:\n  lr_warmup_steps: 10\n"))
    first, second, advice = str(raised.value).splitlines()
    assert first.startswith("gpt-tiny.yaml:") and first.endswith(": lr_schedule.lr_warmup_tokens = 40960")
    assert second == "  and my-run.yaml:3: lr_schedule.lr_warmup_steps = 10"
    assert advice == "  set the same length in different units. Keep one of them, and set the others to null."
